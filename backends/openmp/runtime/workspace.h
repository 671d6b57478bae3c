// Private memory of the threads that run a kernel's loop.
#pragma once

#include <c10/util/Exception.h>

#include <cstddef>

#include "pool.h"

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

}  // namespace loma
