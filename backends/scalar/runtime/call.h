// One call of a function: its memory, what it holds on to, and what is written back after it.
#ifndef LOMA_SCALAR_CALL_H
#define LOMA_SCALAR_CALL_H

#include "types.h"

#include <cstddef>
#include <memory>

namespace loma {

enum class Role {
  In,
  Out,
  Adjoint,  // an Out argument that starts at zero and comes back as a result; it belongs to the
            // argument before it
  Copy,     // an array that the function changes, and the caller's stays as it is
  Items,    // how many work items a @simd function has
};

struct Parameter {
  std::string name;
  const Type* type;
  Role role;
  py::object fallback;  // what a call that leaves it out passes, or None
};

// What went wrong inside generated code, as that has it; the kinds are those of
// loma.runtime_errors.
struct Failure {
  int kind;  // 0: nothing
  const char* function;
  int line;
  int first;
  int second;
};

// A generated function: pointers to its arguments, then to its results.
using Entry = void (*)(void* const* slots);
// Of a generated file: takes the failure of this thread's last call; its kind.
using TakeFailure = int (*)(Failure* failure);

struct Function {
  std::string name;
  std::vector<Parameter> parameters;
  std::vector<int> passed;  // positions of the parameters that a caller passes
  std::vector<const Type*> results;
  Entry entry = nullptr;
  TakeFailure take_failure = nullptr;  // null where nothing can fail
  bool writes = false;  // an Out argument that is passed
  bool gives_adjoints = false;
  py::object exception;  // makes a Python exception of a failure
  py::object on_gpu;     // None, or runs the function where tensors of the call are
  std::shared_ptr<Types> types;
};

// Where a value stands: an argument, or an element or a member of another place.
struct Place {
  const Place* outer;
  const std::string* name;  // null: an element
  Py_ssize_t index;

  Place of(const std::string& member) const { return {this, &member, 0}; }
  Place at(Py_ssize_t element) const { return {this, nullptr, element}; }
  std::string text() const;  // rays[2].origin
  const std::string& argument() const { return outer == nullptr ? *name : outer->argument(); }
};

// Memory that is freed all at once; zero at first.
class Arena {
 public:
  template <typename T>
  T* make(std::size_t count = 1) {
    return static_cast<T*>(bytes(sizeof(T) * count));
  }

 private:
  void* bytes(std::size_t size);

  alignas(16) char small_[768];
  std::size_t used_ = 0;
  std::vector<std::unique_ptr<std::max_align_t[]>> large_;
};

// After the call `words` are the new value of what a Python object has there.
struct WriteBack {
  enum class How { Copy, Attribute, Element };
  How how;
  const Type* type;
  const Word* words;
  void* memory;      // Copy: of an array's buffer
  PyObject* owner;   // Attribute, Element: borrowed from what the call keeps
  PyObject* name;
  Py_ssize_t index;
};

class Call {
 public:
  explicit Call(const Function& function) : function(function) {}
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  [[noreturn]] void fail(PyObject* kind, const Place& place, const std::string& text) const;

  // Holds on to the object until the end of the call; takes over the reference.
  PyObject* keep(PyObject* object);

  // Notes memory of an argument. Objects count as one byte at their address.
  void note(const Place& place, const void* begin, std::size_t size, bool written);
  // ValueError when memory that is written belongs to another argument, too.
  void check_overlaps();

  void write_back();

  const Function& function;
  Arena arena;
  std::vector<Py_buffer*> buffers;  // released at the end
  std::vector<WriteBack> write_backs;

 private:
  struct Range {
    const char* begin;
    const char* end;
    const std::string* argument;
    bool written;
  };

  [[noreturn]] void fail_overlap(const Range& first, const Range& second) const;

  std::vector<PyObject*> kept_;
  std::vector<Range> ranges_;
};

}  // namespace loma

#endif  // LOMA_SCALAR_CALL_H
