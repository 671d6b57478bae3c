// The binding of a module for Python.
#ifndef LOMA_BINDING_H
#define LOMA_BINDING_H

#include "tables.h"

// What is bound runs once, at import. Without optimisation pybind11 takes as long to compile, and
// what every module has of it is two fifths larger.
#pragma GCC push_options
#pragma GCC optimize("O1")
#include <pybind11/pybind11.h>
#pragma GCC pop_options

namespace loma {

struct ModuleState;

// Fills the Python module with `entry`, `set_derivative_hook` and the probes; see python.cpp.
void bind_module(pybind11::module_& python, const Module& module);

// Parts of it; see tuning_python.cpp, gpu_python.cpp and specialise_python.cpp.
void bind_tuning(pybind11::module_& python);
void bind_gpu(pybind11::module_& python);
void bind_specialise(pybind11::module_& python, ModuleState& state);

}  // namespace loma

#endif  // LOMA_BINDING_H
