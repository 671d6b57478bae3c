// The Python side of a module: functions that a call reaches without the overhead of torch.ops.
#include "binding.h"
#include "memory.h"
#include "operators.h"
#include "timing.h"
#include "transforms.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/ScalarOps.h>
#include <ATen/ops/zeros_like.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

namespace py = pybind11;

namespace loma {

namespace {

// What a Python callable holds: its operator, and the Python function that takes over for tensor
// subclasses and under modes.
struct Entry {
  Operator* op;
  py::object fallback;
  bool gives_adjoints;
};

// As pybind11's gil_scoped_release, which looks at pybind11's own state of the process, too.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(thread_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* thread_;
};

constexpr const char* kCapsule = "loma.entry";
constexpr size_t kMaxArguments = 64;

std::string argument_names(const Operator& op) {
  std::string names;
  for (const int i : op.parameter_of) {
    names += (names.empty() ? "" : ", ") + std::string(op.function->parameters[i].name);
  }
  return names;
}

// Positional and keyword arguments, by position of the schema. Borrowed references.
void match_arguments(const Operator& op, PyObject* const* args, size_t positional,
                     PyObject* keywords, PyObject** slots) {
  const Function& f = *op.function;
  const size_t count = op.parameter_of.size();
  TORCH_CHECK_TYPE(positional <= count, f.display, "() takes ", count,
                   count == 1 ? " argument (" : " arguments (", argument_names(op), "), got ",
                   positional);
  std::copy(args, args + positional, slots);
  std::fill(slots + positional, slots + count, nullptr);
  const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
  for (Py_ssize_t k = 0; k < named; ++k) {
    PyObject* name = PyTuple_GET_ITEM(keywords, k);
    size_t i = 0;
    while (i < count && PyUnicode_CompareWithASCIIString(name, op.parameter(i).name) != 0 &&
           py::handle(name).cast<std::string>() != op.parameter(i).name) {
      ++i;
    }
    TORCH_CHECK_TYPE(i < count, f.display, "() has no argument '",
                     py::handle(name).cast<std::string>(), "'; its arguments are: ",
                     argument_names(op));
    TORCH_CHECK_TYPE(slots[i] == nullptr, f.display, "() got argument '", op.parameter(i).name,
                     "' twice");
    slots[i] = args[positional + k];
  }
  for (size_t i = 0; i < count; ++i) {
    TORCH_CHECK_TYPE(slots[i] != nullptr, f.display, "() misses argument '", op.parameter(i).name,
                     "'; its arguments are: ", argument_names(op));
  }
}

const char* type_name(PyObject* value) { return Py_TYPE(value)->tp_name; }

bool is_number(PyObject* value) {
  return (PyFloat_Check(value) || PyLong_Check(value)) && !PyBool_Check(value);
}

double as_double(PyObject* number) {
  const double value = PyFloat_AsDouble(number);
  if (value == -1.0 && PyErr_Occurred() != nullptr) throw python_error();
  return value;
}

// What to pass instead of numbers that are in no tensor.
std::string as_tensor_text(const Parameter& p, PyObject* value) {
  const bool is_data = PyList_Check(value) || PyTuple_Check(value) || is_number(value) ||
                       PyObject_HasAttrString(value, "__array__") != 0;
  return is_data ? c10::str("; pass torch.as_tensor(", p.name, ")") : "";
}

at::Tensor tensor_argument(const Operator& op, const Parameter& p, PyObject* value) {
  const Function& f = *op.function;
  TORCH_CHECK_TYPE(THPVariable_Check(value), argument_text(f, p), " must be a tensor, got ",
                   type_name(value), as_tensor_text(p, value));
  const at::Tensor& tensor = THPVariable_Unpack(value);
  TORCH_CHECK_VALUE(is_served(tensor.device().type()) || tensor.is_meta(), argument_text(f, p),
                    " is on ", tensor.device(), ", but must be on ", kServedNames, "; pass ", p.name,
                    ".cpu()");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, argument_text(f, p),
                    " must be a dense tensor, got layout ", tensor.layout(), "; pass ", p.name,
                    ".to_dense()");
  return tensor;
}

c10::IValue int_argument(const Function& f, const Parameter& p, PyObject* value) {
  TORCH_CHECK_TYPE(PyIndex_Check(value) && !THPVariable_Check(value), argument_text(f, p),
                   " must be an int, got ", type_name(value));
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value));
  const long long result = number ? PyLong_AsLongLong(number.ptr()) : -1;
  if (result == -1 && PyErr_Occurred() != nullptr) {
    const bool overflow = PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
    TORCH_CHECK_VALUE(!overflow || (PyErr_Clear(), false), argument_text(f, p),
                      " does not fit in 64 bits");
    throw python_error();
  }
  return static_cast<int64_t>(result);
}

at::Tensor float_argument(const Operator& op, const Parameter& p, PyObject* value,
                          at::ScalarType dtype) {
  const Function& f = *op.function;
  if (is_number(value)) {
    TORCH_CHECK_TYPE(p.role == Role::In, argument_text(f, p),
                     " is written, so it must be a 0-dimensional tensor, got ", type_name(value));
    return at::detail::scalar_tensor_static(as_double(value), dtype, at::kCPU);
  }
  TORCH_CHECK_TYPE(THPVariable_Check(value), argument_text(f, p),
                   " must be a number or a 0-dimensional tensor, got ", type_name(value));
  const at::Tensor tensor = tensor_argument(op, p, value);
  TORCH_CHECK_TYPE(tensor.is_floating_point(), argument_text(f, p),
                   " must be a floating-point number, got a tensor of dtype ",
                   tensor.scalar_type(), "; pass ", p.name, ".item() or ", p.name, ".float()");
  TORCH_CHECK_VALUE(tensor.dim() == 0, argument_text(f, p),
                    " must be a number or a 0-dimensional tensor, got shape ", tensor.sizes());
  return p.role == Role::In ? as_dtype(tensor, dtype) : tensor;
}

Stack convert(const Operator& op, PyObject* const* slots) {
  const Function& f = *op.function;
  const size_t count = op.parameter_of.size();
  Stack arguments(count);
  bool floats = false;
  for (size_t i = 0; i < count; ++i) {
    const Parameter& p = op.parameter(i);
    if (p.kind == Kind::Int) {
      arguments[i] = int_argument(f, p, slots[i]);
    } else if (p.kind != Kind::Float) {
      arguments[i] = tensor_argument(op, p, slots[i]);
    } else {
      floats = true;
      if (THPVariable_Check(slots[i])) {  // counts for the dtype of a call without tensors
        arguments[i] = THPVariable_Unpack(slots[i]);
      }
    }
  }
  if (floats) {
    const auto dtype = dtype_of_numbers(op, arguments);
    for (size_t i = 0; i < count; ++i) {
      const Parameter& p = op.parameter(i);
      if (p.kind == Kind::Float) {
        arguments[i] = float_argument(op, p, slots[i], dtype);
      }
    }
  }
  return arguments;
}

// One result as itself, several as a tuple, adjoints always as a tuple.
PyObject* wrap(Tensors results, bool as_tuple) {
  if (results.empty() && !as_tuple) {
    Py_RETURN_NONE;
  }
  if (results.size() == 1 && !as_tuple) return THPVariable_Wrap(std::move(results[0]));
  py::tuple tuple(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i),
                     THPVariable_Wrap(std::move(results[i])));
  }
  return tuple.release().ptr();
}

// Whether torch itself would look at the call first: a tensor subclass, or a function mode.
bool is_overridden(PyObject* const* slots, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (THPVariable_Check(slots[i]) && !THPVariable_CheckExact(slots[i])) return true;
  }
  return at::impl::torch_function_mode_enabled();
}

PyObject* call_entry(PyObject* self, PyObject* const* args, Py_ssize_t positional,
                     PyObject* keywords) {
  HANDLE_TH_ERRORS
  const auto* entry = static_cast<Entry*>(PyCapsule_GetPointer(self, kCapsule));
  Operator& op = *entry->op;
  PyObject* slots[kMaxArguments];
  match_arguments(op, args, static_cast<size_t>(positional), keywords, slots);
  const size_t count = op.parameter_of.size();
  if (is_overridden(slots, count)) {
    return PyObject_Vectorcall(entry->fallback.ptr(), slots, count, nullptr);
  }
  Stack arguments = convert(op, slots);
  Tensors results;
  {
    const WithoutGil without_gil;
    results = call_and_write(op, std::move(arguments));
  }
  return wrap(std::move(results), entry->gives_adjoints);
  END_HANDLE_TH_ERRORS
}

// One argument of a call over lists: a list or tuple of tensors, or a number.
void list_argument(const Operator& op, size_t i, PyObject* value, ListCall& call) {
  const Parameter& p = op.parameter(i);
  const char* name = op.function->display;
  const bool is_list = PyList_Check(value) || PyTuple_Check(value);
  if (p.kind == Kind::Float && !is_list) {
    if (is_number(value)) {
      call.numbers[i] = as_double(value);
      return;
    }
    TORCH_CHECK_TYPE(THPVariable_Check(value) && THPVariable_Unpack(value).numel() == 1, name,
                     ".each: argument '", p.name, "' must be a number, or a list or tuple of "
                     "tensors of one element, got ", type_name(value));
    call.numbers[i] = THPVariable_Unpack(value).item<double>();
    return;
  }
  TORCH_CHECK_TYPE(is_list, name, ".each: argument '", p.name,
                   "' must be a list or tuple of tensors, got ", type_name(value));
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(value);
  PyObject** items = PySequence_Fast_ITEMS(value);
  Tensors& list = call.lists[i];
  list.reserve(static_cast<size_t>(count));
  for (Py_ssize_t k = 0; k < count; ++k) {
    TORCH_CHECK_TYPE(THPVariable_Check(items[k]) && THPVariable_Unpack(items[k]).defined(), name,
                     ".each: '", p.name, "'[", k, "] must be a tensor, got ", type_name(items[k]));
    list.push_back(THPVariable_Unpack(items[k]));
  }
}

PyObject* call_each_entry(PyObject* self, PyObject* const* args, Py_ssize_t positional,
                          PyObject* keywords) {
  HANDLE_TH_ERRORS
  const auto* entry = static_cast<Entry*>(PyCapsule_GetPointer(self, kCapsule));
  const Operator& op = *entry->op;
  PyObject* slots[kMaxArguments];
  match_arguments(op, args, static_cast<size_t>(positional), keywords, slots);
  const size_t count = op.parameter_of.size();
  ListCall call{std::vector<Tensors>(count), std::vector<std::optional<double>>(count)};
  for (size_t i = 0; i < count; ++i) {
    list_argument(op, i, slots[i], call);
  }
  {
    const WithoutGil without_gil;
    call_each(op, std::move(call));
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef each_definition = {
    "each", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call_each_entry)),
    METH_FASTCALL | METH_KEYWORDS, nullptr};

PyMethodDef entry_definition = {
    "entry", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call_entry)),
    METH_FASTCALL | METH_KEYWORDS, nullptr};

py::object make_function(PyMethodDef& definition, Operator& op, py::object fallback) {
  const bool adjoints = op.parameter_of.size() != op.argument_of.size();
  const py::capsule capsule(new Entry{&op, std::move(fallback), adjoints}, kCapsule,
                            [](PyObject* object) {
    delete static_cast<Entry*>(PyCapsule_GetPointer(object, kCapsule));
  });
  return py::reinterpret_steal<py::object>(PyCFunction_NewEx(&definition, capsule.ptr(), nullptr));
}

py::object make_entry(ModuleState& state, const std::string& name, py::object fallback) {
  Operator& op = operator_named(state, name);
  TORCH_CHECK_VALUE(op.parameter_of.size() <= kMaxArguments, op.function->display,
                    ": more than ", kMaxArguments, " arguments");
  return make_function(entry_definition, op, std::move(fallback));
}

// None for a function that takes no lists.
py::object make_each(ModuleState& state, const std::string& name) {
  Operator& op = operator_named(state, name);
  if (!takes_lists(op) || op.parameter_of.size() > kMaxArguments) return py::none();
  return make_function(each_definition, op, py::none());
}

// Zeros with the shape, strides and dtype of a tensor, from the pool.
py::object zeros_like(py::handle tensor) {
  TORCH_CHECK_TYPE(THPVariable_Check(tensor.ptr()), "zeros_like takes a tensor, got ",
                   type_name(tensor.ptr()));
  const at::Tensor& like = THPVariable_Unpack(tensor.ptr());
  const PoolScope pool;
  const at::NoGradGuard without_gradient;
  return py::reinterpret_steal<py::object>(
      THPVariable_Wrap(at::zeros_like(like, {}, at::MemoryFormat::Preserve)));
}

// Calls a hook that compiles. It is never freed: a graph may outlive the interpreter's orderly end.
template <class Result, class... Given>
Result call_hook(const py::object& hook, const Given&... given) {
  const py::gil_scoped_acquire gil;
  try {
    return hook(given...).template cast<Result>();
  } catch (py::error_already_set& error) {  // as torch's engine carries Python's errors
    error.restore();
    python_error carried;
    carried.persist();
    throw carried;
  }
}

void set_made_hook(ModuleState& state, py::object hook) {
  auto* kept = new py::object(std::move(hook));
  state.made = [kept](const std::string& kind, const std::string& function,
                      const std::vector<int>& positions) {
    return reinterpret_cast<Operator*>(call_hook<uintptr_t>(*kept, kind, function, positions));
  };
}

void set_kernel_hook(ModuleState& state, py::object hook) {
  auto* kept = new py::object(std::move(hook));
  state.kernels = [kept](const std::string& function, bool is_double, bool on_gpu) {
    call_hook<std::string>(*kept, function, is_double, on_gpu);
  };
}

int64_t current_level() {
  const py::gil_scoped_acquire gil;
  static const auto* ask =
      new py::object(py::module_::import("torch._C._functorch").attr("maybe_current_level"));
  return (*ask)().cast<int64_t>();
}

// What the probes have counted, in the order of loma.tools.bench.Unit's fields.
py::list read_probes(const Module& module) {
  py::list rows;
  for (size_t k = 0; k < module.probe_count; ++k) {
    const Probe& p = module.probes[k];
    rows.append(py::make_tuple(p.function, p.line, p.text, p.count.load(), p.nanoseconds.load(),
                               p.page_faults.load(), p.bytes.load(), p.flops.load()));
  }
  return rows;
}

void reset_probes(const Module& module) {
  for (size_t k = 0; k < module.probe_count; ++k) {
    Probe& p = module.probes[k];
    p.count = p.nanoseconds = p.page_faults = p.bytes = p.flops = 0;
  }
}

}  // namespace

void bind_module(py::module_& python, const Module& module) {
  ModuleState* state = &state_of(module);
  level_of_vmap = current_level;
  python.attr("namespace") = module.name_space;
  python.def("entry", [state](const std::string& name, py::object fallback) {
    return make_entry(*state, name, std::move(fallback));
  });
  python.def("each", [state](const std::string& name) { return make_each(*state, name); });
  python.def("overload", [state](const std::string& name) {
    return operator_named(*state, name).overload;
  });
  python.def("zeros_like", zeros_like);
  bind_tuning(python);
  bind_specialise(python, *state);
  bind_gpu(python);
  python.def("address", [state](const std::string& name) {
    return reinterpret_cast<uintptr_t>(&operator_named(*state, name));
  });
  python.def("set_made_hook", [state](py::object hook) { set_made_hook(*state, std::move(hook)); });
  python.def("set_kernel_hook",
             [state](py::object hook) { set_kernel_hook(*state, std::move(hook)); });
  python.def("probes", [state] { return read_probes(*state->module); });
  python.def("reset_probes", [state] { reset_probes(*state->module); });
}

}  // namespace loma

#ifndef LOMA_STANDALONE
// Compiled once for all modules: the linker gives these two symbols their meaning in each.
extern "C" __attribute__((visibility("hidden"))) const loma::Module loma_this_module;

PYBIND11_MODULE(loma_module, python) { loma::bind_module(python, loma_this_module); }
#endif
