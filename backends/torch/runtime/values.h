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
#include "spans.h"

namespace loma {

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
