// The pool as torch's allocator of CPU memory, inside functions of loma.
#include "memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

namespace loma {
namespace {

// Smaller blocks are malloc's: its lists serve them faster, and nothing of them goes back to the
// system at once.
constexpr size_t kLeastBlock = size_t{16} << 10;

void give_back(void* block) {
  c10::profiledCPUMemoryReporter().Delete(block);
  loma_pool_give(block);
}

// In front of the allocator that was there before, which serves everything else.
class PoolAllocator final : public c10::Allocator {
 public:
  explicit PoolAllocator(c10::Allocator* former) : former_(former) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes >= kLeastBlock && loma_scope_active()) {
      if (void* block = loma_pool_take(bytes)) {
        c10::profiledCPUMemoryReporter().New(block, bytes);
        return {block, block, give_back, c10::Device(c10::DeviceType::CPU)};
      }
    }
    try {
      return former_->allocate(bytes);
    } catch (const c10::Error&) {  // no memory: perhaps there is some that lies unused
      if (loma_pool_release() == 0) throw;
      return former_->allocate(bytes);
    }
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return (data.get_deleter() == give_back && data.get() == data.get_context()) ||
           former_->is_simple_data_ptr(data);
  }

  // For callers that hold plain pointers, ours or the former allocator's.
  c10::DeleterFnPtr raw_deleter() const override {
    return former_->raw_deleter() == nullptr ? nullptr : give_back_raw;
  }

  c10::Allocator* former() const { return former_; }

 private:
  static void give_back_raw(void* block);

  c10::Allocator* former_;
};

PoolAllocator* installed = nullptr;

void PoolAllocator::give_back_raw(void* block) {
  if (loma_pool_owns(block)) {
    give_back(block);
  } else {
    installed->former()->raw_deleter()(block);
  }
}

}  // namespace

void install_pool() {
  if (!loma_pool_claim()) return;
  installed = new PoolAllocator(c10::GetCPUAllocator());  // lives as long as its last tensor
  // The lowest priority that suffices, so that who replaces the allocator later still can.
  for (int priority = 0; priority <= UINT8_MAX && c10::GetCPUAllocator() != installed; ++priority) {
    c10::SetCPUAllocator(installed, static_cast<uint8_t>(priority));
  }
}

}  // namespace loma
