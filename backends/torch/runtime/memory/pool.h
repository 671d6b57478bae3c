// Memory that is kept between calls. Torch-free; one copy serves every module of a process.
//
// A block is a run of pages. Blocks come from address space that is reserved once, so that free
// neighbours merge and whether a pointer is the pool's is a comparison. Of unused pages at most a
// limit stays with the process; what is beyond goes back to the system.
//
// All functions may be called from any thread, and after a fork. None of them throws.
#ifndef LOMA_POOL_H
#define LOMA_POOL_H

#include <cstddef>
#include <cstdint>

#define LOMA_SHARED __attribute__((visibility("default")))

extern "C" {

// In bytes, but for the last two.
struct LomaPoolStats {
  uint64_t held;      // pages that the process has for the pool, used or not
  uint64_t in_use;    // blocks that somebody holds
  uint64_t peak;      // the most that was in use since the last release
  uint64_t limit;     // how much may be kept unused; UINT64_MAX: peak and a quarter
  uint64_t obtained;  // pages that came from the system, ever
  uint64_t blocks;    // how many blocks somebody holds
  uint64_t requests;  // how many blocks were ever asked for
};

// A block of at least that many bytes, aligned to 64; its contents are undefined. Null where bytes
// is 0, where the pool is off, and where memory is short even after all that is unused was given
// back.
LOMA_SHARED void* loma_pool_take(size_t bytes) noexcept;

// Gives a block back. False, and nothing happens, for a pointer that is no block of the pool.
LOMA_SHARED bool loma_pool_give(void* block) noexcept;

// Whether the pointer is into the pool's address space.
LOMA_SHARED bool loma_pool_owns(const void* pointer) noexcept;

// As take and give, for a block that the thread gives back soon, with the capacity that it was given: one of
// the thread's own few blocks, without a lock, where one fits. Also where the pool is off.
LOMA_SHARED void* loma_workspace_take(size_t bytes, size_t* capacity) noexcept;
LOMA_SHARED void loma_workspace_give(void* block, size_t capacity) noexcept;

// Gives all unused pages back to the system, and lets the peak begin again at what is in use; how
// many bytes those pages were.
LOMA_SHARED uint64_t loma_pool_release() noexcept;

// How much may stay unused from now on; UINT64_MAX: a quarter more than the peak.
LOMA_SHARED void loma_pool_set_limit(uint64_t bytes) noexcept;

LOMA_SHARED void loma_pool_stats(LomaPoolStats* stats) noexcept;

// Turns the pool off: nothing is kept, and tensors do not come from it. To be called before the
// first module is loaded.
LOMA_SHARED void loma_pool_disable() noexcept;

// True for the first caller, unless the pool is off: it is to put the pool in front of the
// allocator of tensors.
LOMA_SHARED bool loma_pool_claim() noexcept;

// A place for what one GPU's kernels report, for whoever comes first; null at first.
#define LOMA_DEVICES 64
LOMA_SHARED void** loma_device_place(int device) noexcept;

// How many functions of loma this thread is in, one inside the other. Their tensors are the pool's.
LOMA_SHARED void loma_scope_enter() noexcept;
LOMA_SHARED void loma_scope_leave() noexcept;
LOMA_SHARED bool loma_scope_active() noexcept;

}  // extern "C"

#endif  // LOMA_POOL_H
