// The pool: two heaps, the limit of what is kept, and each thread's own few blocks.
#include "pool.h"

#include "heap.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

namespace loma {
namespace {

constexpr size_t kAlignment = 64;                 // a line of the cache; a vector of AVX-512
constexpr size_t kLarge = size_t{1} << 20;        // from here on a block is in the heap of large ones
constexpr size_t kSmallGranule = size_t{64} << 10;
constexpr size_t kLargeGranule = size_t{2} << 20;  // a huge page
constexpr size_t kSmallSpace = size_t{16} << 30;   // address space, not memory
constexpr size_t kSpacePerMemory = 4;              // address space over physical memory: for holes
constexpr size_t kLeastSpace = size_t{64} << 20;
constexpr size_t kWorkspaceUnit = size_t{16} << 10;
constexpr size_t kSlots = 4;                       // blocks of a thread
constexpr uint64_t kPeak = UINT64_MAX;             // the limit follows the peak of what was in use

// Blocks that a thread took as workspaces and gave back, for its next ones. A slot's pointer is
// exchanged, never read and written, so that another thread may empty the slot meanwhile; its
// capacity belongs to the thread.
struct ThreadBlocks {
  struct Slot {
    std::atomic<void*> block{nullptr};
    size_t capacity = 0;
  };
  std::array<Slot, kSlots> slots;
  size_t next = 0;  // which slot is given up when none is empty
  ThreadBlocks* following = nullptr;
};

class Pool {
 public:
  static Pool& get() {
    static Pool* pool = new Pool();  // never destroyed: tensors may be freed while the process ends
    return *pool;
  }

  void* take(size_t bytes) noexcept {
    if (bytes == 0 || !enabled_.load(std::memory_order_relaxed)) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    return take_locked(bytes);
  }

  bool owns(const void* pointer) const noexcept {
    return small_.owns(pointer) || large_.owns(pointer);
  }

  bool give(void* block) noexcept {
    if (!owns(block)) return false;
    const std::lock_guard<std::mutex> lock(mutex_);
    return give_locked(block);
  }

  void* take_workspace(size_t bytes, size_t* capacity) noexcept;
  void give_workspace(void* block, size_t capacity) noexcept;

  uint64_t release() noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t released = release_locked();
    peak_ = in_use();
    return released;
  }

  void set_limit(uint64_t bytes) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    limit_ = bytes;
    if (cached_.load() > bytes) empty_slots();
    keep_to_limit();
  }

  void stats(LomaPoolStats& stats) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    stats.held = held();
    stats.in_use = in_use();
    stats.peak = peak_;
    stats.limit = limit_;
    stats.blocks = small_.blocks() + large_.blocks() - cached_blocks_.load();
    stats.requests = requests_;
    stats.obtained = small_.obtained() + large_.obtained();
  }

  void disable() noexcept { enabled_ = false; }
  bool claim() noexcept { return enabled_ && !claimed_.exchange(true); }

  ThreadBlocks* enlist() noexcept {
    auto* own = new (std::nothrow) ThreadBlocks();
    if (own == nullptr) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    own->following = threads_;
    threads_ = own;
    return own;
  }

  void dismiss(ThreadBlocks* own) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    dismiss_locked(own);
  }

 private:
  Pool();

  size_t held() const noexcept { return small_.held() + large_.held(); }
  size_t in_use() const noexcept {
    const size_t taken = small_.in_use() + large_.in_use();
    return taken - std::min<size_t>(taken, cached_.load());
  }

  void* take_locked(size_t bytes) noexcept {
    Heap& heap = bytes < kLarge ? small_ : large_;
    ++requests_;
    void* block = heap.take(bytes);
    if (block == nullptr && release_locked() > 0) block = heap.take(bytes);
    peak_ = std::max(peak_, static_cast<uint64_t>(in_use()));
    return block;
  }

  bool give_locked(void* block) noexcept {
    const bool given = small_.give(block) || large_.give(block);
    if (given) keep_to_limit();
    return given;
  }

  void keep_to_limit() noexcept {
    // Blocks of changing sizes leave holes: with no more than the peak itself, pages would come and
    // go in every call.
    const uint64_t limit = limit_ == kPeak ? peak_ + peak_ / 4 + kLargeGranule : limit_.load();
    const uint64_t kept = held() - in_use();
    if (kept > limit) purge(kept - limit);
  }

  uint64_t purge(uint64_t wanted) noexcept {
    const size_t purged = large_.purge(wanted);
    return purged < wanted ? purged + small_.purge(wanted - purged) : purged;
  }

  uint64_t release_locked() noexcept {
    empty_slots();
    return purge(UINT64_MAX);
  }

  void empty_slots() noexcept {
    for (ThreadBlocks* thread = threads_; thread != nullptr; thread = thread->following) {
      empty(*thread);
    }
  }

  void empty(ThreadBlocks& thread) noexcept {
    for (auto& slot : thread.slots) {
      if (void* block = slot.block.exchange(nullptr)) {
        cached_ -= small_.owns(block) ? small_.size_of(block) : large_.size_of(block);
        --cached_blocks_;
        give_locked(block);
      }
    }
  }

  void dismiss_locked(ThreadBlocks* own) noexcept {
    empty(*own);
    for (ThreadBlocks** link = &threads_; *link != nullptr; link = &(*link)->following) {
      if (*link == own) {
        *link = own->following;
        break;
      }
    }
    delete own;
  }

  static void before_fork() { get().mutex_.lock(); }
  static void after_fork() { get().mutex_.unlock(); }
  static void in_child();

  std::mutex mutex_;  // guards the heaps, the list of threads and what is not atomic
  Heap small_{kSmallGranule, false};
  Heap large_{kLargeGranule, true};
  ThreadBlocks* threads_ = nullptr;
  uint64_t peak_ = 0, requests_ = 0;
  std::atomic<uint64_t> limit_{kPeak};
  std::atomic<uint64_t> cached_{0}, cached_blocks_{0};  // bytes and number of blocks in slots
  std::atomic<bool> enabled_{true}, claimed_{false};
};

// ------------------------------------------------------------------------ what a thread keeps

thread_local ThreadBlocks* this_thread = nullptr;
thread_local bool thread_ends = false;

// Gives the blocks of this thread back when it ends.
struct ThreadEnd {
  ~ThreadEnd() {
    thread_ends = true;
    if (this_thread != nullptr) Pool::get().dismiss(std::exchange(this_thread, nullptr));
  }
};

// Null where there are none: at the very end of a thread, or without memory for the list.
ThreadBlocks* own_blocks() noexcept {
  if (this_thread == nullptr && !thread_ends) {
    static thread_local ThreadEnd end;
    this_thread = Pool::get().enlist();
  }
  return this_thread;
}

void* Pool::take_workspace(size_t bytes, size_t* capacity) noexcept {
  if (bytes == 0 || bytes > SIZE_MAX - kWorkspaceUnit) return nullptr;
  const bool enabled = enabled_.load(std::memory_order_relaxed);
  const size_t unit = enabled ? kWorkspaceUnit : kAlignment;
  *capacity = (bytes + unit - 1) / unit * unit;
  if (!enabled) return std::aligned_alloc(kAlignment, *capacity);
  if (ThreadBlocks* own = own_blocks()) {
    // The smallest that is large enough, but none that would waste more than it serves.
    ThreadBlocks::Slot* best = nullptr;
    for (auto& slot : own->slots) {
      const bool fits = slot.capacity >= bytes && slot.capacity / 2 <= *capacity;
      if (fits && (best == nullptr || slot.capacity < best->capacity) &&
          slot.block.load(std::memory_order_relaxed) != nullptr) {
        best = &slot;
      }
    }
    void* block = best == nullptr ? nullptr : best->block.exchange(nullptr);
    if (block != nullptr) {
      *capacity = best->capacity;
      cached_ -= *capacity;
      --cached_blocks_;
      return block;
    }
  }
  void* block = take(*capacity);
  return block != nullptr ? block : std::aligned_alloc(kAlignment, *capacity);
}

void Pool::give_workspace(void* block, size_t capacity) noexcept {
  if (block == nullptr) return;
  if (!owns(block)) {
    std::free(block);
    return;
  }
  ThreadBlocks* own = own_blocks();
  if (own == nullptr || cached_ + capacity > limit_) {
    give(block);
    return;
  }
  ThreadBlocks::Slot* place = nullptr;
  for (auto& slot : own->slots) {
    if (slot.block.load(std::memory_order_relaxed) == nullptr) place = &slot;
  }
  if (place == nullptr) {
    place = &own->slots[own->next++ % kSlots];
    if (void* old = place->block.exchange(nullptr)) {
      cached_ -= place->capacity;
      --cached_blocks_;
      give(old);
    }
  }
  cached_ += capacity;
  ++cached_blocks_;
  place->capacity = capacity;
  place->block.exchange(block);
}

// --------------------------------------------------------------------------- system, and forks

size_t address_space() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  size_t space = pages > 0 && page > 0
                     ? kSpacePerMemory * static_cast<size_t>(pages) * static_cast<size_t>(page)
                     : kSmallSpace;
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    space = std::min<size_t>(space, limit.rlim_cur / 8);  // others need theirs
  }
  return space;
}

bool reserve(Heap& heap, size_t bytes) {
  for (; bytes >= kLeastSpace; bytes /= 2) {
    if (heap.reserve(bytes)) return true;
  }
  return false;
}

Pool::Pool() {
  const size_t space = address_space();
  if (!reserve(small_, std::min(kSmallSpace, space)) || !reserve(large_, space)) enabled_ = false;
  pthread_atfork(before_fork, after_fork, in_child);
}

// Only the thread that forked lives on. What the others held as tensors stays valid; what they kept
// for themselves goes back.
void Pool::in_child() {
  Pool& pool = get();
  for (ThreadBlocks* thread = pool.threads_; thread != nullptr;) {
    ThreadBlocks* following = thread->following;
    if (thread != this_thread) pool.dismiss_locked(thread);
    thread = following;
  }
  pool.mutex_.unlock();
}

thread_local int scope_depth = 0;

}  // namespace
}  // namespace loma

using loma::Pool;

extern "C" {

void* loma_pool_take(size_t bytes) noexcept { return Pool::get().take(bytes); }
bool loma_pool_give(void* block) noexcept { return Pool::get().give(block); }
bool loma_pool_owns(const void* pointer) noexcept { return Pool::get().owns(pointer); }

void* loma_workspace_take(size_t bytes, size_t* capacity) noexcept {
  return Pool::get().take_workspace(bytes, capacity);
}
void loma_workspace_give(void* block, size_t capacity) noexcept {
  Pool::get().give_workspace(block, capacity);
}

uint64_t loma_pool_release() noexcept { return Pool::get().release(); }
void loma_pool_set_limit(uint64_t bytes) noexcept { Pool::get().set_limit(bytes); }
void loma_pool_stats(LomaPoolStats* stats) noexcept { Pool::get().stats(*stats); }
void loma_pool_disable() noexcept { Pool::get().disable(); }
bool loma_pool_claim() noexcept { return Pool::get().claim(); }

void loma_scope_enter() noexcept { ++loma::scope_depth; }
void loma_scope_leave() noexcept { --loma::scope_depth; }
bool loma_scope_active() noexcept { return loma::scope_depth > 0; }

void** loma_device_place(int device) noexcept {
  static void* places[LOMA_DEVICES] = {};
  return &places[device];
}

}  // extern "C"
