// The first include of every generated file, so that it can be precompiled.
#ifndef LOMA_PRELUDE_H
#define LOMA_PRELUDE_H

#include "tables.h"

#include "kernels.h"

#ifndef LOMA_NO_PYTHON
// The binding runs once, at import: compiling pybind11 without optimisation saves a second a module.
#pragma GCC push_options
#pragma GCC optimize("O0")
#include <pybind11/pybind11.h>
#pragma GCC pop_options

namespace loma {
// Fills the Python module with `entry` and `set_derivative_hook`; see python.cpp.
void bind_module(pybind11::module_& python, const Module& module);
}  // namespace loma
#endif

#endif  // LOMA_PRELUDE_H
