// The binding of a module for Python.
#ifndef LOMA_BINDING_H
#define LOMA_BINDING_H

#include "tables.h"

#include <pybind11/pybind11.h>

namespace loma {

// Fills the Python module with `entry` and `set_derivative_hook`; see python.cpp.
void bind_module(pybind11::module_& python, const Module& module);

}  // namespace loma

#endif  // LOMA_BINDING_H
