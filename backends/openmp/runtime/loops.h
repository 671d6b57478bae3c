// What loops are made of that run on CPUs.
#ifndef LOMA_LOOPS_H
#define LOMA_LOOPS_H

#include "tables.h"

namespace loma {

// at::kCPU: where tensors are that calls take and generated code makes. Which one of several devices
// of that type it is follows from the call: its kernel runs under a guard (dispatch.cpp).
constexpr c10::DeviceType kDevice{0};

}  // namespace loma

#include "arithmetic.h"
#include "launch.h"
#include "masked.h"
#include "moderate.h"
#include "outside.h"
#include "places.h"
#include "running.h"
#include "special.h"
#include "tiles.h"
#include "values.h"
#include "vector_math.h"

#endif  // LOMA_LOOPS_H
