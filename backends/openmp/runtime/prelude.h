// The first include of every generated file whose loops run on CPUs and which calls ATen's operators,
// so that it can be precompiled. Files that call none have light_prelude.h.
//
// pybind11 is not part of it: its headers cost every file that includes them some seconds. The
// binding of all modules is compiled once, in python.cpp, and linked to each. A generated file that
// is compiled with LOMA_STANDALONE binds itself.
#ifndef LOMA_PRELUDE_H
#define LOMA_PRELUDE_H

#include "loops.h"
#include "kernels.h"
#include "scan.h"

namespace loma {

using at::Tensor;

}  // namespace loma

#ifdef LOMA_STANDALONE
#include "binding.h"
#endif

#endif  // LOMA_PRELUDE_H
