// The parallel loop.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

// Parts of a module that are loaded later call these, too.
#pragma GCC visibility push(default)

namespace loma {

using Range = c10::function_ref<void(int64_t, int64_t)>;

bool in_parallel_region();

// body(begin, end) for parts of [begin, end) of at least ``grain``, each on a thread.
void parallel_for(int64_t begin, int64_t end, int64_t grain, Range body);

// Runs ``body(begin, end)`` over range(count), in parallel when there is enough to do. ``work`` is
// the number of innermost steps in one iteration.
void parallel(int64_t count, int64_t work, Range body);

}  // namespace loma

#pragma GCC visibility pop
