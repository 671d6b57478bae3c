// How the dimensions of a convolution lie: convolution_statements.h, without its tensors.
#ifndef LOMA_GEOMETRY_H
#define LOMA_GEOMETRY_H

#include <array>
#include <cstdint>

namespace loma {

using Order = std::array<int64_t, 5>;

struct Geometry {
  std::array<int64_t, 2> step, tap, shift;  // step and tap are not 0
};

}  // namespace loma

#endif  // LOMA_GEOMETRY_H
