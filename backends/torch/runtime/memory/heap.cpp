// The heap of the pool; see heap.h.
#include "heap.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace loma {
namespace {

constexpr size_t kPage = 4096;              // blocks are multiples of it, whatever the system's is
constexpr size_t kCommit = size_t{2} << 20;  // writable space grows by this: a huge page

constexpr size_t round_down(size_t bytes, size_t unit) { return bytes / unit * unit; }
constexpr size_t round_up(size_t bytes, size_t unit) { return round_down(bytes + unit - 1, unit); }

}  // namespace

bool Heap::reserve(size_t bytes) noexcept {
  bytes = round_up(bytes, kCommit);
  void* space = mmap(nullptr, bytes + kCommit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (space == MAP_FAILED) return false;
  const auto address = reinterpret_cast<uintptr_t>(space);
  base_ = reinterpret_cast<char*>(round_up(address, kCommit));
  reserved_ = bytes;
  return true;
}

void* Heap::take(size_t bytes) noexcept {
  if (bytes > reserved_) return nullptr;
  const size_t size = round_up(bytes, kPage);
  try {
    const auto fit = free_.lower_bound({size, 0});
    return fit != free_.end() ? take_free(fit, size) : take_new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

Heap::FreeSet::node_type Heap::new_entry() {
  FreeSet one{{0, 0}};
  return one.extract(one.begin());
}

// Whatever throws comes before anything changes.
void* Heap::take_free(FreeSet::iterator fit, size_t size) {
  const auto [whole, offset] = *fit;
  const auto block = blocks_.find(offset);
  if (whole > size) {
    Block rest{whole - size, true, new_entry()};
    const auto next = blocks_.emplace_hint(std::next(block), offset + size, std::move(rest));
    block->second.entry = free_.extract(fit);
    block->second.size = size;
    insert_free(next);
  } else {
    block->second.entry = free_.extract(fit);
  }
  block->second.used = true;
  touch(offset, size);
  return base_ + offset;
}

void* Heap::take_new(size_t size) {
  if (size > reserved_ - top_ || !commit(top_ + size)) return nullptr;
  if (const size_t granules = round_up(committed_, granule_) / granule_;
      granules > granules_.size()) {
    unused_.reserve(granules);
    granules_.resize(granules);
  }
  const size_t offset = top_;
  blocks_.emplace_hint(blocks_.end(), offset, Block{size, true, new_entry()});
  top_ += size;
  touch(offset, size);
  return base_ + offset;
}

// Makes the space up to there writable. False when the system has not so much memory.
bool Heap::commit(size_t end) {
  if (end <= committed_) return true;
  end = std::min(round_up(end, kCommit), reserved_);
  if (mprotect(base_ + committed_, end - committed_, PROT_READ | PROT_WRITE) != 0) return false;
#ifdef MADV_HUGEPAGE
  if (huge_) madvise(base_ + committed_, end - committed_, MADV_HUGEPAGE);  // refused: small pages
#endif
  committed_ = end;
  return true;
}

void Heap::touch(size_t offset, size_t size) {
  const size_t before = resident_count_;
  ++clock_;
  for (size_t g = offset / granule_; g <= (offset + size - 1) / granule_; ++g) {
    if (granules_[g] == kAbsent) ++resident_count_;
    granules_[g] = clock_;
  }
  obtained_ += (resident_count_ - before) * granule_;
  in_use_ += size;
  ++used_blocks_;
}

void Heap::insert_free(Blocks::iterator block) noexcept {
  Block& b = block->second;
  b.used = false;
  b.entry.value() = {b.size, block->first};
  free_.insert(std::move(b.entry));
}

bool Heap::give(void* pointer) noexcept {
  if (!owns(pointer)) return false;
  auto block = blocks_.find(static_cast<size_t>(static_cast<char*>(pointer) - base_));
  if (block == blocks_.end() || !block->second.used) return false;
  in_use_ -= block->second.size;
  --used_blocks_;
  if (const auto next = std::next(block); next != blocks_.end() && !next->second.used) {
    free_.erase({next->second.size, next->first});
    block->second.size += next->second.size;
    blocks_.erase(next);
  }
  if (block != blocks_.begin()) {
    if (const auto before = std::prev(block); !before->second.used) {
      free_.erase({before->second.size, before->first});
      before->second.size += block->second.size;
      before->second.entry = std::move(block->second.entry);
      blocks_.erase(block);
      block = before;
    }
  }
  if (block->first + block->second.size == top_) {
    top_ = block->first;
    blocks_.erase(block);
  } else {
    insert_free(block);
  }
  return true;
}

size_t Heap::size_of(const void* pointer) const noexcept {
  const auto offset = static_cast<size_t>(static_cast<const char*>(pointer) - base_);
  const auto block = blocks_.find(offset);
  return block == blocks_.end() ? 0 : block->second.size;
}

size_t Heap::purge(size_t wanted) noexcept {
  unused_.clear();  // has room for all: take_new() sees to that
  for (const auto& [size, offset] : free_) list_unused(offset, offset + size);
  list_unused(top_, committed_);
  const size_t count = std::min(unused_.size(), wanted / granule_ + (wanted % granule_ != 0));
  if (count < unused_.size()) {
    const auto older = [this](size_t a, size_t b) { return granules_[a] < granules_[b]; };
    std::nth_element(unused_.begin(), unused_.begin() + count, unused_.end(), older);
    unused_.resize(count);
  }
  std::sort(unused_.begin(), unused_.end());
  for (size_t last = count; last > 0;) {  // in runs, from the end down
    size_t first = last - 1;
    while (first > 0 && unused_[first - 1] + 1 == unused_[first]) --first;
    discard(unused_[first] * granule_, (unused_[last - 1] + 1) * granule_);
    last = first;
  }
  for (const size_t g : unused_) granules_[g] = kAbsent;
  resident_count_ -= count;
  return count * granule_;
}

// The granules between two offsets that are there as a whole.
void Heap::list_unused(size_t begin, size_t end) noexcept {
  const size_t last = std::min(end / granule_, granules_.size());
  for (size_t g = round_up(begin, granule_) / granule_; g < last; ++g) {
    if (granules_[g] != kAbsent) unused_.push_back(g);
  }
}

void Heap::discard(size_t begin, size_t end) noexcept {
  if (begin >= top_ && end == committed_) {
    // Mapped anew, the pages do not even count as promised.
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap(base_ + begin, end - begin, PROT_NONE, kFlags, -1, 0) != MAP_FAILED) {
      committed_ = begin;
      return;
    }
  }
  madvise(base_ + begin, end - begin, MADV_DONTNEED);
}

}  // namespace loma
