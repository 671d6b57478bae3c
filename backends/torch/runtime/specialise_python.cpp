// How kernels for known sizes are asked for: loma/specialise.py.
#include "binding.h"
#include "operators.h"
#include "specialise.h"

#include <pybind11/stl.h>

namespace loma {

namespace py = pybind11;

namespace {

// Calls the hook; the call of the function that led here hears nothing of what goes wrong.
void ask(const py::object& hook, const std::string& name, const std::vector<int64_t>& slots,
         bool is_double, bool now) {
  if (Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire gil;
  PyObject *type, *value, *trace;  // the caller's own error, should it be under way
  PyErr_Fetch(&type, &value, &trace);
  try {
    hook(name, slots, is_double, now);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("loma's hook for kernels of known sizes");
  } catch (const std::exception&) {
    PyErr_Clear();
  }
  PyErr_Restore(type, value, trace);
}

using Known = std::tuple<std::string, std::vector<int64_t>, bool>;  // operator, slots, is_double

void set_hook(ModuleState& state, py::object hook, int limit, int calls, int64_t call_ns,
              int64_t total_ns, const std::vector<Known>& known) {
  for (const auto& [name, slots, is_double] : known) {
    specialisations_of(name).add_known(slots, is_double);
  }
  // Never freed: a graph may outlive the interpreter's orderly end, and a call the policy's change.
  auto* kept = new py::object(std::move(hook));
  state.specialisation = new SpecialisationPolicy{
      limit, calls, call_ns, total_ns,
      [kept](const std::string& name, const std::vector<int64_t>& slots, bool is_double,
             bool now) { ask(*kept, name, slots, is_double, now); }};
}

}  // namespace

void bind_specialise(py::module_& python, ModuleState& state) {
  python.def("set_specialise_hook",
             [&state](py::object hook, int limit, int calls, int64_t call_ns, int64_t total_ns,
                      const std::vector<Known>& known) {
               set_hook(state, std::move(hook), limit, calls, call_ns, total_ns, known);
             });
}

}  // namespace loma
