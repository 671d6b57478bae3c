// Arguments as generated code takes them: a pointer to each one's value.
#include "arguments.h"

#include "values.h"

#include <algorithm>
#include <cstring>

namespace loma {

namespace {

using Shape = const Py_ssize_t*;

void fill(Call& call, const Type& type, char* memory, Shape shape, Slice* slice);

// `count` elements of an array of arrays, in a buffer; `shape` is that of an element.
void fill_rows(Call& call, const Type& element, Py_ssize_t count, char* memory, Shape shape,
               Slice* rows) {
  std::size_t stride = element.leaf->words * sizeof(Word);
  for (int k = 0; k < element.rank; ++k) {
    stride *= static_cast<std::size_t>(shape[k]);
  }
  for (Py_ssize_t k = 0; k < count; ++k, memory += stride, rows += element.slices()) {
    if (element.size < 0) {
      fill(call, element, memory, shape, rows);
    } else {
      fill_rows(call, *element.element, element.size, memory, shape + 1, rows);
    }
  }
}

// A buffer of an array type.
void fill(Call& call, const Type& type, char* memory, Shape shape, Slice* slice) {
  slice->size = static_cast<int>(*shape);
  slice->data = memory;
  if (!type.is_block()) {
    auto* rows = call.arena.make<Slice>(static_cast<std::size_t>(*shape) * type.element->slices());
    slice->data = rows;
    fill_rows(call, *type.element, *shape, memory, shape + 1, rows);
  }
}

// The elements of a list of arrays.
void bind_rows(Call& call, const Place& place, const Type& element, PyObject* items, Role role,
               Slice* rows) {
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(items); ++k, rows += element.slices()) {
    const Place here = place.at(k);
    Slice whole{};
    bind_array(call, here, element, PyTuple_GET_ITEM(items, k), role, &whole);
    if (element.size < 0) {
      *rows = whole;
    } else {
      std::copy_n(static_cast<Slice*>(whole.data), element.slices(), rows);
    }
  }
}

// The memory of a buffer, or of a copy of it.
char* memory_of(Call& call, const Py_buffer& buffer, Role role) {
  if (role != Role::Copy) {
    return static_cast<char*>(buffer.buf);
  }
  const auto size = static_cast<std::size_t>(buffer.len);
  return static_cast<char*>(std::memcpy(call.arena.make<char>(size), buffer.buf, size));
}

// A number that is written stands in an array: Python's own numbers do not change.
void* bind_out_number(Call& call, const Place& place, const Type& type, PyObject* value) {
  const Py_buffer* buffer = view(call, place, value, type, true);
  if (buffer == nullptr) {
    call.fail(PyExc_TypeError, place,
              "is written, and a Python number cannot change: it must be a NumPy array or a torch "
              "tensor of one element, got " + describe(value));
  }
  if (buffer->len != sizeof(Word)) {
    call.fail(PyExc_ValueError, place, "must have one element, got " + describe(value));
  }
  return buffer->buf;
}

void* bind_items(Call& call, const Place& place, PyObject* value) {
  auto* count = call.arena.make<std::int32_t>();
  *count = to_int(call, place, value);
  if (*count < 0) {
    call.fail(PyExc_ValueError, place,
              "is the number of work items: it must not be negative, got " + std::to_string(*count));
  }
  return count;
}

}  // namespace

void bind_array(Call& call, const Place& place, const Type& type, PyObject* value, Role role,
                Slice* slice) {
  const bool written = role == Role::Out;
  PyObject* items = elements(call, place, value, written);
  if (items == nullptr) {
    if (type.leaf->open) {
      call.fail(PyExc_TypeError, place,
                "must be a list of objects, because " + type.leaf->text +
                    " has arrays of any size in it, got " + describe(value));
    }
    const Py_buffer* buffer = view_array(call, place, value, type, written);
    fill(call, type, memory_of(call, *buffer, role), buffer->shape, slice);
    return;
  }
  const auto count = static_cast<std::size_t>(PyTuple_GET_SIZE(items));
  check_size(call, place, type, PyTuple_GET_SIZE(items));
  slice->size = static_cast<int>(count);
  if (!type.is_block()) {
    auto* rows = call.arena.make<Slice>(count * type.element->slices());
    slice->data = rows;
    bind_rows(call, place, *type.element, items, role, rows);
    return;
  }
  auto* words = call.arena.make<Word>(count * type.element->words);
  slice->data = words;
  if (!load_elements(call, place, *type.element, value, items, words, role) && written) {
    call.fail(PyExc_TypeError, place,
              "is written, so it must be a NumPy array, a torch tensor or a list, got " +
                  describe(value));
  }
}

// An array as a slice, another value as words. Adjoints are bound here as well.
static void* bind_value(Call& call, const Place& place, const Type& type, PyObject* value,
                        Role role) {
  if (type.kind == Type::Kind::Array) {
    auto* slice = call.arena.make<Slice>();
    bind_array(call, place, type, value, role, slice);
    return slice;
  }
  auto* words = call.arena.make<Word>(type.words);
  load(call, place, type, value, words, role);
  return words;
}

void* bind(Call& call, const Parameter& parameter, PyObject* value) {
  const Place place{nullptr, &parameter.name, 0};
  const Type& type = *parameter.type;
  if (parameter.role == Role::Items) {
    return bind_items(call, place, value);
  }
  if (type.is_number() && parameter.role == Role::Out) {
    return bind_out_number(call, place, type, value);
  }
  return bind_value(call, place, type, value, parameter.role);
}

void* bind_adjoint(Call& call, const Parameter& parameter, PyObject* argument, PyObject** result) {
  const Type& type = *parameter.type;
  if (type.kind != Type::Kind::Array && !type.open) {
    *result = nullptr;
    return call.arena.make<Word>(type.words);
  }
  *result = call.keep(zeros_like(type, argument).release().ptr());
  return bind_value(call, {nullptr, &parameter.name, 0}, type, *result, Role::Out);
}

}  // namespace loma
