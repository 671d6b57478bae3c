// The binding of a module for Python.
#ifndef LOMA_BINDING_H
#define LOMA_BINDING_H

#include "tables.h"

// What is bound runs once, at import: optimising pybind11 would cost some seconds for nothing.
#pragma GCC push_options
#pragma GCC optimize("O0")
#include <pybind11/pybind11.h>
#pragma GCC pop_options

namespace loma {

// Fills the Python module with `entry` and `set_derivative_hook`; see python.cpp.
void bind_module(pybind11::module_& python, const Module& module);

}  // namespace loma

#endif  // LOMA_BINDING_H
