// NumPy arrays, torch tensors and other buffers, without the headers of either library.
#include "values.h"

#include <climits>

namespace loma {

namespace {

PyTypeObject* tensor_type() {
  static PyTypeObject* type = nullptr;  // under the GIL; torch stays imported
  if (type == nullptr) {
    // Nothing is imported for a look.
    const py::handle torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
    if (torch && py::hasattr(torch, "Tensor")) {
      type = reinterpret_cast<PyTypeObject*>(py::object(torch.attr("Tensor")).release().ptr());
    }
  }
  return type;
}

std::string expected_dtype(const Type& leaf) {
  return leaf.kind == Type::Kind::Int     ? "int32"
         : leaf.kind == Type::Kind::Float ? "float32"
                                          : "of the structure " + leaf.text;
}

py::object dtype_of(const Type& leaf) {
  if (leaf.kind == Type::Kind::Struct) {
    return leaf.make.attr("dtype");
  }
  return py::module_::import("numpy").attr("dtype")(expected_dtype(leaf));
}

std::string text_of(const py::handle& value) { return py::str(value).cast<std::string>(); }

bool has_dtype(const Py_buffer& buffer, PyObject* value, const Type& leaf) {
  if (leaf.kind == Type::Kind::Struct) {
    return py::hasattr(value, "dtype") && dtype_of(leaf).equal(py::getattr(value, "dtype"));
  }
  std::string format = buffer.format == nullptr ? "B" : buffer.format;
  constexpr char native[] = {'@', '=', __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? '<' : '>', '\0'};
  if (format.size() == 2 && std::string(native).find(format[0]) != std::string::npos) {
    format.erase(0, 1);
  }
  const char* wanted = leaf.kind == Type::Kind::Int ? "il" : "f";
  return buffer.itemsize == sizeof(Word) && format.size() == 1 &&
         std::string(wanted).find(format) != std::string::npos;
}

// The tensor's memory as a NumPy array.
PyObject* array_of_tensor(const Call& call, const Place& place, PyObject* value, const Type& leaf) {
  const auto tensor = py::reinterpret_borrow<py::object>(value);
  check_not_nested(call, place, tensor);
  check_detached(call, place, tensor);
  const auto device = text_of(tensor.attr("device"));
  if (device != "cpu") {
    call.fail(PyExc_ValueError, place, "must be on the CPU, got a tensor on " + device);
  }
  const auto layout = text_of(tensor.attr("layout"));
  if (layout != "torch.strided") {
    call.fail(PyExc_ValueError, place, "must be a dense tensor, got layout " + layout);
  }
  if (tensor.attr("is_neg")().cast<bool>()) {
    call.fail(PyExc_ValueError, place,
              "is a view whose numbers are negated when they are read: pass resolve_neg() of it");
  }
  PyObject* array = PyObject_CallMethod(value, "numpy", nullptr);
  if (array == nullptr) {  // a dtype that NumPy lacks, or a tensor without memory of its own
    PyErr_Clear();
    const bool is_right = text_of(tensor.attr("dtype")) == "torch." + expected_dtype(leaf);
    call.fail(PyExc_TypeError, place,
              is_right ? "has no memory that can be shared (numpy() of it fails), got " + describe(value)
                       : "must be " + expected_dtype(leaf) + ", got " + describe(value));
  }
  return array;
}

std::string shape_text(const Py_buffer& buffer) {
  py::tuple shape(buffer.ndim);
  for (int k = 0; k < buffer.ndim; ++k) {
    shape[k] = buffer.shape[k];
  }
  return text_of(shape);
}

// ValueError unless the shape is that of the array type.
void check_shape(const Call& call, const Place& place, const Type& type, const Py_buffer& buffer) {
  bool fits = buffer.ndim == type.rank;
  const Type* part = &type;
  for (int k = 0; fits && k < type.rank; ++k, part = part->element) {
    fits = part->size < 0 || part->size == buffer.shape[k];
  }
  if (!fits) {
    call.fail(PyExc_ValueError, place,
              "must be " + type.text + ", got an array of shape " + shape_text(buffer));
  }
  for (int k = 0; k < type.rank; ++k) {
    if (buffer.shape[k] > INT_MAX) {
      call.fail(PyExc_ValueError, place, "has more elements than an int counts");
    }
  }
}

}  // namespace

void check_not_nested(const Call& call, const Place& place, const py::object& tensor) {
  if (tensor.attr("is_nested").cast<bool>()) {
    call.fail(PyExc_TypeError, place, "must be a dense tensor, got a nested tensor");
  }
}

void check_detached(const Call& call, const Place& place, const py::object& tensor) {
  if (tensor.attr("requires_grad").cast<bool>()) {
    call.fail(PyExc_TypeError, place,
              "requires grad, but a scalar function takes no part in autograd: pass detach() of "
              "it, and call the function's derivative for gradients");
  }
}

bool is_tensor(PyObject* value) {
  PyTypeObject* type = tensor_type();
  return type != nullptr && PyObject_TypeCheck(value, type);
}

std::string describe(PyObject* value) {
  const std::string name = Py_TYPE(value)->tp_name;
  const py::handle object(value);
  if (PyList_Check(value) || PyTuple_Check(value)) {
    return "a " + name + " of " + std::to_string(PySequence_Size(value));
  }
  const bool is_torch = is_tensor(value);
  if (is_torch && object.attr("is_nested").cast<bool>()) {
    return "a nested tensor";
  }
  if (is_torch || name == "numpy.ndarray") {
    const auto shape = py::reinterpret_steal<py::object>(PySequence_Tuple(object.attr("shape").ptr()));
    return (is_torch ? "a tensor of " : "an array of ") + text_of(object.attr("dtype")) +
           " and shape " + text_of(shape);
  }
  return name;
}

const Py_buffer* view(Call& call, const Place& place, PyObject* value, const Type& leaf,
                      bool written) {
  PyObject* source = value;
  if (is_tensor(value)) {
    source = call.keep(array_of_tensor(call, place, value, leaf));
  } else if (!PyObject_CheckBuffer(value)) {
    return nullptr;
  }
  auto* buffer = call.arena.make<Py_buffer>();
  const bool has_buffer = PyObject_GetBuffer(source, buffer, PyBUF_RECORDS_RO) == 0;
  if (has_buffer) {
    call.buffers.push_back(buffer);
  } else {
    PyErr_Clear();
  }
  if (!has_buffer || !has_dtype(*buffer, source, leaf)) {
    call.fail(PyExc_TypeError, place, "must be " + expected_dtype(leaf) + ", got " + describe(value));
  }
  if (PyBuffer_IsContiguous(buffer, 'C') == 0) {
    call.fail(PyExc_ValueError, place, "must be contiguous, got strides");
  }
  if (reinterpret_cast<std::uintptr_t>(buffer->buf) % alignof(Word) != 0) {
    call.fail(PyExc_ValueError, place, "must be aligned in memory");
  }
  if (written && buffer->readonly != 0) {
    call.fail(PyExc_ValueError, place, "is written, but the array is read-only");
  }
  call.note(place, buffer->buf, static_cast<std::size_t>(buffer->len), written);
  return buffer;
}

void check_size(const Call& call, const Place& place, const Type& type, Py_ssize_t size) {
  if (type.size >= 0 && size != type.size) {
    call.fail(PyExc_ValueError, place,
              "must be " + type.text + ", got " + std::to_string(size) + " elements");
  }
  if (size > INT_MAX) {
    call.fail(PyExc_ValueError, place, "has more elements than an int counts");
  }
}

const Py_buffer* view_array(Call& call, const Place& place, PyObject* value, const Type& type,
                            bool written) {
  const Py_buffer* buffer = view(call, place, value, *type.leaf, written);
  if (buffer == nullptr) {
    call.fail(PyExc_TypeError, place,
              "must be " + type.text + ", a NumPy array, a torch tensor or a list, got " +
                  describe(value));
  }
  check_shape(call, place, type, *buffer);
  return buffer;
}

py::object zeros(const Type& leaf, const py::object& shape) {
  return py::module_::import("numpy").attr("zeros")(shape, dtype_of(leaf));
}

py::list sizes_of(const Type* type) {
  py::list sizes;
  for (; type->kind == Type::Kind::Array; type = type->element) {
    sizes.append(type->size);
  }
  return sizes;
}

namespace {

// A struct with arrays of the sizes that those of `argument` have.
py::object zero_struct(const Type& type, PyObject* argument) {
  py::object object = type.make();
  for (const Member& member : type.members) {
    if (member.type->open) {
      py::setattr(object, member.name,
                  zeros_like(*member.type, py::getattr(argument, member.name).ptr()));
    }
  }
  return object;
}

}  // namespace

py::object zeros_like(const Type& type, PyObject* argument) {
  if (type.kind == Type::Kind::Struct && type.open) {
    return zero_struct(type, argument);
  }
  if (is_tensor(argument)) {
    return py::module_::import("torch").attr("zeros_like")(py::handle(argument));
  }
  if (type.kind == Type::Kind::Array && !PyList_Check(argument) && !PyTuple_Check(argument)) {
    return zeros(*type.leaf, py::module_::import("numpy").attr("shape")(py::handle(argument)));
  }
  if (type.sized && !type.open) {
    const std::vector<Word> nothing(type.words);
    return to_python(type, nothing.data());
  }
  const Py_ssize_t count = PySequence_Size(argument);
  if (type.leaf->is_number() && type.is_block()) {
    py::list shape = sizes_of(type.element);
    shape.insert(0, count);
    return zeros(*type.leaf, shape);
  }
  py::list list;
  for (Py_ssize_t k = 0; k < count; ++k) {
    const auto item = py::reinterpret_steal<py::object>(PySequence_GetItem(argument, k));
    list.append(zeros_like(*type.element, item.ptr()));
  }
  return list;
}

}  // namespace loma
