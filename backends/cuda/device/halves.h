// A tensor of 16-bit floats, or of those of computing, that a kernel reads element by element.
#pragma once

#include "matrix_units.h"

namespace loma {

struct Halves {
  const Narrow* narrow;
  const float* wide;  // where it is of these

  float operator[](int64_t place) const {
    return narrow != nullptr ? widened(narrow[place]) : wide[place];
  }
};

}  // namespace loma
