// Types of the scalar layer as a call needs them, and how the program writes them.
#ifndef LOMA_SCALAR_TYPES_H
#define LOMA_SCALAR_TYPES_H

// What is bound runs once, at import: optimising pybind11 would cost some seconds for nothing.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

namespace py = pybind11;

namespace loma {

// Every number has 32 bits, so a value is a row of words, without padding unless there are slices
// in it.
using Word = std::uint32_t;

// An array argument as generated code takes it.
struct Slice {
  void* data;
  int size;
};

struct Type;

struct Member {
  py::str name;
  std::string text;
  const Type* type;
  std::size_t offset;  // in words
};

struct Type {
  enum class Kind { Int, Float, Array, Struct };

  Kind kind = Kind::Int;
  std::string text;  // as the program writes it
  std::size_t words = 1;  // of a value; of an array of any size those of its slice
  std::size_t align = 1;  // in words
  bool sized = true;  // an array of known size, and of such arrays; every number and struct
  bool open = false;  // a value has arrays of any size in it
  // Arrays: the element, how many (-1: any), how many arrays stand inside each other, what is in
  // the innermost.
  const Type* element = nullptr;
  std::int64_t size = -1;
  int rank = 0;
  const Type* leaf = nullptr;
  // Structs: the Python class, the members in order, with arrays of any size as slices.
  py::object make;
  std::vector<Member> members;

  // An array of arrays of any size: how many slices stand for one value of it.
  std::size_t slices() const {
    return size < 0 ? 1 : static_cast<std::size_t>(size) * element->slices();
  }
  bool is_number() const { return kind == Kind::Int || kind == Kind::Float; }
  // Whether an array argument is one block of memory, and no array of arrays.
  bool is_block() const { return element->sized; }
};

// The types of a program. They live as long as it does.
class Types {
 public:
  // Parts come first. `members` are (name, description).
  void add_struct(const std::string& name, py::object make, const py::sequence& members);

  // From its description: ["int"], ["float"], ["array", element, size or None], ["struct", name].
  const Type* type(const py::sequence& description);

 private:
  const Type* add(Type type);

  std::deque<Type> types_;  // keeps its elements in place
  std::map<std::string, const Type*> structs_;
};

// Raises that Python error.
[[noreturn]] void raise(PyObject* kind, const std::string& text);

}  // namespace loma

#endif  // LOMA_SCALAR_TYPES_H
