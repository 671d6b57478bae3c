// What the parts of the runtime share about a registered function. Not for generated code.
#ifndef LOMA_OPERATORS_H
#define LOMA_OPERATORS_H

#include "specialise.h"
#include "tables.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <torch/library.h>

#include <atomic>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace loma {

using Stack = torch::jit::Stack;
using Arguments = c10::ArrayRef<c10::IValue>;
struct ModuleState;

inline bool is_integer(Kind kind) {
  return kind == Kind::IntTensor || kind == Kind::BoolTensor || kind == Kind::Int;
}

// What a value of that kind is computed in, and comes back as, in a call of that floating dtype.
inline at::ScalarType dtype_of(Kind kind, at::ScalarType dtype) {
  return kind == Kind::BoolTensor ? at::kBool : is_integer(kind) ? at::kLong : dtype;
}

// The floating dtypes that a call may have. It is computed in one that kernels have: narrow ones in
// float32, with one rounding, at the end.
inline bool is_narrow(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }
inline bool is_supported(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || is_narrow(dtype);
}
inline at::ScalarType computed_in(at::ScalarType dtype) {
  return is_narrow(dtype) ? at::kFloat : dtype;
}
constexpr const char* kSupported = "float32, float64, bfloat16 or float16";

// As PyTorch's users know it.
const char* dtype_name(at::ScalarType dtype);

// A function as an operator of the dispatcher.
struct Operator {
  ModuleState* module;
  const Function* function;
  std::string overload;
  std::vector<int> argument_of;   // parameter position → schema argument, or -1 (Adjoint)
  std::vector<int> parameter_of;  // schema argument → parameter position
  int returned = 0;               // how many results are returned values, not parameters' values
  bool has_float_result = false;
  std::optional<c10::OperatorHandle> handle, forward, backward;
  Operator* forward_operator = nullptr;
  // What a forward part gives only to the backward part, results from `kept` on, is not rounded to a
  // narrow dtype. So backward parts, and what is made of these, take float32 beside that.
  size_t kept = std::numeric_limits<size_t>::max();
  bool is_mixed = false;
  // What was made of the function so far, by kind and positions; see transforms.h. Under the
  // module's mutex.
  std::map<std::pair<std::string, std::vector<int>>, Operator*> made;
  Specialisations* specialisations = nullptr;

  const Parameter& parameter(size_t argument) const {
    return function->parameters[parameter_of[argument]];
  }
};

// Compiles what is made of a function, and returns its operator, or null where there is none. That
// is in another module, which has a runtime of its own, but of the same text.
using MadeHook = std::function<Operator*(const std::string& kind, const std::string& function,
                                         const std::vector<int>& positions)>;

// Compiles the kernels of a function in one floating type, and loads them: the CPU's, or those that
// are launched on GPUs.
using KernelHook = std::function<void(const std::string& function, bool is_double, bool on_gpu)>;

struct ModuleState {
  const Module* module;
  std::unique_ptr<torch::Library> library;
  std::deque<Operator> operators;
  MadeHook made;
  KernelHook kernels;
  // Which kernels for known sizes are made; null: none.
  std::atomic<const SpecialisationPolicy*> specialisation{nullptr};
  std::mutex mutex;
};

ModuleState& state_of(const Module& module);

// The module's operator of that name; ValueError where it has none.
Operator& operator_named(ModuleState& state, const std::string& name);

// The devices that functions are implemented for, with what the dispatcher calls them.
struct Served {
  c10::DeviceType device;
  c10::DispatchKey key, autocast_key;
};
constexpr Served kServed[] = {
    {c10::DeviceType::CPU, c10::DispatchKey::CPU, c10::DispatchKey::AutocastCPU},
    {c10::DeviceType::CUDA, c10::DispatchKey::CUDA, c10::DispatchKey::AutocastCUDA},
};
inline const Served& served(c10::DeviceType device) {
  return kServed[device == c10::DeviceType::CUDA];
}
inline bool is_served(c10::DeviceType device) { return served(device).device == device; }
constexpr const char* kServedNames = "cpu or cuda";

// --- arguments.cpp ---

// The floating dtype of a call: that of its first float tensor, in a mixed one the first in a narrow
// dtype; else of its first float, else the default dtype.
at::ScalarType dtype_of_call(const Operator& op, Arguments arguments);

// That of the tensors, which agree; that of the numbers where there are no tensors.
at::Device device_of_call(const Operator& op, Arguments arguments);

// Refuses tensors of a GPU that nothing can run on, as fake ones may be; with ValueError.
void check_device(const Operator& op, Arguments arguments);

// "f: argument 'x'", which messages begin with.
std::string argument_text(const Function& f, const Parameter& p);

// Checks kinds, dtypes, devices and ranks, binds the size variables and checks every dimension.
// Returns the slots: sizes, then ints. TypeError or ValueError names function, argument, size
// variable and both values.
template <class I>
std::vector<I> bind_slots(const Operator& op, Arguments arguments);
template <class I>
I evaluate(const Dim& dim, const std::vector<I>& slots);

extern template std::vector<int64_t> bind_slots<int64_t>(const Operator&, Arguments);
extern template std::vector<c10::SymInt> bind_slots<c10::SymInt>(const Operator&, Arguments);
extern template int64_t evaluate<int64_t>(const Dim&, const std::vector<int64_t>&);
extern template c10::SymInt evaluate<c10::SymInt>(const Dim&, const std::vector<c10::SymInt>&);

// A float argument becomes a 0-dim tensor of the call's dtype, differentiably.
at::Tensor as_dtype(const at::Tensor& value, at::ScalarType dtype);

// --- autocast.cpp ---

// The dtype of a call's numbers: that of the call, under autocast the one that it casts to.
at::ScalarType dtype_of_numbers(const Operator& op, Arguments arguments);

// Casts the arguments on the stack to the widest dtype among them and calls the operator.
void run_autocast(Operator& op, c10::DispatchKeySet keys, Stack* stack);

// --- dispatch.cpp ---

// Replaces so many arguments on the stack by the results.
void give(Stack* stack, size_t arguments, Tensors results);

// The kernel for any sizes, compiled now if it is the first call in that floating type.
Kernel general_kernel(const Operator& op, bool is_double, bool on_gpu);

// Calls the operator; see loma::call. `arguments` are in the order of the schema.
Tensors call_and_write(Operator& op, Stack arguments);

// Whether nobody but the device's kernels and autograd looks at operators on that tensor: no mode, no
// tracer, no transformation.
bool has_plain_keys(const at::Tensor& x);

// --- each.cpp ---

// The arguments of a call over lists, by schema argument: the tensors of a Tensor parameter; of a
// Float parameter the number, or tensors of one element, one for each position.
struct ListCall {
  std::vector<Tensors> lists;
  std::vector<std::optional<double>> numbers;
};

// Whether call_each takes the function: it may write in place, has no results, and all its tensors
// are Tensor[N] with one size N.
bool takes_lists(const Operator& op);

// Calls the function once for each position of the lists, in any order and on a GPU several at once,
// but one after the other where they share memory. The tensors at one position agree in
// shape, which may be any, and in dtype; their elements are taken in the order in which the first
// Out argument's lie. What does not lie so is copied, and an Out argument copied back. Nothing runs
// before everything is checked.
void call_each(const Operator& op, ListCall call);

// --- autograd.cpp ---

void run_autograd(Operator& op, c10::DispatchKeySet keys, Stack* stack);

}  // namespace loma

#endif  // LOMA_OPERATORS_H
