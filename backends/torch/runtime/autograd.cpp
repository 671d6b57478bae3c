// Autograd for every function, driven by its SplitPair: under gradients the call runs f__forward,
// which also returns what the backward pass needs, and later f__backward, both through the
// dispatcher, so that tracers (fake tensors, AOTAutograd) see them.
//
// A derivative of the backward pass itself (create_graph, and all of torch.func, which always asks
// for a graph) is for many programs never taken. So f__backward runs as ever, and its results get a
// node that is *late*: it keeps the arguments, and only when it is run itself the function's
// derivative is compiled, and its forward part run. f__backward is a function of arguments, saved
// values and result adjoints; the saved values are results of f__forward, whose node is late, too. So
// ordinary autograd composes derivatives of any order. A function that another one calls has no pair in
// the module either, but what it is differentiated by is the same: it gets its pair when it is first
// called under gradients.
#include "memory.h"
#include "operators.h"
#include "transforms.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
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
  // `differentiable`: the parameters of the edges.
  SplitNode(Operator* op, std::vector<int> differentiable, autograd::edge_list edges)
      : Node(std::move(edges)), op(op), differentiable(std::move(differentiable)) {}

  // Of a late node, the operator that has no derivative yet.
  Operator* op;
  bool late = false;
  std::vector<int> differentiable;
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
                     const Stack& forward);
  at::Tensor entry(size_t value);
  Stack call_arguments();
  Stack with_history();
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
  const auto found = std::find(differentiable.begin(), differentiable.end(), parameter);
  if (found == differentiable.end()) return std::nullopt;
  return found - differentiable.begin();
}

at::Tensor SplitNode::grad(int result, const autograd::variable_list& grads) const {
  const int position = grad_of.at(result);
  if (position >= 0 && grads.at(position).defined()) return grads[position];
  return at::zeros_symint(result_sizes[result], result_options[result]);
}

// `forward`: what the forward part gave, where it is not the node that keeps it.
c10::IValue SplitNode::source(const Source& from, const autograd::variable_list& grads,
                              const Stack& forward) {
  const int argument = from.kind == Source::Kind::Argument || from.kind == Source::Kind::Size
                           ? op->argument_of.at(from.index)
                           : -1;
  const size_t count = op->function->results.size();
  switch (from.kind) {
    case Source::Kind::Argument:
      return ints[argument].isNone() ? c10::IValue(arguments[argument].unpack()) : ints[argument];
    case Source::Kind::Result:
      return late ? forward[from.index] : c10::IValue(results[from.index].unpack(getptr()));
    case Source::Kind::Saved:
      return forward.empty() ? c10::IValue(saved[from.index].unpack())
                             : forward[count + from.index];
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
  at::Tensor result = saved[value].unpack().variable_data();  // detached from this graph alone
  const auto k = adjoint_of(op->function->split->saved[value]);
  if (k && next_edge(*k).is_valid()) {
    const auto node = make_node<autograd::Identity>();  // hands gradients on as they are
    node->set_next_edges({next_edge(*k)});
    autograd::set_history(result, node);
  }
  return result;
}

// The call's arguments, as functions of what they were computed from.
Stack SplitNode::call_arguments() {
  Stack stack;
  const List<int> entries = late ? List<int>() : op->function->split->saved;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto found = std::find(entries.begin(), entries.end(), op->parameter_of[i]);
    if (found != entries.end()) {
      stack.push_back(entry(found - entries.begin()));
    } else {
      stack.push_back(ints[i].isNone() ? c10::IValue(arguments[i].unpack()) : ints[i]);
    }
  }
  return stack;
}

bool needs_gradient(const Operator& op, Arguments arguments);
void run_late(Operator& op, Stack* stack, Stack given);

// What the forward part gave, of which the saved values are functions of the arguments, for a
// derivative of the backward pass. Nobody looks at the results, which have sizes alone.
Stack SplitNode::with_history() {
  Stack values;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    for (size_t k = 0; k < op->function->results.size(); ++k) {
      values.emplace_back(at::empty({}, result_options[k]).expand_symint(result_sizes[k]));
    }
  }
  for (const auto& value : saved) {
    values.emplace_back(value.unpack().variable_data());  // detached from this graph alone
  }
  Stack stack = call_arguments();
  if (!needs_gradient(*op->forward_operator, stack)) return values;
  run_late(*op->forward_operator, &stack, std::move(values));
  return stack;
}

autograd::variable_list SplitNode::apply(autograd::variable_list&& grads) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const PoolScope pool;
  autograd::variable_list adjoints(differentiable.size());
  if (std::none_of(grads.begin(), grads.end(), [](const auto& g) { return g.defined(); })) {
    return adjoints;
  }
  Operator& with = late ? *made(*op, "derivative") : *op;
  if (with.function->split == nullptr) return adjoints;  // no result depends on an argument
  const SplitPair& split = *with.function->split;
  Stack forward;
  if (late) {
    forward = call_arguments();
    with.forward->callBoxed(forward);
  } else if (c10::GradMode::is_enabled() && !split.saved.empty()) {
    forward = with_history();
  }
  Stack stack;
  stack.reserve(split.sources.size());
  for (const Source& from : split.sources) {
    stack.push_back(source(from, grads, forward));
  }
  with.backward->callBoxed(stack);
  for (size_t k = 0; k < split.differentiable.size(); ++k) {
    const auto own = adjoint_of(split.differentiable[k]);
    if (own && task_should_compute_output(*own)) {
      adjoints[*own] = std::move(stack[k]).toTensor();
    }
  }
  return adjoints;
}

// What a node keeps of the arguments: those that the backward function reads and, where it reads
// saved values, all of them, for `recompute`. An Out argument will hold another value, which the node
// itself computes: the tensor is never kept, or both would hold each other for good.
// A late node does not know yet what it will need, and keeps all.
void keep_arguments(SplitNode& node, const Stack& arguments) {
  const SplitPair nothing{};
  const SplitPair& split = node.late ? nothing : *node.op->function->split;
  std::vector<bool> keep(arguments.size(), node.late || !split.saved.empty());
  std::vector<bool> measure(arguments.size(), node.late);
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
    const bool differentiable = !is_integer(f.results[i].kind) && results[i].defined();
    node.grad_of.push_back(-1);
    if (differentiable) {
      node.grad_of.back() = static_cast<int>(node.num_inputs());
      autograd::set_history(results[i], pointer);
    }
    const bool defined = results[i].defined();
    node.result_sizes.push_back(defined ? results[i].sym_sizes().vec() : std::vector<c10::SymInt>());
    node.result_options.push_back(defined ? results[i].options() : at::TensorOptions());
  }
  node.results.resize(results.size());
  if (node.late) return;
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

// A node for the call, with an edge for each of these parameters.
NodePtr node_for(Operator& op, const Stack& arguments, std::vector<int> differentiable) {
  autograd::edge_list edges;
  for (const int parameter : differentiable) {
    const int argument = op.argument_of.at(parameter);  // -1: starts at zero, is no argument
    const at::Tensor value = argument < 0 ? at::Tensor() : arguments[argument].toTensor();
    edges.push_back(value.defined() && value.requires_grad()
                        ? autograd::impl::gradient_edge(value)
                        : autograd::Edge());
  }
  return make_node<SplitNode>(&op, std::move(differentiable), std::move(edges));
}

Tensors results_of(const Operator& op, const Stack& given) {
  Tensors results;
  for (size_t i = 0; i < op.function->results.size(); ++i) {
    results.push_back(given[i].toTensor());
  }
  return results;
}

void run_split(Operator& op, Stack* stack) {
  const auto& differentiable = op.function->split->differentiable;
  const size_t count = op.parameter_of.size();
  const Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  const NodePtr pointer =
      node_for(op, arguments, {differentiable.begin(), differentiable.end()});
  auto& node = static_cast<SplitNode&>(*pointer);
  keep_arguments(node, arguments);

  Stack forward = arguments;
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    op.forward->callBoxed(forward);
  }
  Tensors results = results_of(op, forward);
  keep_results(node, pointer, results, forward);
  give(stack, count, std::move(results));
}

// Gives what the function has computed a late node. The stack has the arguments, then the results.
void run_late(Operator& op, Stack* stack, Stack given) {
  const size_t count = op.parameter_of.size();
  const Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  std::vector<int> differentiable;
  const auto& parameters = op.function->parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!is_integer(parameters[i].kind) && parameters[i].role != Role::Adjoint) {
      differentiable.push_back(static_cast<int>(i));
    }
  }
  const NodePtr pointer = node_for(op, arguments, std::move(differentiable));
  auto& node = static_cast<SplitNode&>(*pointer);
  node.late = true;
  keep_arguments(node, arguments);
  Tensors results = results_of(op, given);
  keep_results(node, pointer, results, given);
  give(stack, count, std::move(results));
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

// The function where it has a split pair: itself, or what is made of it; null where it has none.
Operator* with_pair(Operator& op) {
  if (op.function->split != nullptr) return &op;
  if (!op.function->called || op.module->made == nullptr) return nullptr;
  Operator* const found = made(op, "pair");
  return found != nullptr && found->function->split != nullptr ? found : nullptr;
}

}  // namespace

void run_autograd(Operator& op, c10::DispatchKeySet keys, Stack* stack) {
  const Arguments arguments = torch::jit::last(*stack, op.parameter_of.size());
  check_device(op, arguments);
  if (has_tangents(arguments)) {
    run_tangents(op, stack);
  } else if (!needs_gradient(op, arguments)) {
    const at::AutoDispatchBelowADInplaceOrView below;
    op.handle->redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  } else if (Operator* const pair = with_pair(op)) {
    run_split(*pair, stack);
  } else {
    Stack results(arguments.begin(), arguments.end());
    {
      const at::AutoDispatchBelowADInplaceOrView below;
      op.handle->redispatchBoxed(keys & c10::after_autograd_keyset, &results);
    }
    run_late(op, stack, std::move(results));
  }
}

}  // namespace loma
