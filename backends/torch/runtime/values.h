// Arrays and stacks of scalar functions. Failures name the function and the line.
#pragma once

#include <c10/util/Exception.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

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

__attribute__((noinline, cold)) inline void subscript_error(int64_t i, size_t size,
                                                            const char* function, int64_t line) {
  TORCH_CHECK_INDEX(false, function, ": line ", line, ": subscript ", i,
                    " is outside an array of ", size, " elements");
}

// Refuses a call whose arguments of those numbers are one storage.
inline void apart(bool meet, int first, int second, const char* function, int64_t line) {
  TORCH_CHECK_VALUE(!meet, function, ": line ", line, ": arguments ", first, " and ", second,
                    " are the same storage, and one of them is Out");
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
  TORCH_CHECK(capacity < 0 || static_cast<int64_t>(stack.size()) < capacity, function, ": line ",
              line, ": push on a full stack of ", capacity);
  stack.push_back(value);
}

template <typename T>
void pop(T& target, std::vector<T>& stack, const char* function, int64_t line) {
  TORCH_CHECK(!stack.empty(), function, ": line ", line, ": pop from an empty stack");
  target = stack.back();
  stack.pop_back();
}

}  // namespace loma
