// What a generated module tells the runtime about its functions: constant tables, no code but the
// sizes. The runtime (dispatch.cpp, autograd.cpp, python.cpp) is compiled once and works from them,
// so that a module's own C++ file instantiates no template of the dispatcher or of Python. Nor does
// this header have any of torch's: these cost every file that includes them half a second.
// Guards instead of #pragma once: the precompiled copy lies in another folder.
#ifndef LOMA_TABLES_H
#define LOMA_TABLES_H

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace c10 {
enum class DeviceType : int8_t;
class SymInt;
}  // namespace c10

namespace loma {

// An array that somebody else keeps. Constant expressions, so that tables are data: code that fills
// them when a module is loaded would be the longest function of many.
template <typename T>
class List {
 public:
  constexpr List() = default;
  template <size_t count>
  constexpr List(const T (&array)[count]) : data_(array), size_(count) {}  // NOLINT: implicit on purpose

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const T& operator[](size_t i) const { return data_[i]; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }

 private:
  const T* data_ = nullptr;
  size_t size_ = 0;
};

// A kernel gets the tensors and floats (0-dim) in the order of the parameters, and the ints. It
// writes copies of the tensors of Out parameters, or, `in_place`, these themselves, which are
// contiguous then, and puts its results into the undefined tensors at `results`. Both are arrays of
// at::Tensor, which light_tensors.h has another name for.
using Kernel = void (*)(const void* tensors, const int64_t* ints, bool in_place, void* results);

// The kernels of a function for any sizes; null: not compiled yet.
struct Kernels {
  Kernel of_float, of_double;
};

template <typename real>
constexpr Kernels kernels_of(Kernel kernel) {
  return std::is_same_v<real, double> ? Kernels{nullptr, kernel} : Kernels{kernel, nullptr};
}

// Registers kernels of the operator "namespace::name"; always true. Generated code calls it, maybe
// before the operator itself is registered.
__attribute__((visibility("default"))) bool register_kernels(const char* name, Kernels kernels);

// The same for tensors on a GPU, whose kernels for any sizes these are. Bit k of `narrow`: in a call
// with bfloat16 or float16 the kernel in float takes tensor k as it is.
__attribute__((visibility("default"))) bool register_device_kernels(const char* name, Kernels kernels,
                                                                    uint64_t narrow = 0);

// Registers a kernel of the operator for those slots (sizes, then ints), as above.
__attribute__((visibility("default"))) bool register_specialisation(const char* name,
                                                                    std::vector<int64_t> slots,
                                                                    bool is_double, Kernel kernel);

// Leaves a kernel of that operator to whoever loads its library to have it by itself (load_apart), and
// adds it nowhere. The name tells libraries of several modules apart, with each of which one is linked.
// `narrow` as above.
__attribute__((visibility("default"))) bool leave_apart(const char* name, Kernel kernel,
                                                        uint64_t narrow = 0);

enum class Kind : uint8_t { Tensor, Tensor32, IntTensor, BoolTensor, Float, Int };  // 32: float32 only
enum class Role : uint8_t {
  In,
  Out,       // passed by the caller; its final value comes back as a result of the operator
  Adjoint,   // an Out argument of a derivative: starts at zero, no argument of the operator
};

// A size that may be traced: a c10::SymInt, for files that do not know what that is. A comparison of traced sizes is guarded.
class __attribute__((visibility("default"))) Symbol {
 public:
  Symbol(int64_t value);      // NOLINT: implicit, as is the one below
  Symbol(c10::SymInt value);  // NOLINT
  Symbol(const Symbol& other);
  ~Symbol();
  operator const c10::SymInt&() const;

 private:
  alignas(int64_t) unsigned char value_[sizeof(int64_t)];
};

#pragma GCC visibility push(default)

Symbol operator+(const Symbol& a, const Symbol& b);
Symbol operator-(const Symbol& a, const Symbol& b);
Symbol operator*(const Symbol& a, const Symbol& b);
bool operator==(const Symbol& a, const Symbol& b);
bool operator!=(const Symbol& a, const Symbol& b);
bool operator<(const Symbol& a, const Symbol& b);
bool operator<=(const Symbol& a, const Symbol& b);
bool operator>(const Symbol& a, const Symbol& b);
bool operator>=(const Symbol& a, const Symbol& b);

// The integer operations of the language for both kinds of sizes. Symbolic sizes are traced, where
// a division's operands are sizes, thus not negative, and both roundings agree.
int64_t floor_div(int64_t a, int64_t b);
int64_t floor_mod(int64_t a, int64_t b);
int64_t trunc_div(int64_t a, int64_t b);
Symbol floor_div(const Symbol& a, const Symbol& b);
Symbol floor_mod(const Symbol& a, const Symbol& b);
Symbol trunc_div(const Symbol& a, const Symbol& b);

[[noreturn]] void zero_step(const char* what);

#pragma GCC visibility pop

// One dimension. Slots are the size variables in order, then the int arguments in order.
struct Dim {
  enum class Rule : uint8_t {
    Bind,        // sets size variable `value`: the size is `scale` times that, plus `offset`
    Slot,        // is slot `value`
    Constant,    // is `value`
    Expression,  // is what the functions say
  } rule;
  int64_t value;
  int64_t (*number)(const int64_t* v);
  Symbol (*symbol)(const Symbol* v);
  const char* text;  // as the program writes it
  int64_t scale = 1;
  int64_t offset = 0;
};

// Whether the size is a slot's value as it is.
inline bool is_slot(const Dim& dim) {
  return dim.rule <= Dim::Rule::Slot && dim.scale == 1 && dim.offset == 0;
}

// A size that is an expression over the slots `v`.
#define LOMA_SIZE(expression, text)                                               \
  {                                                                               \
    ::loma::Dim::Rule::Expression, -1,                                            \
        [](const int64_t* v) -> int64_t { return static_cast<int64_t>(expression); }, \
        [](const ::loma::Symbol* v) -> ::loma::Symbol { return expression; }, text            \
  }

struct Parameter {
  const char* name;
  Kind kind;
  Role role;
  int rank;         // -1: any
  const Dim* dims;  // `rank` of them
  int like;         // an Adjoint of any rank has the shape of this parameter, else -1
};

struct Result {
  Kind kind;
  int rank;
  const Dim* dims;
  int need;  // slot of the int that says whether this result is wanted, or -1
};

// Where an argument of a backward function comes from; see loma.ad.split.Source.
struct Source {
  enum class Kind : uint8_t { Argument, Result, Saved, Grad, Size, Need } kind;
  int index;
  int dim;
  int64_t scale;  // a Size is what that dimension binds; see Dim
  int64_t offset;
};

struct SplitPair {
  const char* forward;
  const char* backward;
  List<Source> sources;
  List<int> differentiable;  // positions of the parameters with an adjoint
  // For each value that the forward function adds to the results: the Out parameter whose value on
  // entry it is, or -1.
  List<int> saved;
};

struct Function {
  const char* name;     // operator name; never a keyword of the schema language
  const char* overload;  // which of the operators of that name it is; see loma.compiler.Program
  const char* display;  // as the program writes it, for messages
  const char* schema;  // arguments and results
  int sizes;  // number of size variables
  List<const char*> size_names;
  List<Parameter> parameters;
  List<Result> results;  // returned values, then final values of Out and Adjoint parameters
  bool in_place;  // whether a call may write Out arguments where they lie: it cannot fail half-way
  const SplitPair* split;  // null: its derivative is compiled when first needed
  bool called = false;     // another one calls it: that is when it is first called under gradients
};

struct Probe;  // timing.h

struct Module {
  const char* name_space;  // of the generated code: no other code has it; kernels are known by it
  c10::DeviceType device;  // where its kernels work
  List<Function> functions;
  Probe* probes = nullptr;  // of a module that measures itself
  size_t probe_count = 0;
};

// Registers every function as an operator of the dispatcher, loma::NAME.OVERLOAD. Called once, when
// a module is loaded. Where other code has such an operator already (of the same program elsewhere in
// a file, say, whose messages name other lines), the overload is the module's namespace.
void register_module(const Module& module);

struct Registrar {
  explicit Registrar(const Module& module) { register_module(module); }
};

// How many values a range has. A symbolic step is guarded: its sign decides.
template <class I>
I range_size(const I& start, const I& stop, const I& step, const char* zero) {
  if (step == 0) zero_step(zero);
  const I room = step > 0 ? stop - start : start - stop;
  if (room <= 0) return I(0);
  const I by = step > 0 ? step : I(0) - step;
  return floor_div(I(room + by - 1), by);
}

// max, min, comparisons and choices of a size: a symbolic one is guarded.
template <class I>
I larger(const I& a, const I& b) { return a >= b ? a : b; }
template <class I>
I smaller(const I& a, const I& b) { return a <= b ? a : b; }

}  // namespace loma

#endif  // LOMA_TABLES_H
