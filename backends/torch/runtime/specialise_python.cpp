// How kernels for known sizes are asked for: loma/specialise.py.
#include "binding.h"
#include "operators.h"
#include "specialise.h"

namespace loma {

namespace py = pybind11;

namespace {

// By hand, like all lists here: pybind11/stl.h takes a second to compile.
py::tuple tuple_of(const std::vector<int64_t>& slots) {
  py::tuple made(slots.size());
  for (size_t k = 0; k < slots.size(); ++k) made[k] = slots[k];
  return made;
}

// Calls the hook; the call of the function that led here hears nothing of what goes wrong.
void ask(const py::object& hook, const std::string& name, const std::vector<int64_t>& slots,
         bool is_double, bool now) {
  if (Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire gil;
  PyObject *type, *value, *trace;  // the caller's own error, should it be under way
  PyErr_Fetch(&type, &value, &trace);
  try {
    hook(name, tuple_of(slots), is_double, now);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("loma's hook for kernels of known sizes");
  } catch (const std::exception&) {
    PyErr_Clear();
  }
  PyErr_Restore(type, value, trace);
}

// There is a kernel for these slots in the cache.
void add_known(const std::string& name, const py::tuple& slots, bool is_double) {
  std::vector<int64_t> values;
  for (const py::handle slot : slots) values.push_back(slot.cast<int64_t>());
  specialisations_of(name).add_known(values, is_double);
}

void set_hook(ModuleState& state, py::object hook, int limit, int calls, int64_t call_ns,
              int64_t total_ns) {
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
             [&state](py::object hook, int limit, int calls, int64_t call_ns, int64_t total_ns) {
               set_hook(state, std::move(hook), limit, calls, call_ns, total_ns);
             });
  python.def("add_known_kernel", add_known);
}

}  // namespace loma
