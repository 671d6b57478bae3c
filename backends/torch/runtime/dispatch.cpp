// Functions as operators of PyTorch's dispatcher: registration, the kernel on the device's tensors,
// and the shapes of results for meta and fake tensors.
#include "allocate.h"
#include "call_device.h"
#include "memory.h"
#include "operators.h"
#include "transforms.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/record_function.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <map>
#include <string_view>

namespace loma {

at::Tensor cat(const std::vector<at::Tensor>& tensors, int64_t dim) { return at::cat(tensors, dim); }

namespace {

std::map<const Module*, std::unique_ptr<ModuleState>>& registry() {
  static auto* states = new std::map<const Module*, std::unique_ptr<ModuleState>>();
  return *states;  // never destroyed: operators may run while the process ends
}

template <class I>
std::vector<I> shape_of(int rank, const Dim* dims, const std::vector<I>& slots) {
  std::vector<I> shape;
  for (int d = 0; d < rank; ++d) {
    shape.push_back(evaluate(dims[d], slots));
  }
  return shape;
}

struct KernelArguments {
  Tensors tensors;
  std::vector<int64_t> ints;
};

// Numbers that kernels write lie where these do.
at::Tensor zero_adjoint(const Operator& op, const Parameter& p, Arguments arguments,
                        const std::vector<int64_t>& slots, at::TensorOptions options) {
  options = options.dtype(dtype_of(p.kind, options.dtype().toScalarType()));
  if (p.kind == Kind::Float) {
    return at::zeros({}, options.device(call_device()));
  }
  if (p.rank < 0) {
    return at::zeros_like(arguments[op.argument_of[p.like]].toTensor(),
                          options.memory_format(at::MemoryFormat::Contiguous));
  }
  return at::zeros(shape_of(p.rank, p.dims, slots), options);
}

KernelArguments kernel_arguments(const Operator& op, Arguments arguments,
                                 const std::vector<int64_t>& slots, at::TensorOptions options,
                                 uint64_t narrow = 0) {
  const auto& parameters = op.function->parameters;
  KernelArguments out;
  out.tensors.reserve(parameters.size());
  const at::ScalarType dtype = options.dtype().toScalarType();
  size_t next_int = op.function->sizes;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    if (p.role == Role::Adjoint) {
      if (p.kind == Kind::Int) {
        out.ints.push_back(0);
      } else {
        out.tensors.push_back(zero_adjoint(op, p, arguments, slots, options));
      }
    } else if (p.kind == Kind::Int) {
      out.ints.push_back(slots[next_int++]);
    } else {
      const at::Tensor& x = arguments[op.argument_of[i]].toTensor();
      const size_t place = out.tensors.size();
      const bool as_it_is = place < 64 && (narrow >> place & 1) != 0;
      out.tensors.push_back(as_it_is ? x : as_dtype(x, dtype_of(p.kind, dtype)));
      if (p.kind == Kind::Float && p.role == Role::Out && call_device().is_cuda()) {
        out.tensors.back() = out.tensors.back().to(call_device());
      }
    }
  }
  return out;
}

// Results are contiguous and share memory with no argument and no other result.
void own_results(Tensors& results, const Tensors& inputs) {
  for (size_t i = 0; i < results.size(); ++i) {
    at::Tensor& result = results[i];
    if (!result.defined()) continue;
    result = result.contiguous();
    const auto shares = [&](const at::Tensor& other) {
      return other.defined() && other.is_alias_of(result);
    };
    if (std::any_of(inputs.begin(), inputs.end(), shares) ||
        std::any_of(results.begin(), results.begin() + i, shares)) {
      result = result.clone(at::MemoryFormat::Contiguous);
    }
  }
}

// A result's sizes follow from the arguments': a negative one is a wrong call, found out here.
void check_result_sizes(const Operator& op, const std::vector<int64_t>& slots) {
  const Function& f = *op.function;
  for (size_t i = 0; i < f.results.size(); ++i) {
    for (int d = 0; d < f.results[i].rank; ++d) {
      const int64_t size = evaluate(f.results[i].dims[d], slots);
      TORCH_CHECK_VALUE(size >= 0, f.display, ": dimension ", d, " of result ", i,
                        " would have the size ", size, " with these arguments");
    }
  }
}

// `general`: also where there is a kernel for these sizes.
Tensors run_kernel(const Operator& op, Arguments arguments, const std::vector<int64_t>& slots,
                   bool general = false) {
  // What a kernel calls computes in the dtype that it is called with.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  check_result_sizes(op, slots);
  const auto dtype = dtype_of_call(op, arguments);
  const c10::DeviceGuard on_device(device_of_call(op, arguments));
  const CallOn call_on(on_device.current_device(), dtype);
  const auto options = at::device(on_device.current_device()).dtype(computed_in(dtype));
  Kernel kernel = nullptr;
  uint64_t narrow = 0;
  if (call_on.on_gpu() && is_narrow(dtype)) {
    kernel = general_kernel(op, false, true);
    narrow = op.specialisations->narrow.load();  // which the kernel says
  }
  const auto inputs = kernel_arguments(op, arguments, slots, options, narrow);
  if (kernel == nullptr) {
    kernel = general_kernel(op, is_double(inputs.tensors), call_on.on_gpu());
  }
  const size_t count = op.function->results.size();
  const auto run = call_on.on_gpu() ? run_tuned : run_specialised;
  Tensors results = general ? call_kernel(kernel, inputs.tensors, inputs.ints, false, count)
                            : run(*op.specialisations, op.module->specialisation.load(), slots,
                                  kernel, inputs.tensors, inputs.ints, false, count);
  if (is_narrow(dtype)) {
    for (size_t k = 0; k < std::min(op.kept, results.size()); ++k) {
      at::Tensor& result = results[k];
      if (result.defined() && result.is_floating_point()) result = result.to(dtype);
    }
  }
  own_results(results, inputs.tensors);
  call_on.finish();
  return results;
}

void run_on_device(Operator& op, c10::DispatchKeySet, Stack* stack) {
  const PoolScope pool;
  const size_t count = op.parameter_of.size();
  const Arguments arguments = torch::jit::last(*stack, count);
  give(stack, count, run_kernel(op, arguments, bind_slots<int64_t>(op, arguments)));
}

// A function with a result of any rank has no shape rule of its own: its operators run on meta
// tensors instead. Nobody looks at the adjoint of an integer one.
bool has_unknown_shape(const Operator& op) {
  const auto& parameters = op.function->parameters;
  const bool adjoints = op.parameter_of.size() != parameters.size();
  for (size_t i = 0; i < op.function->results.size(); ++i) {
    const Result& result = op.function->results[i];
    const bool adjoint = adjoints && i >= static_cast<size_t>(op.returned);
    if (result.rank < 0 && result.kind != Kind::Float && result.kind != Kind::Int &&
        !(adjoint && is_integer(result.kind))) {
      return true;
    }
  }
  return false;
}

// Shapes of results, for meta and fake tensors.
void run_on_meta(Operator& op, c10::DispatchKeySet, Stack* stack) {
  const size_t count = op.parameter_of.size();
  const Arguments arguments = torch::jit::last(*stack, count);
  const auto slots = bind_slots<c10::SymInt>(op, arguments);
  Tensors results;
  if (has_unknown_shape(op)) {
    std::vector<int64_t> numbers;
    for (const auto& slot : slots) {
      numbers.push_back(slot.guard_int(__FILE__, __LINE__));
    }
    results = run_kernel(op, arguments, numbers, true);
    for (at::Tensor& result : results) {  // kernels make floats where floats are: on the CPU
      if (result.defined() && !result.is_meta()) {
        result = at::empty(result.sizes(), result.options().device(at::kMeta));
      }
    }
  } else {
    const auto options = at::device(at::kMeta);
    const auto dtype = dtype_of_call(op, arguments);
    for (const Result& result : op.function->results) {
      const bool is_kept = results.size() >= op.kept;
      const bool wanted = result.need < 0 || slots[result.need] != 0;
      const int rank = result.kind == Kind::Float || result.kind == Kind::Int ? 0 : result.rank;
      results.push_back(wanted ? at::empty_symint(shape_of(rank, result.dims, slots),
                                                  options.dtype(dtype_of(
                                                      result.kind,
                                                      is_kept ? computed_in(dtype) : dtype)))
                               : at::Tensor());
    }
  }
  give(stack, count, std::move(results));
}

constexpr const char* kNamespace = "loma";

std::optional<c10::OperatorHandle> find_operator(const char* name, const std::string& overload) {
  const std::string full = std::string(kNamespace) + "::" + name;
  return c10::Dispatcher::singleton().findSchema({full, overload});
}

void fill(Operator& op, ModuleState& state, const Function& function, bool is_taken) {
  op.module = &state;
  op.function = &function;
  op.overload = is_taken ? state.module->name_space : function.overload;
  op.specialisations =
      &specialisations_of(std::string(state.module->name_space) + "::" + function.name);
  op.is_mixed = std::string_view(function.name).find("__backward") != std::string_view::npos;
  int parameter_results = 0;
  for (size_t i = 0; i < function.parameters.size(); ++i) {
    const Parameter& p = function.parameters[i];
    const bool argument = p.role != Role::Adjoint;
    op.argument_of.push_back(argument ? static_cast<int>(op.parameter_of.size()) : -1);
    if (argument) {
      op.parameter_of.push_back(static_cast<int>(i));
    }
    parameter_results += p.role != Role::In;
  }
  op.returned = static_cast<int>(function.results.size()) - parameter_results;
  for (const Result& result : function.results) {
    op.has_float_result |= !is_integer(result.kind);
  }
}

using Run = void (*)(Operator& op, c10::DispatchKeySet keys, Stack* stack);

template <Run run>
struct BoxedKernel final : c10::OperatorKernel {
  explicit BoxedKernel(Operator* op) : op(op) {}
  Operator* op;

  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet keys, Stack* stack) {
    run(*op, keys, stack);
  }
};

template <Run run>
void implement(ModuleState& state, Operator& op, c10::DispatchKey key) {
  state.library->impl((op.function->name + ("." + op.overload)).c_str(),
                      torch::dispatch(key, torch::CppFunction::makeFromBoxedFunctor(
                                               std::make_unique<BoxedKernel<run>>(&op))));
}

}  // namespace

void give(Stack* stack, size_t arguments, Tensors results) {
  torch::jit::drop(*stack, arguments);
  for (auto& result : results) {
    stack->emplace_back(std::move(result));
  }
}

Kernel general_kernel(const Operator& op, bool is_double, bool on_gpu) {
  const std::atomic<Kernel>& general = op.specialisations->general[on_gpu][is_double];
  Kernel kernel = general.load(std::memory_order_acquire);
  if (kernel == nullptr && op.module->kernels) {
    op.module->kernels(op.function->name, is_double, on_gpu);
    kernel = general.load(std::memory_order_acquire);
  }
  TORCH_CHECK_TYPE(kernel != nullptr, op.function->display, ": this program was built without ",
                   is_double ? "float64" : "float32", " kernels", on_gpu ? " for GPUs" : "");
  return kernel;
}

ModuleState& state_of(const Module& module) { return *registry().at(&module); }

Operator& operator_named(ModuleState& state, const std::string& name) {
  const auto found = std::find_if(state.operators.begin(), state.operators.end(),
                                  [&](const Operator& op) { return name == op.function->name; });
  TORCH_CHECK_VALUE(found != state.operators.end(), "no function '", name, "'");
  return *found;
}

void register_module(const Module& module) {
  install_pool();
  auto& slot = registry()[&module];
  slot = std::make_unique<ModuleState>();
  ModuleState& state = *slot;
  state.module = &module;
  state.library = std::make_unique<torch::Library>(torch::Library::FRAGMENT, kNamespace,
                                                   std::nullopt, __FILE__, __LINE__);
  const bool is_taken =
      std::any_of(module.functions.begin(), module.functions.end(), [](const Function& f) {
        return find_operator(f.name, f.overload).has_value();
      });
  for (const Function& function : module.functions) {
    Operator& op = state.operators.emplace_back();
    fill(op, state, function, is_taken);
    const std::string schema = function.name + ("." + op.overload) + function.schema;
    state.library->def(schema.c_str(), {at::Tag::pt2_compliant_tag});
    for (const Served& device : kServed) {
      implement<run_on_device>(state, op, device.key);
      implement<run_autocast>(state, op, device.autocast_key);
    }
    implement<run_on_meta>(state, op, c10::DispatchKey::Meta);
    implement<run_autograd>(state, op, c10::DispatchKey::Autograd);
    implement<run_batched>(state, op, c10::DispatchKey::FuncTorchBatched);
  }
  for (auto& op : state.operators) {
    op.handle = find_operator(op.function->name, op.overload);
  }
  for (auto& op : state.operators) {
    if (op.function->split != nullptr) {
      Operator& forward = operator_named(state, op.function->split->forward);
      op.forward = forward.handle;
      op.forward_operator = &forward;
      forward.kept = op.function->results.size();
      op.backward = operator_named(state, op.function->split->backward).handle;
    }
  }
}

Real::Real(double value)
    : tensor(at::scalar_tensor(value, at::TensorOptions().dtype(at::kDouble))) {}

namespace {

// Where the elements of a tensor lie within each ``period`` elements of memory: from the first one on,
// so many more. Dimensions whose stride is a multiple of the period change nothing about it.
std::pair<int64_t, int64_t> within(const at::Tensor& x, int64_t period) {
  int64_t more = 0;
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    if (x.stride(dim) % period != 0) more += (x.size(dim) - 1) * x.stride(dim);
  }
  return {x.storage_offset() % period, more};
}

// Views of one memory that lie in turns, as the columns of a matrix: neither is dense, and torch does
// not look further. A period in which each has its part proves that they do not meet.
bool lie_in_turns(const at::Tensor& a, const at::Tensor& b) {
  if (a.itemsize() != b.itemsize()) return false;
  for (const int64_t period : a.strides()) {
    if (period <= 1) continue;
    const auto [x, x_more] = within(a, period);
    const auto [y, y_more] = within(b, period);
    const bool apart = x + x_more < y || y + y_more < x;
    if (apart && x + x_more < period && y + y_more < period) return true;
  }
  return false;
}

bool may_overlap(const at::Tensor& first, const at::Tensor& second) {
  const at::Tensor a = without_samples(first), b = without_samples(second);
  const auto hidden = c10::DispatchKey::FuncTorchGradWrapper;  // which has no storage to look at
  if (a.key_set().has(hidden) || b.key_set().has(hidden)) return a.is_same(b);
  if (!a.is_alias_of(b)) return false;
  const auto known = at::get_overlap_status(a, b);
  return known == at::MemOverlapStatus::TooHard ? !lie_in_turns(a, b)
                                                : known != at::MemOverlapStatus::No;
}

// An Out argument may share memory with no other argument.
void refuse_shared_out(const Operator& op, const Stack& arguments) {
  for (size_t out = 0; out < arguments.size(); ++out) {
    if (op.parameter(out).role != Role::Out || !arguments[out].isTensor()) continue;
    for (size_t other = 0; other < arguments.size(); ++other) {
      const bool shared = other != out && arguments[other].isTensor() &&
                          may_overlap(arguments[other].toTensor(), arguments[out].toTensor());
      TORCH_CHECK_VALUE(!shared, op.function->display, ": arguments '", op.parameter(other).name,
                        "' and '", op.parameter(out).name, "' share memory, and '",
                        op.parameter(out).name, "' is written");
    }
  }
}

// Whether a call may write its Out arguments where they lie: nobody else (autograd, autocast, a
// tracer, a mode) wants to see an operator without side effects.
bool may_write_in_place(const Operator& op, const Stack& arguments) {
  if (!op.function->in_place) return false;
  const auto dtype = dtype_of_call(op, arguments);
  const auto device = device_of_call(op, arguments);
  const bool gradients = c10::GradMode::is_enabled();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].isTensor()) continue;
    const at::Tensor& x = arguments[i].toTensor();
    if (!x.defined() || !has_plain_keys(x) || (gradients && x.requires_grad())) {
      return false;
    }
    if (op.parameter(i).role == Role::Out &&
        (!x.is_contiguous() || x.device() != device || (x.is_inference() && !c10::InferenceMode::is_enabled()) ||
         x.scalar_type() != dtype || is_narrow(dtype))) {
      return false;
    }
  }
  return true;
}

// What remains of a call that writes in place: arguments are checked, a kernel runs.
Tensors call_in_place(const Operator& op, const Stack& arguments, const Tensors& outs) {
  RECORD_FUNCTION(op.handle->schema().name(), std::vector<c10::IValue>());
  const PoolScope pool;
  const auto slots = bind_slots<int64_t>(op, arguments);
  check_result_sizes(op, slots);
  const c10::DeviceGuard on_device(device_of_call(op, arguments));
  const CallOn call_on(on_device.current_device());
  const auto options = at::device(on_device.current_device()).dtype(dtype_of_call(op, arguments));
  const auto inputs = kernel_arguments(op, arguments, slots, options);
  const Kernel kernel = general_kernel(op, is_double(inputs.tensors), call_on.on_gpu());
  const auto run = call_on.on_gpu() ? run_tuned : run_specialised;
  Tensors results = run(*op.specialisations, op.module->specialisation.load(), slots, kernel,
                        inputs.tensors, inputs.ints, true, op.function->results.size());
  results.resize(op.returned);
  own_results(results, inputs.tensors);
  for (const at::Tensor& out : outs) {
    out.unsafeGetTensorImpl()->bump_version();
  }
  call_on.finish();
  return results;
}

}  // namespace

bool has_plain_keys(const at::Tensor& x) {
  const auto local = c10::impl::tls_local_dispatch_key_set();
  const auto passed = c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                      c10::DispatchKeySet(c10::DispatchKey::BackendSelect);
  const auto keys = (x.key_set() | local.included_) - local.excluded_ - passed;
  return keys.highestPriorityTypeId() == served(x.device().type()).key &&
         !torch::autograd::isFwGradDefined(x);
}

Tensors call_and_write(Operator& op, Stack arguments) {
  Tensors outs;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (op.parameter(i).role == Role::Out && arguments[i].isTensor()) {
      outs.push_back(arguments[i].toTensor());
    }
  }
  if (!outs.empty()) {
    check_written_is_batched(op, arguments);
    refuse_shared_out(op, arguments);
    if (may_write_in_place(op, arguments)) return call_in_place(op, arguments, outs);
  }
  op.handle->callBoxed(arguments);
  Tensors results;
  results.reserve(arguments.size());
  for (auto& value : arguments) {
    results.push_back(std::move(value).toTensor());
  }
  if (!outs.empty()) {  // a function has Out or Adjoint parameters, not both
    for (size_t i = 0; i < outs.size(); ++i) {
      outs[i].copy_(results[op.returned + i]);
    }
    results.resize(op.returned);
  }
  return results;
}

Tensors call(const Module& module, int function, Tensors tensors,
             const std::vector<int64_t>& ints) {
  Operator& op = state_of(module).operators[function];
  Stack arguments;
  size_t next_tensor = 0, next_int = 0;
  for (const int i : op.parameter_of) {
    if (op.function->parameters[i].kind == Kind::Int) {
      arguments.emplace_back(ints[next_int++]);
    } else {
      arguments.emplace_back(std::move(tensors[next_tensor++]));
    }
  }
  std::optional<at::ScalarType> dtype;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (op.parameter(i).kind == Kind::Float) {
      dtype = dtype ? dtype : dtype_of_numbers(op, arguments);
      arguments[i] = as_dtype(arguments[i].toTensor(), *dtype);
    }
  }
  return call_and_write(op, std::move(arguments));
}

}  // namespace loma
