// Array arguments of scalar functions, on the host and on devices.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

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

}  // namespace loma
