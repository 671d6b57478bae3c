#include "arguments.h"
#include "values.h"

#include <cstring>

namespace loma {

namespace {

using How = WriteBack::How;

PyObject* member_of(Call& call, const Place& place, const Type& type, const Member& member,
                    PyObject* value) {
  PyObject* found = PyObject_GetAttr(value, member.name.ptr());
  if (found != nullptr) {
    return found;
  }
  if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) {
    throw py::error_already_set();
  }
  PyErr_Clear();
  std::string names;
  for (const Member& other : type.members) {
    names += (names.empty() ? "" : ", ") + other.text;
  }
  call.fail(PyExc_TypeError, place,
            "must be an object with the attributes " + names + " (the struct " + type.text +
                "), got " + describe(value) + " without '" + member.text + "'");
}

// Fails where a member cannot be set, before anything runs: it gets the value that it has.
void check_settable(const Call& call, const Place& place, PyObject* value, const Member& member,
                    PyObject* part) {
  if (PyObject_SetAttr(value, member.name.ptr(), part) == 0) {
    return;
  }
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0) {
    throw py::error_already_set();
  }
  PyErr_Clear();
  call.fail(PyExc_TypeError, place,
            "is written, but '" + member.text + "' cannot be set, got " + describe(value));
}

bool load_struct(Call& call, const Place& place, const Type& type, PyObject* value, Word* words,
                 Role role) {
  const bool written = role == Role::Out;
  call.note(place, value, 1, written);
  for (const Member& member : type.members) {
    PyObject* part = call.keep(member_of(call, place, type, member, value));
    const Place here = place.of(member.text);
    Word* const at = words + member.offset;
    if (!load(call, here, *member.type, part, at, role) && written) {
      check_settable(call, place, value, member, part);
      call.write_backs.push_back(
          {How::Attribute, member.type, at, nullptr, value, member.name.ptr(), 0});
    }
  }
  return true;
}

bool load_array(Call& call, const Place& place, const Type& type, PyObject* value, Word* words,
                Role role) {
  const bool written = role == Role::Out;
  if (!type.sized) {  // in a struct
    Slice whole{};
    bind_array(call, place, type, value, role, &whole);
    const void* const slices = type.size < 0 ? static_cast<const void*>(&whole) : whole.data;
    std::memcpy(words, slices, type.slices() * sizeof(Slice));
    return true;
  }
  if (PyObject* items = elements(call, place, value, written)) {
    check_size(call, place, type, PyTuple_GET_SIZE(items));
    return load_elements(call, place, *type.element, value, items, words, role);
  }
  const Py_buffer* buffer = view_array(call, place, value, type, written);
  std::memcpy(words, buffer->buf, type.words * sizeof(Word));
  if (written) {
    call.write_backs.push_back({How::Copy, &type, words, buffer->buf, nullptr, nullptr, 0});
  }
  return true;
}

template <typename T>
bool load_number(T number, Word* words) {
  std::memcpy(words, &number, sizeof number);
  return false;
}

template <typename T>
T number_of(const Word* words) {
  T number;
  std::memcpy(&number, words, sizeof number);
  return number;
}

}  // namespace

PyObject* elements(Call& call, const Place& place, PyObject* value, bool written) {
  if (PyList_Check(value)) {
    call.note(place, value, 1, written);
  } else if (!PyTuple_Check(value)) {
    return nullptr;
  }
  // A copy: what elements do when they are asked for their numbers may change a list.
  return call.keep(PySequence_Tuple(value));
}

bool load_elements(Call& call, const Place& place, const Type& element, PyObject* value,
                   PyObject* items, Word* words, Role role) {
  const bool written = role == Role::Out;
  bool settled = true;
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(items); ++k, words += element.words) {
    PyObject* item = PyTuple_GET_ITEM(items, k);
    if (load(call, place.at(k), element, item, words, role) || !written) {
      continue;
    }
    if (PyList_Check(value)) {
      call.write_backs.push_back({How::Element, &element, words, nullptr, value, nullptr, k});
    } else {
      settled = false;
    }
  }
  return settled;
}

bool load(Call& call, const Place& place, const Type& type, PyObject* value, Word* words,
          Role role) {
  switch (type.kind) {
    case Type::Kind::Int:
      return load_number(to_int(call, place, value), words);
    case Type::Kind::Float:
      return load_number(to_float(call, place, value), words);
    case Type::Kind::Array:
      return load_array(call, place, type, value, words, role);
    case Type::Kind::Struct:
      return load_struct(call, place, type, value, words, role);
  }
  return false;
}

namespace {

py::object object_of(const Type& type, const Word* words) {
  auto* cls = reinterpret_cast<PyTypeObject*>(type.make.ptr());
  auto object = py::reinterpret_steal<py::object>(
      cls->tp_new(cls, py::tuple(0).ptr(), nullptr));  // without __init__: every member is set here
  if (!object) {
    throw py::error_already_set();
  }
  for (const Member& member : type.members) {
    const py::object value = to_python(*member.type, words + member.offset);
    if (PyObject_GenericSetAttr(object.ptr(), member.name.ptr(), value.ptr()) != 0) {
      throw py::error_already_set();
    }
  }
  return object;
}

py::object array_of(const Type& type, const Word* words) {
  if (type.leaf->kind == Type::Kind::Struct) {
    py::list list;
    for (std::int64_t k = 0; k < type.size; ++k, words += type.element->words) {
      list.append(to_python(*type.element, words));
    }
    return list;
  }
  py::object array = zeros(*type.leaf, sizes_of(&type));
  Py_buffer buffer;
  if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_WRITABLE) != 0) {
    throw py::error_already_set();
  }
  std::memcpy(buffer.buf, words, type.words * sizeof(Word));
  PyBuffer_Release(&buffer);
  return array;
}

}  // namespace

py::object to_python(const Type& type, const Word* words) {
  switch (type.kind) {
    case Type::Kind::Int:
      return py::int_(number_of<std::int32_t>(words));
    case Type::Kind::Float:
      return py::float_(number_of<float>(words));
    case Type::Kind::Array:
      return array_of(type, words);
    case Type::Kind::Struct:
      return object_of(type, words);
  }
  return py::none();
}

}  // namespace loma
