// Arguments as generated code takes them.
#ifndef LOMA_SCALAR_ARGUMENTS_H
#define LOMA_SCALAR_ARGUMENTS_H

#include "call.h"

namespace loma {

// A pointer to the argument's value: a number, a struct, or a Slice. Everything is checked but
// whether arguments share memory.
void* bind(Call& call, const Parameter& parameter, PyObject* value);

// As `bind`, for the adjoint of `argument`. `result` is the object that it is added to, which the
// call keeps; null where only the words have it.
void* bind_adjoint(Call& call, const Parameter& parameter, PyObject* argument, PyObject** result);

// The slice of an array; what a struct has for an array of any size.
void bind_array(Call& call, const Place& place, const Type& type, PyObject* value, Role role,
                Slice* slice);

}  // namespace loma

#endif  // LOMA_SCALAR_ARGUMENTS_H
