// How kernels for known sizes are asked for: loma/specialise.py.
#include "binding.h"
#include "call_device.h"
#include "gpu_kernels.h"
#include "operators.h"
#include "specialise.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/python_variable.h>

namespace loma {

namespace py = pybind11;

namespace {

// By hand, like all lists here: pybind11/stl.h takes a second to compile.
py::tuple tuple_of(const std::vector<int64_t>& slots) {
  py::tuple made(slots.size());
  for (size_t k = 0; k < slots.size(); ++k) made[k] = slots[k];
  return made;
}

std::vector<int64_t> numbers_of(const py::tuple& values) {
  std::vector<int64_t> made;
  for (const py::handle value : values) made.push_back(value.cast<int64_t>());
  return made;
}

at::ScalarType dtype_named(const std::string& name) {
  for (const auto dtype : {at::kDouble, at::kBFloat16, at::kHalf}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  return at::kFloat;
}

// None: a tensor that nobody wants.
py::object object_of(const at::Tensor& tensor) {
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
}

at::Tensor tensor_of(py::handle value) {
  return value.is_none() ? at::Tensor() : THPVariable_Unpack(value.ptr());
}

// Calls Python; the call of the function that led here hears nothing of what goes wrong.
template <class F>
void call_python(const F& call) {
  if (Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire gil;
  PyObject *type, *value, *trace;  // the caller's own error, should it be under way
  PyErr_Fetch(&type, &value, &trace);
  try {
    call();
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("loma's hook for kernels of known sizes");
  } catch (const std::exception&) {
    PyErr_Clear();
  }
  PyErr_Restore(type, value, trace);
}

// There is a kernel for these slots in the cache.
void add_known(const std::string& name, const py::tuple& slots, const std::string& dtype) {
  specialisations_of(name).add_known(numbers_of(slots), dtype_named(dtype));
}

// `search` may be None; `searches`: it looks for the CPU's kernels, too.
void set_hook(ModuleState& state, py::object hook, int limit, int calls, int64_t call_ns,
              int64_t total_ns, py::object search, bool searches) {
  // Never freed: a graph may outlive the interpreter's orderly end, and a call the policy's change.
  auto* kept = new py::object(std::move(hook));
  auto* policy = new SpecialisationPolicy{
      limit, calls, call_ns, total_ns,
      [kept](const std::string& name, const std::vector<int64_t>& slots, at::ScalarType dtype,
             bool now) {
        call_python([&] { (*kept)(name, tuple_of(slots), dtype_name(dtype), now); });
      },
      {}};
  if (!search.is_none()) {
    policy->searches = searches;
    auto* searched = new py::object(std::move(search));
    policy->search = [searched](const std::string& name, const std::vector<int64_t>& slots,
                                at::ScalarType dtype, int device, const Tensors& tensors,
                                const std::vector<int64_t>& ints, bool in_place, size_t results) {
      call_python([&] {
        py::tuple given(tensors.size());
        for (size_t k = 0; k < tensors.size(); ++k) given[k] = object_of(tensors[k]);
        (*searched)(name, tuple_of(slots), dtype_name(dtype), device, given, tuple_of(ints),
                    in_place, results);
      });
    };
  }
  state.specialisation = policy;
}

// Kernels as Python has them. None: there is no such kernel.
py::object capsule_of(Apart found) {
  if (found.kernel == nullptr) return py::none();
  return py::capsule(new Apart(std::move(found)), "loma kernel");  // never freed, like libraries
}

const Apart& apart_of(const py::capsule& capsule) { return *capsule.get_pointer<Apart>(); }

// Runs a kernel by itself, on any thread, in a call of that dtype that tries those numbers.
Tensors run(const py::capsule& capsule, const std::string& dtype, const py::tuple& tensors,
            const py::tuple& ints, bool in_place, size_t results, const py::tuple& tried) {
  const Apart& found = apart_of(capsule);
  TORCH_CHECK_VALUE(!is_narrow(dtype_named(dtype)) ||
                        found.narrow == specialisations_of(found.name).narrow.load(),
                    found.name, ": this kernel takes other tensors in ", dtype,
                    " than the general one, to which they come");
  Tensors given;
  at::Device device = at::kCPU;
  for (const py::handle tensor : tensors) {
    given.push_back(tensor_of(tensor));
    if (given.back().defined() && given.back().is_cuda()) device = given.back().device();
  }
  const std::vector<int64_t> numbers = numbers_of(ints), wanted = numbers_of(tried);
  const gpu::Trial trial({wanted.begin(), wanted.end()});
  const py::gil_scoped_release no_gil;
  const c10::DeviceGuard on_device(device);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const CallOn call_on(device, dtype_named(dtype));
  return call_kernel(found.kernel, given, numbers, in_place, results);
}

py::tuple run_apart(const py::capsule& capsule, const std::string& dtype, const py::tuple& tensors,
                    const py::tuple& ints, bool in_place, size_t results, const py::tuple& tried) {
  const Tensors made = run(capsule, dtype, tensors, ints, in_place, results, tried);
  py::tuple out(made.size());
  for (size_t k = 0; k < made.size(); ++k) out[k] = object_of(made[k]);
  return out;
}

// What it launches on a GPU.
py::tuple trace(const py::capsule& capsule, const std::string& dtype, const py::tuple& tensors,
                const py::tuple& ints, size_t results, const py::tuple& tried) {
  const gpu::Trace told;
  run(capsule, dtype, tensors, ints, false, results, tried);
  py::tuple out(told.launches.size());
  for (size_t k = 0; k < told.launches.size(); ++k) out[k] = told.launches[k];
  return out;
}

}  // namespace

void bind_specialise(py::module_& python, ModuleState& state) {
  python.def("set_specialise_hook", [&state](py::object hook, int limit, int calls, int64_t call_ns,
                                             int64_t total_ns, py::object search, bool searches) {
    set_hook(state, std::move(hook), limit, calls, call_ns, total_ns, std::move(search), searches);
  });
  python.def("add_known_kernel", add_known);
  // For the tuner: a kernel that is in use, one that is loaded without being used, a call of one,
  // and what puts it to use.
  python.def("find_kernel", [](const std::string& name, const py::tuple& slots,
                               const std::string& dtype, int device) {
    const Specialisations& own = specialisations_of(name);
    const Kernel kernel = own.find(numbers_of(slots), dtype_named(dtype), device);
    return capsule_of({name, kernel, own.narrow.load()});
  });
  python.def("load_kernel", [](const std::string& library) {
    return capsule_of(load_apart(library));
  });
  python.def("run_kernel", run_apart);
  python.def("trace_kernel", trace);
  python.def("use_kernel", [](const std::string& name, const py::tuple& slots,
                              const std::string& dtype, int device, const py::capsule& kernel) {
    specialisations_of(name).add(numbers_of(slots), dtype_named(dtype), apart_of(kernel).kernel,
                                 device);
  });
}

}  // namespace loma
