// Memory of generated code and of the runtime: private workspaces, and tensors from the pool.
#ifndef LOMA_MEMORY_H
#define LOMA_MEMORY_H

#include "pool.h"

#include <c10/util/Exception.h>

namespace loma {

// Private memory of a thread, for temporaries of a kernel: 64-byte aligned, contents undefined,
// given back at the end of the scope, also by an exception. Inside a parallel region each thread
// makes its own.
//
//   at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
//     const loma::Workspace workspace(bytes);
//     float* u = reinterpret_cast<float*>(workspace.data());
class Workspace {
 public:
  explicit Workspace(size_t bytes)
      : data_(static_cast<std::byte*>(loma_workspace_take(bytes, &capacity_))) {
    TORCH_CHECK_WITH(OutOfMemoryError, data_ != nullptr || bytes == 0,
                     "not enough memory for a workspace of ", bytes, " bytes");
  }
  ~Workspace() { loma_workspace_give(data_, capacity_); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  std::byte* data() const { return data_; }

 private:
  size_t capacity_ = 0;
  std::byte* data_;
};

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
