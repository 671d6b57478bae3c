// Between Python objects and the words of a value.
#ifndef LOMA_SCALAR_VALUES_H
#define LOMA_SCALAR_VALUES_H

#include "call.h"

namespace loma {

// Numbers. TypeError and ValueError name the place.
float to_float(const Call& call, const Place& place, PyObject* value);
std::int32_t to_int(const Call& call, const Place& place, PyObject* value);

// The value as words, zero before. For Role::Out the call learns what to write back; returns whether
// that reaches all of `value`, or else its owner has to replace it (a number, a tuple).
bool load(Call& call, const Place& place, const Type& type, PyObject* value, Word* words,
          Role role);

// The elements of `value`, a list or a tuple, as `load`. `items` are they as a tuple; the caller has
// checked how many there are.
bool load_elements(Call& call, const Place& place, const Type& element, PyObject* value,
                   PyObject* items, Word* words, Role role);

// A list or a tuple as a tuple that the call keeps; null for another object.
PyObject* elements(Call& call, const Place& place, PyObject* value, bool written);

// A new Python object: float, int, an object of the struct's class, a NumPy array, or a list where
// the innermost elements are structs.
py::object to_python(const Type& type, const Word* words);

// "float", "a list of 3", "an array of float64 and shape (3, 2)".
std::string describe(PyObject* value);

// ------------------------------------------------------------------------------------- arrays

// The memory of a NumPy array, another object with a buffer, or a torch tensor; null for an object
// that is none of these. Checks all but the shape; the call holds it.
const Py_buffer* view(Call& call, const Place& place, PyObject* value, const Type& leaf,
                      bool written);

// The same for an array, with its shape; TypeError for an object that is none of these.
const Py_buffer* view_array(Call& call, const Place& place, PyObject* value, const Type& type,
                            bool written);

// ValueError unless there are as many elements as the type says, and no more than an int counts.
void check_size(const Call& call, const Place& place, const Type& type, Py_ssize_t size);

// Zeros of that type, in a new array of that shape.
py::object zeros(const Type& leaf, const py::object& shape);

// The sizes of arrays inside each other.
py::list sizes_of(const Type* type);

// What an adjoint of that argument is added to: a tensor for a tensor, an array for an array or
// numbers, objects for objects.
py::object zeros_like(const Type& type, PyObject* argument);

bool is_tensor(PyObject* value);

// TypeError for a nested tensor, which has no shape that could be asked for.
void check_not_nested(const Call& call, const Place& place, const py::object& tensor);

// TypeError for a tensor that requires grad.
void check_detached(const Call& call, const Place& place, const py::object& tensor);

}  // namespace loma

#endif  // LOMA_SCALAR_VALUES_H
