// Automatic mixed precision: under torch.autocast a call may get floating arguments of several
// dtypes, a narrow one from a layer of torch and float32 from parameters. They are cast to the widest
// among them, as the operators of autocast's list "promote to the widest" are; dtypes that no call has
// are left for the check of the arguments to refuse. This happens above autograd, so gradients come
// back in each argument's own dtype. An Out argument counts for the widest dtype, but is never cast:
// the caller's memory is written.
#include "operators.h"

#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace loma {
namespace {

// The widest dtype of the float tensors, else of the floats (a number has a dtype only for want of
// a tensor's); float32 for a function that takes no other.
std::optional<at::ScalarType> widest(const Operator& op, Arguments arguments) {
  std::optional<at::ScalarType> tensors, floats;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Kind kind = op.parameter(i).kind;
    if (kind == Kind::Tensor32) return at::kFloat;
    if (is_integer(kind) || !arguments[i].isTensor()) continue;
    const at::Tensor& x = arguments[i].toTensor();
    if (x.defined() && is_supported(x.scalar_type())) {
      auto& found = kind == Kind::Float ? floats : tensors;
      found = found ? c10::promoteTypes(*found, x.scalar_type()) : x.scalar_type();
    }
  }
  return tensors ? tensors : floats;
}

// Tensors are only ever widened; a number takes the call's dtype.
bool is_cast(const Parameter& p, at::ScalarType own, at::ScalarType dtype) {
  return p.role != Role::Out && is_supported(own) && own != dtype &&
         (p.kind == Kind::Float || c10::promoteTypes(own, dtype) == dtype);
}

}  // namespace

at::ScalarType dtype_of_numbers(const Operator& op, Arguments arguments) {
  const auto key = served(device_of_call(op, arguments).type()).autocast_key;
  if (!c10::impl::tls_is_dispatch_key_excluded(key)) {
    if (const auto dtype = widest(op, arguments)) return *dtype;
  }
  return dtype_of_call(op, arguments);
}

void run_autocast(Operator& op, c10::DispatchKeySet, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const size_t count = op.parameter_of.size();
  if (const auto dtype = widest(op, torch::jit::last(*stack, count))) {
    for (size_t i = 0; i < count; ++i) {
      const Parameter& p = op.parameter(i);
      c10::IValue& argument = torch::jit::peek(*stack, i, count);
      if (is_integer(p.kind) || !argument.toTensor().defined()) continue;
      if (is_cast(p, argument.toTensor().scalar_type(), *dtype)) {
        argument = argument.toTensor().to(*dtype);
      }
    }
  }
  op.handle->callBoxed(*stack);
}

}  // namespace loma
