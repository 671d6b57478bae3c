// Arrays and stacks of scalar functions on a device: backends/torch/runtime/values.h, where what
// fails is told and the kernel goes on in memory of its own.
#pragma once

#include <cstdint>

#include "checks.h"
#include "containers.h"

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

inline void apart(bool meet, int first, int second, const char* function, int64_t line) {
  if (meet) storage_error(first, second, function, line);
}

// One element of an array or a Span: the first, which is always there, for one outside.
template <typename Array>
decltype(auto) at(Array&& array, int64_t i, const char* function, int64_t line) {
  if (i < 0 || i >= static_cast<int64_t>(array.size())) {
    subscript_error(i, array.size(), function, line);
    i = 0;
  }
  return array[i];
}

template <typename T>
void zero(T& value) {
  value = T{};
}

template <typename T>
void clear(const Span<T>& span) {
  for (size_t i = 0; i < span.size(); ++i) zero(span[static_cast<int64_t>(i)]);
}

// A stack of capacity -1 has no bound but the device's memory. What does not fit is dropped.
template <typename T>
void push(std::vector<T>& stack, const T& value, int64_t capacity, const char* function, int64_t line) {
  const auto size = static_cast<int64_t>(stack.size());
  if (capacity >= 0 && size >= capacity) return full_error(capacity, function, line);
  if (!stack.reserve(stack.size() + 1)) return memory_error(size, function, line);
  stack.push_back(value);
}

template <typename T>
void pop(T& target, std::vector<T>& stack, const char* function, int64_t line) {
  if (stack.empty()) return drained_error(function, line);
  target = stack.back();
  stack.pop_back();
}

}  // namespace loma
