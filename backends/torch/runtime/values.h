// Arrays and stacks of scalar functions. Failures name the function and the line.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "checks.h"

namespace loma {

// An array argument of any length: the caller's memory.
template <typename T>
class Span {
 public:
  template <size_t count>
  Span(std::array<std::remove_const_t<T>, count>& array) : Span(array.data(), count) {}
  template <size_t count>
  Span(const std::array<std::remove_const_t<T>, count>& array) : Span(array.data(), count) {}
  template <typename Other>
  Span(const Span<Other>& other) : Span(other.data(), other.size()) {}

  T* data() const { return data_; }
  size_t size() const { return size_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  Span(T* data, size_t size) : data_(data), size_(size) {}

  T* data_;
  size_t size_;
};

// Refuses a call whose arguments of those numbers are one storage.
inline void apart(bool meet, int first, int second, const char* function, int64_t line) {
  if (meet) storage_error(first, second, function, line);
}

// One element of an array or a Span.
template <typename Array>
decltype(auto) at(Array&& array, int64_t i, const char* function, int64_t line) {
  if (i < 0 || i >= static_cast<int64_t>(array.size())) {
    subscript_error(i, array.size(), function, line);
  }
  return array[i];
}

// Sets an array or a struct to zero where it is: a temporary might not fit on the stack.
template <typename T>
void zero(T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memset(static_cast<void*>(&value), 0, sizeof value);
}

template <typename T>
void clear(const Span<T>& span) {
  for (size_t i = 0; i < span.size(); ++i) zero(span[static_cast<int64_t>(i)]);
}

// A stack of capacity -1 has no bound.
template <typename T>
void push(std::vector<T>& stack, const T& value, int64_t capacity, const char* function, int64_t line) {
  if (capacity >= 0 && static_cast<int64_t>(stack.size()) >= capacity) {
    full_error(capacity, function, line);
  }
  stack.push_back(value);
}

template <typename T>
void pop(T& target, std::vector<T>& stack, const char* function, int64_t line) {
  if (stack.empty()) drained_error(function, line);
  target = stack.back();
  stack.pop_back();
}

}  // namespace loma
