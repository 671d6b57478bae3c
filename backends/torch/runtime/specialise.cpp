// Kernels for known sizes; see specialise.h.
#include "specialise.h"

#include "call_device.h"
#include "gpu_driver.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <map>

namespace loma {
namespace {

constexpr size_t kMostSeen = 64;  // slots of an operator whose times are kept

// Where a library that this thread loads leaves its kernel, instead of adding it.
thread_local Kernel* apart = nullptr;

}  // namespace

Specialisations& specialisations_of(const std::string& name) {
  // Never destroyed: operators may run while the process ends.
  static auto* mutex = new std::mutex();
  static auto* all = new std::map<std::string, std::unique_ptr<Specialisations>>();
  const std::lock_guard<std::mutex> lock(*mutex);
  auto& own = (*all)[name];
  if (own == nullptr) {
    own = std::make_unique<Specialisations>(name);
  }
  return *own;
}

static bool register_general(std::atomic<Kernel> (&general)[2], Kernels kernels) {
  if (kernels.of_float != nullptr) general[0].store(kernels.of_float, std::memory_order_release);
  if (kernels.of_double != nullptr) general[1].store(kernels.of_double, std::memory_order_release);
  return true;
}

bool register_kernels(const char* name, Kernels kernels) {
  return register_general(specialisations_of(name).general[0], kernels);
}

bool register_device_kernels(const char* name, Kernels kernels, uint64_t narrow) {
  Specialisations& own = specialisations_of(name);
  if (kernels.of_float != nullptr) own.narrow.store(narrow);
  return register_general(own.general[1], kernels);
}

bool register_specialisation(const char* name, std::vector<int64_t> slots, bool is_double,
                             Kernel kernel) {
  if (apart != nullptr) {
    *apart = kernel;
  } else {
    specialisations_of(name).add(std::move(slots), is_double, kernel);
  }
  return true;
}

bool leave_apart(Kernel kernel) {
  if (apart != nullptr) *apart = kernel;
  return true;
}

Kernel load_apart(const std::string& library) {
  Kernel found = nullptr;
  apart = &found;
  dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);  // never unloaded
  apart = nullptr;
  return found;
}

const Specialisations::Made* Specialisations::made(const std::vector<int64_t>& slots, bool is_double,
                                                   int device) const {
  for (const Made* made = made_.load(std::memory_order_acquire); made != nullptr;
       made = made->next) {
    if (made->is_double == is_double && made->device == device && made->slots == slots) {
      return made;
    }
  }
  return nullptr;
}

Kernel Specialisations::find(const std::vector<int64_t>& slots, bool is_double, int device) const {
  const Made* const found = made(slots, is_double, device);
  return found == nullptr ? nullptr : found->kernel;
}

Kernel Specialisations::find_ready(const std::vector<int64_t>& slots, bool is_double,
                                   int device) const {
  const Made* const found = made(slots, is_double, device);
  if (found == nullptr) return nullptr;
  if (!found->has_run.load(std::memory_order_relaxed)) {
    if (gpu::is_capturing(device)) return nullptr;
    found->has_run.store(true, std::memory_order_relaxed);
  }
  return found->kernel;
}

void Specialisations::add(std::vector<int64_t> slots, bool is_double, Kernel kernel, int device) {
  auto* made = new Made{std::move(slots), is_double, device, kernel, made_.load()};
  while (!made_.compare_exchange_weak(made->next, made, std::memory_order_release,
                                      std::memory_order_relaxed)) {
  }
  if (device != kOnCpu) is_tuned_.store(true, std::memory_order_release);
}

// The entry of those slots; a new one takes the place of the one that matters least.
Specialisations::Seen* Specialisations::seen(const std::vector<int64_t>& slots, bool is_double) {
  for (Seen& entry : seen_) {
    if (entry.is_double == is_double && entry.slots == slots) return &entry;
  }
  if (seen_.size() < kMostSeen) {
    return &seen_.emplace_back(Seen{slots, is_double});
  }
  const auto weight = [](const Seen& entry) {
    return entry.asked || entry.known ? INT64_MAX : entry.nanoseconds;
  };
  const auto least = std::min_element(
      seen_.begin(), seen_.end(),
      [&](const Seen& a, const Seen& b) { return weight(a) < weight(b); });
  if (least->asked || least->known) return nullptr;
  *least = Seen{slots, is_double};
  return &*least;
}

bool Specialisations::may_ask(const SpecialisationPolicy& policy) {
  if (asked_ >= policy.limit) {
    full_.store(true, std::memory_order_relaxed);
    return false;
  }
  ++asked_;
  return true;
}

void Specialisations::add_known(std::vector<int64_t> slots, bool is_double) {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  Seen* entry = lock ? seen(slots, is_double) : nullptr;
  if (entry != nullptr && !entry->asked && find(slots, is_double) == nullptr) {
    entry->known = true;
    has_known_.store(true, std::memory_order_release);
  }
}

Kernel Specialisations::load(const SpecialisationPolicy& policy, const std::vector<int64_t>& slots,
                             bool is_double) {
  if (!has_known_.load(std::memory_order_acquire)) return nullptr;
  {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    const auto entry = !lock ? seen_.end()
                             : std::find_if(seen_.begin(), seen_.end(), [&](const Seen& s) {
                                 return s.known && s.is_double == is_double && s.slots == slots;
                               });
    if (!lock || entry == seen_.end() || !may_ask(policy)) return nullptr;
    entry->known = false;
    entry->asked = true;
    has_known_.store(std::any_of(seen_.begin(), seen_.end(), [](const Seen& s) { return s.known; }),
                     std::memory_order_release);
  }
  policy.ask(name_, slots, is_double, true);
  return find(slots, is_double);
}

void Specialisations::note(const SpecialisationPolicy& policy, const std::vector<int64_t>& slots,
                           bool is_double, int64_t nanoseconds) {
  if (nanoseconds < policy.call_ns) return;
  {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    Seen* entry = lock ? seen(slots, is_double) : nullptr;
    if (entry == nullptr || entry->asked) return;
    ++entry->calls;
    entry->nanoseconds += nanoseconds;
    if (entry->calls < policy.calls || entry->nanoseconds < policy.total_ns || !may_ask(policy)) {
      return;
    }
    entry->asked = true;
  }
  policy.ask(name_, slots, is_double, false);
}

bool Specialisations::is_first(const std::vector<int64_t>& slots, bool is_double, int device) {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock || searched_.size() >= kMostSeen) return false;
  for (const auto& [known, wide, place] : searched_) {
    if (wide == is_double && place == device && known == slots) return false;
  }
  searched_.emplace_back(slots, is_double, device);
  return true;
}

bool is_double(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && at::isFloatingType(tensor.scalar_type())) {
      return tensor.scalar_type() == at::kDouble;
    }
  }
  return false;
}

Tensors call_kernel(Kernel kernel, const Tensors& tensors, const std::vector<int64_t>& ints,
                    bool in_place, size_t results) {
  Tensors made(results);
  kernel(tensors.data(), ints.data(), in_place, made.data());
  return made;
}

Tensors run_specialised(Specialisations& own, const SpecialisationPolicy* policy,
                        const std::vector<int64_t>& slots, Kernel general, const Tensors& tensors,
                        const std::vector<int64_t>& ints, size_t results) {
  const auto call = [&](Kernel kernel) { return call_kernel(kernel, tensors, ints, false, results); };
  // A kernel is made for what took long, comes when it is ready, and may round otherwise.
  if (at::globalContext().deterministicAlgorithms()) return call(general);
  const bool wide = is_double(tensors);
  if (policy != nullptr && policy->searches && !slots.empty() && own.is_first(slots, wide)) {
    policy->search(own.name(), slots, wide, kOnCpu, tensors, ints, results);
  }
  Kernel kernel = own.find(slots, wide);
  // A full operator takes part no more, and one without sizes and ints is as special as it can be.
  const bool watched = policy != nullptr && !slots.empty() && !own.is_full();
  if (kernel == nullptr && watched) {
    kernel = own.load(*policy, slots, wide);
  }
  if (kernel != nullptr) {
    try {
      return call(kernel);
    } catch (...) {
      // The general kernel fails in the program's own words, where this one knows numbers only.
      return call(general);
    }
  }
  if (!watched) return call(general);
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  Tensors made = call(general);
  const auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start);
  own.note(*policy, slots, wide, time.count());
  return made;
}

Tensors run_tuned(Specialisations& own, const SpecialisationPolicy* policy,
                  const std::vector<int64_t>& slots, Kernel general, const Tensors& tensors,
                  const std::vector<int64_t>& ints, size_t results) {
  const auto call = [&](Kernel kernel) { return call_kernel(kernel, tensors, ints, false, results); };
  const bool searches = policy != nullptr && policy->search;
  if (slots.empty() || !(searches || own.is_tuned())) return call(general);
  if (at::globalContext().deterministicAlgorithms()) return call(general);
  const bool wide = is_double(tensors);
  const at::Device where = call_device();
  const int device = where.is_cuda() ? where.index() : 0;
  Kernel kernel = own.find_ready(slots, wide, device);
  if (kernel == nullptr && searches && !gpu::is_capturing(device) &&
      own.is_first(slots, wide, device)) {
    policy->search(own.name(), slots, wide, device, tensors, ints, results);
    kernel = own.find_ready(slots, wide, device);
  }
  if (kernel == nullptr) return call(general);
  try {
    return call(kernel);
  } catch (...) {
    return call(general);  // which fails in the program's own words
  }
}

}  // namespace loma
