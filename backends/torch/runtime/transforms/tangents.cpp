// Forward-mode derivatives of functions, for torch.func.jvp and torch.autograd.forward_ad.
#include "transforms.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace loma {
namespace {

// The parameters that have a tangent: arguments whose tensors have one, and all that is written.
std::vector<int> varying(const Operator& op, Arguments arguments) {
  std::vector<int> positions;
  const auto& parameters = op.function->parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (is_integer(parameters[i].kind)) continue;
    const bool written = parameters[i].role != Role::In;
    if (written || torch::autograd::isFwGradDefined(arguments[op.argument_of[i]].toTensor())) {
      positions.push_back(static_cast<int>(i));
    }
  }
  return positions;
}

// Whether the tangents are for several directions in the vmap that torch.autograd's own functions
// and checks use. It lets a value have tangents for all of them only where the value has none.
bool in_vmap_of_autograd(Arguments tangents) {
  return std::any_of(tangents.begin(), tangents.end(), [](const c10::IValue& tangent) {
    return tangent.isTensor() && tangent.toTensor().key_set().has(c10::DispatchKey::Batched);
  });
}

}  // namespace

bool has_tangents(Arguments arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::IValue& argument) {
    return argument.isTensor() && torch::autograd::isFwGradDefined(argument.toTensor());
  });
}

void run_tangents(Operator& op, Stack* stack) {
  const size_t count = op.parameter_of.size();
  const Arguments arguments = torch::jit::last(*stack, count);
  const std::vector<int> positions = varying(op, arguments);
  Operator* const derivative = made(op, "tangents", positions);
  Stack given, values;
  for (size_t i = 0; i < count; ++i) {
    if (!arguments[i].isTensor()) {
      given.push_back(arguments[i]);
      values.push_back(arguments[i]);
      continue;
    }
    const at::Tensor& x = arguments[i].toTensor();
    const bool dual = torch::autograd::isFwGradDefined(x);
    values.emplace_back(dual ? x._fw_primal(0) : x);
    given.push_back(values.back());
    if (std::binary_search(positions.begin(), positions.end(), op.parameter_of[i])) {
      given.emplace_back(dual ? x._fw_grad(0) : at::zeros_like(x));
    }
  }
  const bool apart = in_vmap_of_autograd(given);
  derivative->handle->callBoxed(given);
  if (apart) {
    op.handle->callBoxed(values);
  }
  Tensors results;
  size_t next = 0;
  for (size_t k = 0; k < op.function->results.size(); ++k) {
    results.push_back((apart ? values[k] : given[next]).toTensor());
    ++next;
    if (is_integer(op.function->results[k].kind)) continue;
    const at::Tensor& tangent = given[next++].toTensor();
    if (results.back().defined() && tangent.defined()) {
      results.back()._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
    }
  }
  give(stack, count, std::move(results));
}

}  // namespace loma
