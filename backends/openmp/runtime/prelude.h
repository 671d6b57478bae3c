// The first include of every generated file whose loops run on CPUs, so that it can be precompiled.
//
// pybind11 is not part of it: its headers cost every file that includes them some seconds. The
// binding of all modules is compiled once, in python.cpp, and linked to each. A generated file that
// is compiled with LOMA_STANDALONE binds itself.
#ifndef LOMA_PRELUDE_H
#define LOMA_PRELUDE_H

#include "tables.h"

namespace loma {

// Where tensors are that calls take and generated code makes. Which one of several devices of that
// type it is follows from the call: its kernel runs under a guard (dispatch.cpp).
constexpr at::DeviceType kDevice = at::kCPU;

}  // namespace loma

#include "arithmetic.h"
#include "kernels.h"
#include "launch.h"
#include "outside.h"
#include "scan.h"
#include "special.h"
#include "tiles.h"
#include "values.h"
#include "vector_math.h"

#ifdef LOMA_STANDALONE
#include "binding.h"
#endif

#endif  // LOMA_PRELUDE_H
