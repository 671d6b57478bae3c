// What generated code says when a check fails.
#include "checks.h"

#include <c10/util/Exception.h>

namespace loma {

void check_size(int64_t size, const char* place, const char* wanted) {
  TORCH_CHECK_VALUE(size >= 0, place, " has a size that would make it ", size, ", expected ", wanted);
}

void range_error(const char* place, const char* subscript, const char* tensor, int64_t dim,
                 int64_t size, Interval found) {
  // The one element of a loop that reads or writes one by one.
  if (found.low == found.high) outside_error(place, subscript, tensor, dim, size, found.low);
  TORCH_CHECK_VALUE(false, place, "subscript '", subscript, "' of '", tensor, "' runs from ", found.low,
                    " to ", found.high, ", outside dimension ", dim, " of size ", size,
                    "; wrap the read in zero_pad(...) if zero is meant");
}

void outside_error(const char* place, const char* subscript, const char* tensor, int64_t dim,
                   int64_t size, int64_t value) {
  TORCH_CHECK_VALUE(false, place, "subscript '", subscript, "' of '", tensor, "' is ", value,
                    ", outside dimension ", dim, " of size ", size);
}

void extent_error(const char* place, const char* axis, int64_t extent, const char* tensor,
                  int64_t dim, int64_t size) {
  TORCH_CHECK_VALUE(false, place, "index '", axis, "' runs over ", extent, " values, but dimension ",
                    dim, " of '", tensor, "' has size ", size);
}

void empty_error(const char* place, const char* kind) {
  TORCH_CHECK_VALUE(false, place, kind, " of no elements");
}

void while_error(const char* function, int64_t line, int64_t limit) {
  TORCH_CHECK(false, function, ": line ", line, ": the while loop passed its max_iter of ", limit,
              " iterations");
}

void zero_division(const char* place, const char* what) {
  TORCH_CHECK_VALUE(false, place, what);
}

void subscript_error(int64_t i, size_t size, const char* function, int64_t line) {
  TORCH_CHECK_INDEX(false, function, ": line ", line, ": subscript ", i,
                    " is outside an array of ", size, " elements");
}

void storage_error(int first, int second, const char* function, int64_t line) {
  TORCH_CHECK_VALUE(false, function, ": line ", line, ": arguments ", first, " and ", second,
                    " are the same storage, and one of them is Out");
}

void full_error(int64_t capacity, const char* function, int64_t line) {
  TORCH_CHECK(false, function, ": line ", line, ": push on a full stack of ", capacity);
}

void drained_error(const char* function, int64_t line) {
  TORCH_CHECK(false, function, ": line ", line, ": pop from an empty stack");
}

}  // namespace loma
