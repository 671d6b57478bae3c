// Arrays and stacks of scalar functions on a device: backends/torch/runtime/values.h, where what
// fails is told and the kernel goes on in memory of its own.
#pragma once

#include <cstdint>

#include "checks.h"
#include "containers.h"
#include "spans.h"

namespace loma {

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
