// Workspaces and tensors of the pool from C++, without Python. Built and run by test_memory.py.
#include "prelude.h"
#include "memory.h"
#include "workspace.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <c10/core/CPUAllocator.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "memory_program: %s\n", what);
  std::_Exit(1);
}

LomaPoolStats stats() {
  LomaPoolStats found;
  loma_pool_stats(&found);
  return found;
}

void workspaces_in_parallel() {
  std::vector<double> sums(64);
  const auto body = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const loma::Workspace outer(100000 * sizeof(double));
      const loma::Workspace inner(1000 * sizeof(double));
      auto* x = reinterpret_cast<double*>(outer.data());
      auto* y = reinterpret_cast<double*>(inner.data());
      require(x != nullptr && y != nullptr && x != y, "no workspace");
      require(reinterpret_cast<uintptr_t>(x) % 64 == 0, "alignment");
      for (int k = 0; k < 1000; ++k) y[k] = static_cast<double>(i);
      for (int k = 0; k < 100000; ++k) x[k] = y[k % 1000];
      for (int k = 0; k < 100000; ++k) sums[i] += x[k];
    }
  };
  at::parallel_for(0, 64, 1, body);
  const uint64_t requests = stats().requests;
  std::fill(sums.begin(), sums.end(), 0.0);
  at::parallel_for(0, 64, 1, body);
  for (int64_t i = 0; i < 64; ++i) require(sums[i] == 100000.0 * i, "another thread's values");
  require(stats().requests == requests, "a thread asks again for what it has");
  require(stats().in_use == 0, "a workspace that waits counts as used");
}

void workspaces_and_exceptions() {
  for (int k = 0; k < 10; ++k) {
    try {
      at::parallel_for(0, 2, 1, [](int64_t, int64_t) {
        const loma::Workspace workspace(1 << 20);
        throw std::runtime_error("in the middle");
      });
      require(false, "the exception is lost");
    } catch (const std::runtime_error&) {
    }
  }
  require(stats().in_use == 0, "an exception loses a workspace");
  const loma::Workspace none(0);
  require(none.data() == nullptr, "a workspace of nothing");
  try {
    const loma::Workspace all(size_t{1} << 62);
    require(false, "a workspace larger than memory");
  } catch (const c10::OutOfMemoryError&) {
  }
}

void tensors() {
  const uint64_t blocks = stats().blocks;
  const at::Tensor outside = at::full({1 << 16}, 1.0f);
  require(stats().blocks == blocks, "a tensor outside functions is the pool's");
  at::Tensor inside;
  {
    const loma::PoolScope scope;
    inside = at::full({1 << 16}, 2.0f);
    const loma::PoolScope nested;
  }
  require(stats().blocks == blocks + 1 && loma_pool_owns(inside.data_ptr()), "no block");
  require(!loma_scope_active(), "the scope does not end");
  inside.resize_({1 << 17});  // outside: the storage moves to the other allocator
  require(stats().blocks == blocks && !loma_pool_owns(inside.data_ptr()), "resize_");
  require(inside[5].item<float>() == 2.0f, "resize_ loses values");

  // As oneDNN does: plain pointers, freed inside or outside, whichever allocator they are from.
  c10::Allocator* allocator = c10::GetCPUAllocator();
  void* before = allocator->raw_allocate(1 << 18);
  void* within = nullptr;
  {
    const loma::PoolScope scope;
    allocator->raw_deallocate(before);
    within = allocator->raw_allocate(1 << 18);
    require(loma_pool_owns(within), "a plain pointer");
  }
  allocator->raw_deallocate(within);
  require(stats().blocks == blocks, "a plain pointer is lost");
  const c10::DataPtr simple = allocator->allocate(1 << 18);
  require(allocator->is_simple_data_ptr(simple), "not simple");
}

}  // namespace

int main() {
  at::set_num_threads(2);
  loma::install_pool();
  loma::install_pool();  // as the next module does
  workspaces_in_parallel();
  workspaces_and_exceptions();
  tensors();
  static at::Tensor last;  // freed by the end of the process
  const loma::PoolScope scope;
  last = at::full({1 << 16}, 3.0f);
  std::puts("ok");
}
