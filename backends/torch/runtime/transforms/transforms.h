// What torch.func and torch.autograd.forward_ad need of functions beside their values: other
// functions, which Python makes of them and compiles when they are first needed.
#ifndef LOMA_TRANSFORMS_H
#define LOMA_TRANSFORMS_H

#include "operators.h"

namespace loma {

// What was made of a function, in a module of its own; null: there is no such thing. `positions` are
// those of parameters; see loma.pipeline.Made.
Operator* made(Operator& op, const char* kind, const std::vector<int>& positions = {});

// Forward-mode derivatives: runs the function's forward derivative in the arguments that have a
// tangent, and gives the results theirs. A value and its tangent are computed together.
bool has_tangents(Arguments arguments);
void run_tangents(Operator& op, Stack* stack);

// The batching rule of torch.func.vmap: runs the function for all samples at once, or, where it has
// no such form, once for each.
void run_batched(Operator& op, c10::DispatchKeySet keys, Stack* stack);

// The number of the vmap that a call is in. torch's headers for this need one that torch does not
// bring, so it is Python that is asked, without which there is no vmap.
extern int64_t (*level_of_vmap)();

// The tensor that vmap's wrappers stand for.
at::Tensor without_samples(at::Tensor x);

// Under vmap, what is written has a dimension for samples wherever another argument has one.
void check_written_is_batched(const Operator& op, Arguments arguments);

}  // namespace loma

#endif  // LOMA_TRANSFORMS_H
