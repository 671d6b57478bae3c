// Subscripts that are looked at where loops read, on any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "checks.h"

namespace loma {

// Collects the first subscript that an element found outside its dimension, from any thread.
class Outside {
 public:
  // The subscript where it is inside, else 0, which the caller has made sure exists.
  int64_t clamp(int64_t subscript, int64_t size, int64_t which) {
    return inside(subscript, size, which) ? subscript : 0;
  }

  // Whether the subscript is inside; it need not be for the statement to go on.
  bool inside(int64_t subscript, int64_t size, int64_t which) {
    if (subscript >= 0 && subscript < size) return true;
    int64_t none = 0;
    if (which_.compare_exchange_strong(none, which)) value_.store(subscript);
    return false;
  }

  void check(int64_t which, const char* place, const char* subscript, const char* tensor, int64_t dim,
             int64_t size) const {
    if (which_.load() == which) outside_error(place, subscript, tensor, dim, size, value_.load());
  }

  void check_elements(int64_t which, const char* place, const char* kind) const {
    if (which_.load() == which) empty_error(place, kind);
  }

 private:
  std::atomic<int64_t> which_{0}, value_{0};
};

}  // namespace loma
