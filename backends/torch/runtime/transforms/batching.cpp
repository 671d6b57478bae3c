// The batching rule of torch.func.vmap.
#include "transforms.h"

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/ops/stack.h>

#include <algorithm>

namespace loma {

int64_t (*level_of_vmap)() = nullptr;

namespace {

namespace functorch = at::functorch;

// The samples of a call: its arguments without vmap's wrappers, of which those at `positions` (of
// parameters) differ between samples, along their first dimension.
struct Samples {
  Stack arguments;
  std::vector<int> positions;
  std::vector<bool> differs;  // by schema argument
  c10::SymInt count;
};

Samples samples_of(const Operator& op, Arguments arguments, int64_t level) {
  Samples samples{{}, {}, std::vector<bool>(arguments.size(), false), 0};
  for (size_t i = 0; i < arguments.size(); ++i) {
    samples.arguments.push_back(arguments[i]);
    if (!arguments[i].isTensor()) continue;
    const auto* batched = functorch::maybeGetBatchedImpl(arguments[i].toTensor());
    samples.differs[i] = batched != nullptr && batched->level() == level;
    if (samples.differs[i]) {
      const at::Tensor& value = batched->value();
      samples.arguments[i] = value.movedim(batched->bdim(), 0);
      samples.count = value.sym_size(batched->bdim());
    }
  }
  const auto any = std::find(samples.differs.begin(), samples.differs.end(), true);
  for (size_t i = 0; i < arguments.size() && any != samples.differs.end(); ++i) {
    if (op.parameter(i).role == Role::Out && !samples.differs[i]) {  // what is written may differ
      const at::Tensor x = samples.arguments[i].toTensor();
      std::vector<c10::SymInt> shape = x.sym_sizes().vec();
      shape.insert(shape.begin(), samples.count);
      samples.arguments[i] = x.expand_symint(shape);
      samples.differs[i] = true;
    }
    if (samples.differs[i]) {
      samples.positions.push_back(op.parameter_of[i]);
    }
  }
  return samples;
}

int rank_of(const Result& result) {
  return result.kind == Kind::Float || result.kind == Kind::Int ? 0 : result.rank;
}

// What is wrong about a sample's arguments is said in terms of the function that the program has.
// Under autocast their dtypes may differ still.
void check_sample(const Operator& op, Arguments arguments) {
  const auto key = served(device_of_call(op, arguments).type()).autocast_key;
  if (c10::impl::tls_is_dispatch_key_excluded(key)) {
    bind_slots<c10::SymInt>(op, arguments);
  }
}

Tensors together(Operator& batched, const Operator& op, Samples samples, int64_t level) {
  batched.handle->callBoxed(samples.arguments);
  Tensors results;
  for (size_t k = 0; k < op.function->results.size(); ++k) {
    at::Tensor result = std::move(samples.arguments[k]).toTensor();
    const bool differs = rank_of(batched.function->results[k]) != rank_of(op.function->results[k]);
    results.push_back(differs && result.defined() ? functorch::makeBatched(result, 0, level)
                                                  : result);
  }
  return results;
}

Tensors one_by_one(const Operator& op, const Samples& samples, int64_t level) {
  const int64_t count = samples.count.guard_int(__FILE__, __LINE__);
  TORCH_CHECK_VALUE(count > 0, op.function->display, ": vmap over 0 samples of a function that "
                    "runs for one after the other");
  std::vector<Tensors> found(op.function->results.size());
  for (int64_t s = 0; s < count; ++s) {
    Stack stack = samples.arguments;
    for (size_t i = 0; i < stack.size(); ++i) {
      if (samples.differs[i]) {
        stack[i] = stack[i].toTensor().select(0, s);
      }
    }
    op.handle->callBoxed(stack);
    for (size_t k = 0; k < found.size(); ++k) {
      found[k].push_back(stack[k].toTensor());
    }
  }
  Tensors results;
  for (const Tensors& values : found) {
    const bool defined = values[0].defined();
    results.push_back(defined ? functorch::makeBatched(at::stack(values), 0, level) : values[0]);
  }
  return results;
}

}  // namespace

void run_batched(Operator& op, c10::DispatchKeySet, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::FuncTorchBatched);
  TORCH_INTERNAL_ASSERT(level_of_vmap != nullptr);
  const int64_t level = level_of_vmap();
  const size_t count = op.parameter_of.size();
  const Arguments arguments = torch::jit::last(*stack, count);
  Samples samples = samples_of(op, arguments, level);
  if (samples.positions.empty()) {
    op.handle->callBoxed(*stack);
    return;
  }
  check_sample(op, arguments);
  Operator* const batched = made(op, "batched", samples.positions);
  give(stack, count, batched != nullptr ? together(*batched, op, std::move(samples), level)
                                        : one_by_one(op, samples, level));
}

at::Tensor without_samples(at::Tensor x) {
  while (const auto* batched = functorch::maybeGetBatchedImpl(x)) {
    x = at::Tensor(batched->value());
  }
  return x;
}

namespace {

// The levels of vmap at which a tensor has a dimension for samples.
std::vector<int64_t> batched_levels(at::Tensor x) {
  std::vector<int64_t> levels;
  while (const auto* batched = functorch::maybeGetBatchedImpl(x)) {
    levels.push_back(batched->level());
    x = at::Tensor(batched->value());
  }
  return levels;
}

}  // namespace

void check_written_is_batched(const Operator& op, Arguments arguments) {
  for (size_t out = 0; out < arguments.size(); ++out) {
    if (op.parameter(out).role != Role::Out || !arguments[out].isTensor()) continue;
    const auto own = batched_levels(arguments[out].toTensor());
    for (size_t other = 0; other < arguments.size(); ++other) {
      if (!arguments[other].isTensor()) continue;
      for (const int64_t level : batched_levels(arguments[other].toTensor())) {
        TORCH_CHECK_VALUE(std::find(own.begin(), own.end(), level) != own.end(),
                          argument_text(*op.function, op.parameter(out)),
                          " is written, but is one tensor for all samples of vmap, while '",
                          op.parameter(other).name, "' differs between them; give '",
                          op.parameter(out).name,
                          "' a dimension for the samples, too (in_dims), or return the value");
      }
    }
  }
}

}  // namespace loma
