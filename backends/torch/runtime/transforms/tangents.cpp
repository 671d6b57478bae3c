// Forward-mode derivatives of functions, for torch.func.jvp and torch.autograd.forward_ad.
#include "transforms.h"

#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <memory>

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

// Runs before a gradient goes through what had a tangent. What is saved there for gradients has none,
// so one that is taken before the level of forward mode ends would lose its tangent.
struct BehindTheLevel final : torch::autograd::FunctionPreHook {
  explicit BehindTheLevel(const char* function) : function(function) {}
  const char* const function;

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    TORCH_CHECK_NOT_IMPLEMENTED(
        torch::autograd::ForwardADLevel::try_get_by_idx(0) == nullptr, function,
        ": a gradient inside of torch.autograd.forward_ad.dual_level() would have no tangent; take it "
        "when the level has ended, or use torch.func (jvp of grad, hessian)");
    return grads;
  }
};

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
    if (results.back().defined() && results.back().grad_fn() != nullptr) {
      results.back().grad_fn()->add_pre_hook(std::make_unique<BehindTheLevel>(op.function->display));
    }
    if (is_integer(op.function->results[k].kind)) continue;
    const at::Tensor& tangent = given[next++].toTensor();
    if (results.back().defined() && tangent.defined()) {
      results.back()._set_fw_grad(tangent, /*level=*/0, /*is_inplace_op=*/false);
    }
  }
  give(stack, count, std::move(results));
}

}  // namespace loma
