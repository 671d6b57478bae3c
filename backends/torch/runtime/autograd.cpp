// Autograd for every function, driven by its SplitPair: under gradients the call runs f__forward,
// which also returns what the backward pass needs, and later f__backward, both through the
// dispatcher, so that tracers (fake tensors, AOTAutograd) see them.
//
// A derivative of the backward pass itself is compiled when a program first asks for it. Then
// f__backward is called under gradients as a function of arguments, saved values and result
// adjoints; the saved values are recomputed from the arguments by f__forward under gradients, so
// that ordinary autograd composes derivatives of any order.
#include "memory.h"
#include "operators.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <memory>
#include <type_traits>

namespace loma {
namespace {

namespace autograd = torch::autograd;
using NodePtr = decltype(autograd::Edge::function);  // the smart pointer differs between versions

template <class Kind, class... Arguments>
NodePtr make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<autograd::Node>>) {
    return std::make_shared<Kind>(std::forward<Arguments>(arguments)...);
  } else {
    return c10::make_intrusive<Kind>(std::forward<Arguments>(arguments)...);
  }
}

struct SplitNode final : autograd::Node {
  SplitNode(Operator* op, autograd::edge_list edges) : Node(std::move(edges)), op(op) {}

  Operator* op;
  std::vector<autograd::SavedVariable> arguments;  // by schema argument; empty where not needed
  std::vector<c10::IValue> ints;                   // by schema argument; None for tensors
  std::vector<autograd::SavedVariable> results;    // by result
  std::vector<autograd::SavedVariable> saved;
  std::vector<std::vector<c10::SymInt>> sizes;     // by schema argument
  std::vector<int> grad_of;                        // result → position among the gradients, or -1
  std::vector<std::vector<c10::SymInt>> result_sizes;
  std::vector<at::TensorOptions> result_options;

  std::string name() const override {
    return std::string(op->function->display) + "Backward";
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto* list : {&arguments, &results, &saved}) {
      for (auto& variable : *list) {
        variable.reset_data();
      }
    }
  }

  autograd::variable_list apply(autograd::variable_list&& grads) override;

 private:
  c10::IValue source(const Source& from, const autograd::variable_list& grads,
                     const Tensors& recomputed);
  at::Tensor entry(size_t value);
  Tensors recompute();
  at::Tensor grad(int result, const autograd::variable_list& grads) const;
  bool wanted(int parameter) const;
  std::optional<size_t> adjoint_of(int parameter) const;
};

// Under gradients every adjoint counts as wanted, because the next derivative needs their shapes.
bool SplitNode::wanted(int parameter) const {
  if (c10::GradMode::is_enabled()) return true;
  const auto k = adjoint_of(parameter);
  return k && task_should_compute_output(*k);
}

// Which of the adjoints is that parameter's.
std::optional<size_t> SplitNode::adjoint_of(int parameter) const {
  const auto& all = op->function->split->differentiable;
  const auto found = std::find(all.begin(), all.end(), parameter);
  return found == all.end() ? std::nullopt : std::optional<size_t>(found - all.begin());
}

at::Tensor SplitNode::grad(int result, const autograd::variable_list& grads) const {
  const int position = grad_of.at(result);
  if (position >= 0 && grads.at(position).defined()) return grads[position];
  return at::zeros_symint(result_sizes[result], result_options[result]);
}

c10::IValue SplitNode::source(const Source& from, const autograd::variable_list& grads,
                              const Tensors& recomputed) {
  const int argument = from.kind == Source::Kind::Argument || from.kind == Source::Kind::Size
                           ? op->argument_of.at(from.index)
                           : -1;
  switch (from.kind) {
    case Source::Kind::Argument:
      return ints[argument].isNone() ? c10::IValue(arguments[argument].unpack()) : ints[argument];
    case Source::Kind::Result:
      return results[from.index].unpack(getptr());
    case Source::Kind::Saved:
      return recomputed.empty() ? saved[from.index].unpack() : recomputed[from.index];
    case Source::Kind::Grad:
      return grad(from.index, grads);
    case Source::Kind::Size:
      if (from.scale == 1 && from.offset == 0) return sizes[argument][from.dim];
      return c10::SymInt(floor_div(sizes[argument][from.dim] - from.offset, from.scale));
    case Source::Kind::Need:
      return static_cast<int64_t>(wanted(from.index));
  }
  TORCH_INTERNAL_ASSERT(false);
}

// A saved value that is an Out argument's on entry, as a function of what that was computed from.
at::Tensor SplitNode::entry(size_t value) {
  at::Tensor result = saved[value].unpack().detach();
  const auto k = adjoint_of(op->function->split->saved[value]);
  if (k && next_edge(*k).is_valid()) {
    const auto node = make_node<autograd::Identity>();  // hands gradients on as they are
    node->set_next_edges({next_edge(*k)});
    autograd::set_history(result, node);
  }
  return result;
}

// The saved values as functions of the arguments, for a derivative of the backward pass.
Tensors SplitNode::recompute() {
  Stack stack;
  const auto& entries = op->function->split->saved;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto found = std::find(entries.begin(), entries.end(), op->parameter_of[i]);
    if (found != entries.end()) {
      stack.push_back(entry(found - entries.begin()));
    } else {
      stack.push_back(ints[i].isNone() ? c10::IValue(arguments[i].unpack()) : ints[i]);
    }
  }
  op->forward->callBoxed(stack);
  Tensors values;
  for (size_t i = 0; i < saved.size(); ++i) {
    values.push_back(stack[op->function->results.size() + i].toTensor());
  }
  return values;
}

autograd::variable_list SplitNode::apply(autograd::variable_list&& grads) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const PoolScope pool;
  const SplitPair& split = *op->function->split;
  autograd::variable_list adjoints(split.differentiable.size());
  if (std::none_of(grads.begin(), grads.end(), [](const auto& g) { return g.defined(); })) {
    return adjoints;
  }
  Tensors recomputed;
  if (c10::GradMode::is_enabled() && !split.saved.empty()) {
    recomputed = recompute();
  }
  Stack stack;
  stack.reserve(split.sources.size());
  for (const Source& from : split.sources) {
    stack.push_back(source(from, grads, recomputed));
  }
  op->backward->callBoxed(stack);
  for (size_t k = 0; k < adjoints.size(); ++k) {
    if (task_should_compute_output(k)) {
      adjoints[k] = std::move(stack[k]).toTensor();
    }
  }
  return adjoints;
}

// What a node keeps of the arguments: those that the backward function reads and, where it reads
// saved values, all of them, for `recompute`. An Out argument will hold another value, which the node
// itself computes: the tensor is never kept, or both would hold each other for good.
void keep_arguments(SplitNode& node, const Stack& arguments) {
  const SplitPair& split = *node.op->function->split;
  std::vector<bool> keep(arguments.size(), !split.saved.empty()), measure(arguments.size(), false);
  for (const Source& from : split.sources) {
    const bool argument = from.kind == Source::Kind::Argument;
    if (argument || from.kind == Source::Kind::Size) {
      const int position = node.op->argument_of.at(from.index);
      TORCH_INTERNAL_ASSERT(position >= 0, node.op->function->display);
      (argument ? keep : measure)[position] = true;
    }
  }
  node.arguments.resize(arguments.size());
  node.ints.resize(arguments.size());
  node.sizes.resize(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].isTensor()) {
      node.ints[i] = arguments[i];
      continue;
    }
    const int parameter = node.op->parameter_of[i];
    const bool out = node.op->function->parameters[parameter].role == Role::Out;
    const bool saved =
        std::find(split.saved.begin(), split.saved.end(), parameter) != split.saved.end();
    if (keep[i] && !(out && saved)) {
      const at::Tensor& value = arguments[i].toTensor();
      node.arguments[i] = autograd::SavedVariable(out ? value.clone() : value, /*is_output=*/false);
    }
    if (measure[i]) {
      node.sizes[i] = arguments[i].toTensor().sym_sizes().vec();
    }
  }
}

void keep_results(SplitNode& node, const NodePtr& pointer, const Tensors& results,
                  const Stack& forward) {
  const Function& f = *node.op->function;
  for (size_t i = 0; i < results.size(); ++i) {
    const bool differentiable = !is_integer(f.results[i].kind);
    node.grad_of.push_back(-1);
    if (differentiable) {
      node.grad_of.back() = static_cast<int>(node.num_inputs());
      autograd::set_history(results[i], pointer);
    }
    node.result_sizes.push_back(results[i].sym_sizes().vec());
    node.result_options.push_back(results[i].options());
  }
  node.results.resize(results.size());
  for (const Source& from : f.split->sources) {
    if (from.kind == Source::Kind::Result) {
      node.results[from.index] = autograd::SavedVariable(results[from.index], /*is_output=*/true);
    }
  }
  for (int i = 0; i < static_cast<int>(f.split->saved.size()); ++i) {
    const auto& value = forward[results.size() + i].toTensor();
    node.saved.emplace_back(value, /*is_output=*/false);
  }
}

void run_split(Operator& op, Stack* stack) {
  const SplitPair& split = *op.function->split;
  const size_t count = op.parameter_of.size();
  const Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  autograd::edge_list edges;
  for (const int parameter : split.differentiable) {
    const int argument = op.argument_of.at(parameter);  // -1: starts at zero, is no argument
    const at::Tensor value = argument < 0 ? at::Tensor() : arguments[argument].toTensor();
    edges.push_back(value.defined() && value.requires_grad()
                        ? autograd::impl::gradient_edge(value)
                        : autograd::Edge());
  }
  const NodePtr pointer = make_node<SplitNode>(&op, std::move(edges));
  auto& node = static_cast<SplitNode&>(*pointer);
  keep_arguments(node, arguments);

  Stack forward = arguments;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    op.forward->callBoxed(forward);
  }
  Tensors results;
  for (size_t i = 0; i < op.function->results.size(); ++i) {
    results.push_back(forward[i].toTensor());
  }
  keep_results(node, pointer, results, forward);
  give(stack, count, std::move(results));
}

// The operator of the same name in the module that holds its derivative.
const c10::OperatorHandle& with_derivative(Operator& op) {
  if (const auto* known = op.with_derivative.load()) return *known;
  const auto& hook = op.module->derivative;
  TORCH_CHECK_NOT_IMPLEMENTED(
      hook, op.function->display, ": the derivative of ", op.function->name,
      " is not part of the compiled code. It is made and compiled when first needed, which only a "
      "program in Python can do.");
  // Not under the module's lock: the hook takes Python's. Two threads compile the same module only
  // once; each may find the handle.
  const std::string overload = hook(op.function->name);
  const auto found = c10::Dispatcher::singleton().findSchemaOrThrow(
      op.handle->schema().name().c_str(), overload.c_str());
  const std::lock_guard<std::mutex> lock(op.module->mutex);
  if (op.with_derivative.load() == nullptr) {
    op.with_derivative = new c10::OperatorHandle(found);  // lives as long as the process
  }
  return *op.with_derivative.load();
}

bool needs_gradient(const Operator& op, Arguments arguments) {
  if (!c10::GradMode::is_enabled() || !op.has_float_result) return false;
  const auto requires_grad = [](const c10::IValue& argument) {
    return argument.isTensor() && argument.toTensor().requires_grad();
  };
  if (op.function->split == nullptr) {
    return std::any_of(arguments.begin(), arguments.end(), requires_grad);
  }
  const auto& differentiable = op.function->split->differentiable;
  return std::any_of(differentiable.begin(), differentiable.end(), [&](int parameter) {
    const int argument = op.argument_of.at(parameter);
    return argument >= 0 && requires_grad(arguments[argument]);
  });
}

}  // namespace

void run_autograd(Operator& op, c10::DispatchKeySet keys, Stack* stack) {
  const Arguments arguments = torch::jit::last(*stack, op.parameter_of.size());
  for (const auto& argument : arguments) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !argument.isTensor() || !autograd::isFwGradDefined(argument.toTensor()),
        op.function->display, ": forward-mode derivatives through autograd are not available");
  }
  if (!needs_gradient(op, arguments)) {
    const at::AutoDispatchBelowADInplaceOrView below;
    op.handle->redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  } else if (op.function->split != nullptr) {
    run_split(op, stack);
  } else {
    with_derivative(op).callBoxed(*stack);
  }
}

}  // namespace loma
