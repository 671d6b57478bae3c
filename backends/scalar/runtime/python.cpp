// The Python side: functions that Python calls, by the address of their entry.
#include "arguments.h"
#include "values.h"

#include <structmember.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace loma {

namespace {

// A callable. Its name, documentation and signature are in its __dict__.
struct Callable {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* dict;
  const Function* function;
};

std::string argument_names(const Function& f) {
  std::string names;
  for (const int position : f.passed) {
    names += (names.empty() ? "" : ", ") + f.parameters[position].name;
  }
  return names;
}

// Positional and keyword arguments in the order of the parameters that are passed. Borrowed.
void match_arguments(const Function& f, PyObject* const* args, std::size_t positional,
                     PyObject* keywords, PyObject** values) {
  const std::size_t count = f.passed.size();
  if (positional > count) {
    raise(PyExc_TypeError, f.name + "() takes " + std::to_string(count) +
                               (count == 1 ? " argument (" : " arguments (") + argument_names(f) +
                               "), got " + std::to_string(positional));
  }
  std::copy(args, args + positional, values);
  const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
  for (Py_ssize_t k = 0; k < named; ++k) {
    const auto name = py::handle(PyTuple_GET_ITEM(keywords, k)).cast<std::string>();
    std::size_t i = 0;
    while (i < count && f.parameters[f.passed[i]].name != name) {
      ++i;
    }
    if (i == count) {
      raise(PyExc_TypeError, f.name + "() has no argument '" + name +
                                 "'; its arguments are: " + argument_names(f));
    }
    if (values[i] != nullptr) {
      raise(PyExc_TypeError, f.name + "() got argument '" + name + "' twice");
    }
    values[i] = args[positional + static_cast<std::size_t>(k)];
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (values[i] == nullptr && !f.parameters[f.passed[i]].fallback.is_none()) {
      values[i] = f.parameters[f.passed[i]].fallback.ptr();
    }
    if (values[i] == nullptr) {
      raise(PyExc_TypeError, f.name + "() misses argument '" + f.parameters[f.passed[i]].name +
                                 "'; its arguments are: " + argument_names(f));
    }
  }
}

[[noreturn]] void raise_failure(const Function& f, const Failure& failure) {
  const py::object exception =
      f.exception(failure.kind, failure.function, failure.line, failure.first, failure.second);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw py::error_already_set();
}

void run(const Function& f, void* const* slots) {
  PyThreadState* const thread = PyEval_SaveThread();
  f.entry(slots);
  PyEval_RestoreThread(thread);
  Failure failure;
  if (f.take_failure != nullptr && f.take_failure(&failure) != 0) {
    raise_failure(f, failure);
  }
}

// Whether calls with tensors of the CPU are those of a GPU, for which a stand-in serves in tests.
bool& cpu_is_gpu() {
  static bool is = [] {
    const char* const device = std::getenv("LOMA_DEVICE");
    return device != nullptr && std::string(device) == "shim";
  }();
  return is;
}

bool is_on_gpu(PyObject* value) {
  return is_tensor(value) && (cpu_is_gpu() || py::getattr(value, "is_cuda").ptr() == Py_True);
}

py::object call_function(const Function& f, PyObject* const* args, std::size_t positional,
                        PyObject* keywords) {
  Call call(f);
  const std::size_t count = f.parameters.size();
  auto** values = call.arena.make<PyObject*>(f.passed.size());
  match_arguments(f, args, positional, keywords, values);
  if (!f.on_gpu.is_none() && std::any_of(values, values + f.passed.size(), is_on_gpu)) {
    py::tuple given(f.passed.size());
    for (std::size_t i = 0; i < f.passed.size(); ++i) {
      given[i] = py::reinterpret_borrow<py::object>(values[i]);
    }
    return f.on_gpu(*given);
  }
  auto** slots = call.arena.make<void*>(count + f.results.size());
  auto** adjoints = call.arena.make<PyObject*>(f.gives_adjoints ? count : 0);
  PyObject* const* next = values;
  for (std::size_t k = 0; k < count; ++k) {
    const Parameter& parameter = f.parameters[k];
    slots[k] = parameter.role == Role::Adjoint
                   ? bind_adjoint(call, parameter, next[-1], &adjoints[k])
                   : bind(call, parameter, *next++);
  }
  call.check_overlaps();
  for (std::size_t k = 0; k < f.results.size(); ++k) {
    slots[count + k] = call.arena.make<Word>(f.results[k]->words);
  }
  run(f, slots);
  call.write_back();
  // One result as itself, several as a tuple, adjoints always as a tuple.
  if (!f.gives_adjoints && f.results.size() < 2) {
    return f.results.empty() ? py::none()
                             : to_python(*f.results[0], static_cast<Word*>(slots[count]));
  }
  py::list results;
  for (std::size_t k = 0; k < count; ++k) {
    const Parameter& parameter = f.parameters[k];
    if (parameter.role == Role::Adjoint) {
      results.append(adjoints[k] != nullptr
                         ? py::reinterpret_borrow<py::object>(adjoints[k])
                         : to_python(*parameter.type, static_cast<Word*>(slots[k])));
    }
  }
  for (std::size_t k = 0; k < f.results.size(); ++k) {
    results.append(to_python(*f.results[k], static_cast<Word*>(slots[count + k])));
  }
  return py::tuple(results);
}

// ------------------------------------------------------------------------------- the callable

PyObject* vectorcall(PyObject* self, PyObject* const* args, std::size_t count, PyObject* keywords) {
  try {
    const Function& f = *reinterpret_cast<Callable*>(self)->function;
    const auto positional = static_cast<std::size_t>(PyVectorcall_NARGS(count));
    return call_function(f, args, positional, keywords).release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_SystemError, error.what());
  }
  return nullptr;
}

void destroy(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  auto* callable = reinterpret_cast<Callable*>(self);
  PyObject_GC_UnTrack(self);
  Py_CLEAR(callable->dict);
  delete callable->function;
  type->tp_free(self);
  Py_DECREF(type);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(reinterpret_cast<Callable*>(self)->dict);
  return 0;
}

int clear(PyObject* self) {
  Py_CLEAR(reinterpret_cast<Callable*>(self)->dict);
  return 0;
}

PyObject* represent(PyObject* self) {
  return PyUnicode_FromFormat("<loma function %s>",
                              reinterpret_cast<Callable*>(self)->function->name.c_str());
}

PyTypeObject* callable_type() {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(Callable, vectorcall), READONLY, nullptr},
      {"__dictoffset__", T_PYSSIZET, offsetof(Callable, dict), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr}};
  static PyGetSetDef properties[] = {
      {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
                                {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                                {Py_tp_clear, reinterpret_cast<void*>(clear)},
                                {Py_tp_repr, reinterpret_cast<void*>(represent)},
                                {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_members, members},
                                {Py_tp_getset, properties},
                                {0, nullptr}};
  static PyType_Spec spec = {"loma.ScalarFunction", sizeof(Callable), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                                 Py_TPFLAGS_DISALLOW_INSTANTIATION,
                             slots};
  static auto* type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return type;
}

// `parameters` are (name, type, role, default value or None); `entry` and `take_failure` are addresses.
py::object make_callable(const std::shared_ptr<Types>& types, const std::string& name,
                         const py::sequence& parameters, const py::sequence& results,
                         std::uintptr_t entry, std::uintptr_t take_failure, py::object exception,
                         py::object on_gpu) {
  static const std::map<std::string, Role> roles = {
      {"In", Role::In}, {"Out", Role::Out}, {"Adjoint", Role::Adjoint}, {"Copy", Role::Copy},
      {"Items", Role::Items}};
  auto function = std::make_unique<Function>();
  function->name = name;
  function->types = types;
  function->exception = std::move(exception);
  function->on_gpu = std::move(on_gpu);
  function->entry = reinterpret_cast<Entry>(entry);
  function->take_failure = reinterpret_cast<TakeFailure>(take_failure);
  for (const auto& item : parameters) {
    const auto row = py::reinterpret_borrow<py::sequence>(item);
    const Role role = roles.at(row[2].cast<std::string>());
    if (role == Role::Adjoint) {
      function->gives_adjoints = true;
    } else {
      function->passed.push_back(static_cast<int>(function->parameters.size()));
    }
    function->writes |= role == Role::Out;
    function->parameters.push_back({row[0].cast<std::string>(), types->type(row[1]), role,
                                    py::reinterpret_borrow<py::object>(row[3])});
  }
  for (const auto& result : results) {
    function->results.push_back(types->type(py::reinterpret_borrow<py::sequence>(result)));
  }
  auto* callable = PyObject_GC_New(Callable, callable_type());
  if (callable == nullptr) {
    throw py::error_already_set();
  }
  callable->vectorcall = vectorcall;
  callable->dict = nullptr;
  callable->function = function.release();
  PyObject_GC_Track(callable);
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(callable));
}

}  // namespace

PYBIND11_MODULE(loma_scalar, python) {
  python.attr("ScalarFunction") = py::handle(reinterpret_cast<PyObject*>(callable_type()));
  py::class_<Types, std::shared_ptr<Types>>(python, "Types", py::module_local())
      .def(py::init<>())
      .def("add_struct", &Types::add_struct);
  python.def("function", make_callable);
  python.def("serve_cpu_by_gpu", [](bool is) { cpu_is_gpu() = is; });
}

}  // namespace loma
