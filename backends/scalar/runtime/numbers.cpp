// Numbers that come as something else than Python's own.
#include "values.h"

#include <climits>

namespace loma {

namespace {

// 0-dimensional, and of a type that Python turns into a float or an int without a loss of meaning.
void check_tensor_number(const Call& call, const Place& place, PyObject* value) {
  const auto tensor = py::reinterpret_borrow<py::object>(value);
  check_not_nested(call, place, tensor);
  if (tensor.attr("dim")().cast<int>() != 0) {
    call.fail(PyExc_ValueError, place,
              "must be a number or a 0-dimensional tensor, got " + describe(value));
  }
  check_detached(call, place, tensor);
  if (tensor.attr("is_complex")().cast<bool>()) {
    call.fail(PyExc_TypeError, place, "must be a real number, got " + describe(value));
  }
}

// A NumPy scalar or a 0-dimensional array of real numbers. Whatever has no buffer passes.
bool is_real_number(PyObject* value) {
  if (!PyObject_CheckBuffer(value)) {
    return true;
  }
  Py_buffer buffer;
  if (PyObject_GetBuffer(value, &buffer, PyBUF_RECORDS_RO) != 0) {
    PyErr_Clear();
    return false;
  }
  const std::string format = buffer.format == nullptr ? "" : buffer.format;
  const bool is_real = buffer.ndim == 0 && !format.empty() &&
                       std::string("efdgbBhHiIlLqQ?").find(format.back()) != std::string::npos &&
                       format.find('Z') == std::string::npos && format.size() <= 2;
  PyBuffer_Release(&buffer);
  return is_real;
}

double slow_float(const Call& call, const Place& place, PyObject* value) {
  PyObject* number = nullptr;
  const PyNumberMethods* methods = Py_TYPE(value)->tp_as_number;
  if (PyLong_Check(value)) {
    number = Py_NewRef(value);
  } else if (is_tensor(value)) {
    check_tensor_number(call, place, value);
    number = PyNumber_Float(value);
  } else if (methods != nullptr && !PyComplex_Check(value) && is_real_number(value) &&
             (methods->nb_float != nullptr || methods->nb_index != nullptr)) {
    number = PyNumber_Float(value);
  } else {
    call.fail(PyExc_TypeError, place, "must be a number, got " + describe(value));
  }
  const double result = number == nullptr ? -1.0 : PyFloat_AsDouble(number);
  Py_XDECREF(number);
  if (result == -1.0 && PyErr_Occurred() != nullptr) {
    if (PyErr_ExceptionMatches(PyExc_OverflowError) == 0) {
      throw py::error_already_set();
    }
    PyErr_Clear();
    call.fail(PyExc_ValueError, place, "is too large for a float");
  }
  return result;
}

}  // namespace

float to_float(const Call& call, const Place& place, PyObject* value) {
  return static_cast<float>(PyFloat_Check(value) ? PyFloat_AS_DOUBLE(value)
                                                 : slow_float(call, place, value));
}

std::int32_t to_int(const Call& call, const Place& place, PyObject* value) {
  int overflow = 0;
  long long number;
  if (PyLong_Check(value)) {
    number = PyLong_AsLongLongAndOverflow(value, &overflow);
  } else {
    PyObject* index = PyIndex_Check(value) ? PyNumber_Index(value) : nullptr;
    if (index == nullptr) {
      PyErr_Clear();
      call.fail(PyExc_TypeError, place, "must be an int, got " + describe(value));
    }
    number = PyLong_AsLongLongAndOverflow(index, &overflow);
    Py_DECREF(index);
  }
  if (overflow != 0 || number < INT_MIN || number > INT_MAX) {
    call.fail(PyExc_ValueError, place, "does not fit in 32 bits");
  }
  return static_cast<std::int32_t>(number);
}

}  // namespace loma
