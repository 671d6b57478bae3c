// Blocks of pages out of reserved address space: best fit, and free neighbours merge.
#ifndef LOMA_HEAP_H
#define LOMA_HEAP_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace loma {

// Not thread-safe. Sizes are bytes; offsets count from the start of the reserved address space.
//
// Everything below `top_` is a block, used or free; what is above was never used or is free again.
// Merging is what keeps the process small: a free block serves requests of any smaller size.
class Heap {
 public:
  // A granule is the unit in which pages are given back to the system. With `huge`, the system is
  // asked for huge pages: much fewer page faults, and fewer misses of the TLB.
  Heap(size_t granule, bool huge) : granule_(granule), huge_(huge) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // Reserves address space, once. False when the system refuses.
  bool reserve(size_t bytes) noexcept;

  // A block of at least `bytes` > 0 bytes at the start of a page; null when there is no space, or
  // when the system has no memory.
  void* take(size_t bytes) noexcept;

  // Whether the pointer is into the heap's address space. May be asked by any thread.
  bool owns(const void* pointer) const noexcept {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    return address - reinterpret_cast<uintptr_t>(base_) < reserved_;
  }

  // Frees the block that starts there; false when none does. Allocates nothing.
  bool give(void* block) noexcept;

  // The size of the used block that starts there.
  size_t size_of(const void* block) const noexcept;

  // Gives unused pages back to the system until those are `wanted` bytes or nothing is left; how
  // many bytes they are. Those go first whose last use began the longest ago: what a loop frees and
  // takes again stays. Allocates nothing.
  size_t purge(size_t wanted) noexcept;

  size_t held() const noexcept { return resident_count_ * granule_; }
  size_t in_use() const noexcept { return in_use_; }
  size_t blocks() const noexcept { return used_blocks_; }
  uint64_t obtained() const noexcept { return obtained_; }  // from the system, ever

 private:
  using FreeSet = std::set<std::pair<size_t, size_t>>;  // (size, offset)

  struct Block {
    size_t size;
    bool used;
    // Its entry in free_ while it is used: made with the block, so that freeing needs no memory.
    FreeSet::node_type entry;
  };
  using Blocks = std::map<size_t, Block>;  // by offset

  static FreeSet::node_type new_entry();
  void* take_free(FreeSet::iterator fit, size_t size);
  void* take_new(size_t size);
  bool commit(size_t end);
  void touch(size_t offset, size_t size);
  void insert_free(Blocks::iterator block) noexcept;
  void list_unused(size_t begin, size_t end) noexcept;
  void discard(size_t begin, size_t end) noexcept;

  const size_t granule_;
  const bool huge_;
  char* base_ = nullptr;
  size_t reserved_ = 0;   // bytes of address space
  size_t committed_ = 0;  // up to here pages may be written
  size_t top_ = 0;
  Blocks blocks_;
  FreeSet free_;
  static constexpr uint64_t kAbsent = 0;
  std::vector<uint64_t> granules_;  // when each was last taken; kAbsent: the process has no page of it
  std::vector<size_t> unused_;      // what purge() works with
  uint64_t clock_ = kAbsent;        // counts what was taken
  size_t resident_count_ = 0, in_use_ = 0, used_blocks_ = 0;
  uint64_t obtained_ = 0;
};

}  // namespace loma

#endif  // LOMA_HEAP_H
