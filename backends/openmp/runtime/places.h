// Elements that conditions and ranges of loops look at, by a tensor's pointer.
#pragma once

#include <cstdint>

#include "checks.h"
#include "interval.h"

namespace loma {

// One element of a tensor whose rows lie behind each other, its subscripts checked.
template <typename value, typename number, typename... Places>
inline value element_of(const number* data, const char* place, const char* name, Places... places) {
  int64_t offset = 0, dim = 0;
  const auto step = [&](At at) {
    if (at.subscript < 0 || at.subscript >= at.size) {
      element_error(place, name, dim, at.subscript, at.size);
    }
    offset = offset * at.size + at.subscript;
    ++dim;
  };
  (step(places), ...);
  return value(data[offset]);
}

}  // namespace loma
