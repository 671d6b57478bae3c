// Tensors of generated code and of the runtime from the pool.
#ifndef LOMA_MEMORY_H
#define LOMA_MEMORY_H

#include "pool.h"

namespace loma {

// While one exists, tensors that this thread allocates come from the pool, whoever allocates them:
// a kernel, ATen's operators that it calls, oneDNN's scratchpads. They go back when they are freed,
// wherever and by whichever thread that is. Elsewhere the process allocates as it did.
class PoolScope {
 public:
  PoolScope() { loma_scope_enter(); }
  ~PoolScope() { loma_scope_leave(); }
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;
};

// Puts the pool in front of torch's allocator of CPU memory. Called by every module as it is
// loaded; only the first call of a process does something.
void install_pool();

}  // namespace loma

#endif  // LOMA_MEMORY_H
