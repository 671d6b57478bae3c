#include "gpu_reports.h"

#include "checks.h"
#include "gpu_driver.h"
#include "pool.h"
#include "tables.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstring>

namespace loma::gpu {
namespace {

std::atomic<void*>& place_of(int device) {
  TORCH_CHECK(device >= 0 && device < LOMA_DEVICES, "CUDA device ", device, ": loma serves the first ",
              LOMA_DEVICES);
  return *reinterpret_cast<std::atomic<void*>*>(loma_device_place(device));
}

// The CPU's tensors, which a stand-in serves, have the place of the first GPU.
int number_of(at::Device device) { return device.is_cuda() ? device.index() : 0; }

std::atomic<Failed>& failed() {
  static std::atomic<Failed> set{nullptr};
  return set;
}

int32_t state_of(const Report* report) {
  return __atomic_load_n(&report->state, __ATOMIC_ACQUIRE);
}

void throw_ready(int device, Report* report) {
  // A recording may not wait; the next call finds the report. Of several threads one takes it.
  int32_t ready = Report::kReady;
  if (state_of(report) != ready || is_capturing(device)) return;
  if (!__atomic_compare_exchange_n(&report->state, &ready, Report::kClaimed, false, __ATOMIC_ACQUIRE,
                                   __ATOMIC_RELAXED)) {
    return;
  }
  // What was launched behind the kernel that failed has computed with its values: whatever that says
  // is no news.
  try {
    synchronize(device);
  } catch (...) {
    __atomic_store_n(&report->state, Report::kReady, __ATOMIC_RELEASE);
    throw;
  }
  const Report taken = *report;
  __atomic_store_n(&report->state, Report::kFree, __ATOMIC_RELEASE);
  throw_check(taken);
}

}  // namespace

Report* report_of(at::Device device) {
  auto& place = place_of(number_of(device));
  void* known = place.load(std::memory_order_acquire);
  if (known == nullptr) {
    void* made = visible_memory(number_of(device), sizeof(Report));
    // Of two threads one comes first; the other's memory is lost.
    if (place.compare_exchange_strong(known, made)) known = made;
  }
  return static_cast<Report*>(known);
}

void throw_report(at::Device device) {
  void* known = place_of(number_of(device)).load(std::memory_order_acquire);
  if (known != nullptr) throw_ready(number_of(device), static_cast<Report*>(known));
}

void check_device(at::Device device) {
  void* known = place_of(number_of(device)).load(std::memory_order_acquire);
  if (known == nullptr) return;  // nothing was ever launched
  synchronize(number_of(device));
  throw_ready(number_of(device), static_cast<Report*>(known));
}

void check_devices() {
  for (int k = 0; k < LOMA_DEVICES; ++k) {
    if (place_of(k).load(std::memory_order_acquire) != nullptr) {
      check_device(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(k)));
    }
  }
}

void set_failed(Failed given) { failed().store(given); }

void throw_check(const Report& report) {
  const auto& n = report.numbers;
  const auto text = [&](int k) { return report.texts[k]; };
  switch (static_cast<Check>(report.kind)) {
    case Check::element: element_error(text(0), text(1), n[0], n[1], n[2]); break;
    case Check::range: {
      Interval found(n[2]);
      found.high = n[3];
      range_error(text(0), text(1), text(2), n[0], n[1], found);
      break;
    }
    case Check::outside: outside_error(text(0), text(1), text(2), n[0], n[1], n[2]); break;
    case Check::extent: extent_error(text(0), text(1), n[0], text(2), n[1], n[2]); break;
    case Check::empty: empty_error(text(0), text(1)); break;
    case Check::endless: while_error(text(0), n[0], n[1]); break;
    case Check::zero_division: zero_division(text(0), text(1)); break;
    case Check::zero_step: zero_step(text(0));
    case Check::subscript:
      subscript_error(n[0], static_cast<size_t>(n[1]), text(0), n[2]);
      break;
    case Check::storage:
      storage_error(static_cast<int>(n[0]), static_cast<int>(n[1]), text(0), n[2]);
      break;
    case Check::full: full_error(n[0], text(0), n[1]); break;
    case Check::drained: drained_error(text(0), n[0]); break;
    case Check::scalar:
      if (const Failed known = failed().load()) known(report);
      TORCH_CHECK(false, text(0), ": line ", n[1], ": failed on a GPU");
      break;
    case Check::memory:
      TORCH_CHECK_WITH(OutOfMemoryError, false, text(0), ": line ", n[1], ": a stack of ", n[0],
                       " elements cannot grow: the device has no memory for those of so many threads");
  }
  TORCH_CHECK(false, "a kernel's report of an unknown kind, ", report.kind);
}

}  // namespace loma::gpu
