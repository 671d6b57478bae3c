// Kernels for known sizes; see specialise.h.
#include "specialise.h"

#include "call_device.h"
#include "gpu_driver.h"
#include "gpu_reports.h"
#include "operators.h"

#include <ATen/Context.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <map>

namespace loma {
namespace {

constexpr size_t kMostSeen = 64;  // slots of an operator whose times are kept

// Where a library that this thread loads leaves its kernel, instead of adding it.
thread_local Apart* apart = nullptr;

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
    *apart = {name, kernel};
  } else {
    specialisations_of(name).add(std::move(slots), is_double ? at::kDouble : at::kFloat, kernel);
  }
  return true;
}

bool leave_apart(const char* name, Kernel kernel, uint64_t narrow) {
  if (apart != nullptr) *apart = {name, kernel, narrow};
  return true;
}

Apart load_apart(const std::string& library) {
  Apart found;
  apart = &found;
  dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);  // never unloaded
  apart = nullptr;
  return found;
}

const Specialisations::Made* Specialisations::made(const std::vector<int64_t>& slots,
                                                   at::ScalarType dtype, int device) const {
  for (const Made* made = made_.load(std::memory_order_acquire); made != nullptr;
       made = made->next) {
    if (made->dtype == dtype && made->device == device && made->slots == slots) {
      return made;
    }
  }
  return nullptr;
}

Kernel Specialisations::find(const std::vector<int64_t>& slots, at::ScalarType dtype,
                             int device) const {
  const Made* const found = made(slots, dtype, device);
  return found == nullptr ? nullptr : found->kernel;
}

Kernel Specialisations::find_ready(const std::vector<int64_t>& slots, at::ScalarType dtype,
                                   int device) const {
  const Made* const found = made(slots, dtype, device);
  if (found == nullptr) return nullptr;
  if (!found->has_run.load(std::memory_order_relaxed)) {
    if (gpu::is_capturing(device)) return nullptr;
    found->has_run.store(true, std::memory_order_relaxed);
  }
  return found->kernel;
}

void Specialisations::add(std::vector<int64_t> slots, at::ScalarType dtype, Kernel kernel,
                          int device) {
  auto* made = new Made{std::move(slots), dtype, device, kernel, made_.load()};
  while (!made_.compare_exchange_weak(made->next, made, std::memory_order_release,
                                      std::memory_order_relaxed)) {
  }
  if (device != kOnCpu) is_tuned_.store(true, std::memory_order_release);
}

// The entry of those slots; a new one takes the place of the one that matters least.
Specialisations::Seen* Specialisations::seen(const std::vector<int64_t>& slots,
                                             at::ScalarType dtype) {
  for (Seen& entry : seen_) {
    if (entry.dtype == dtype && entry.slots == slots) return &entry;
  }
  if (seen_.size() < kMostSeen) {
    return &seen_.emplace_back(Seen{slots, dtype});
  }
  const auto weight = [](const Seen& entry) {
    return entry.asked || entry.known ? INT64_MAX : entry.nanoseconds;
  };
  const auto least = std::min_element(
      seen_.begin(), seen_.end(),
      [&](const Seen& a, const Seen& b) { return weight(a) < weight(b); });
  if (least->asked || least->known) return nullptr;
  *least = Seen{slots, dtype};
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

void Specialisations::add_known(std::vector<int64_t> slots, at::ScalarType dtype) {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  Seen* entry = lock ? seen(slots, dtype) : nullptr;
  if (entry != nullptr && !entry->asked && find(slots, dtype) == nullptr) {
    entry->known = true;
    has_known_.store(true, std::memory_order_release);
  }
}

Kernel Specialisations::load(const SpecialisationPolicy& policy, const std::vector<int64_t>& slots,
                             at::ScalarType dtype) {
  if (!has_known_.load(std::memory_order_acquire)) return nullptr;
  {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    const auto entry = !lock ? seen_.end()
                             : std::find_if(seen_.begin(), seen_.end(), [&](const Seen& s) {
                                 return s.known && s.dtype == dtype && s.slots == slots;
                               });
    if (!lock || entry == seen_.end() || !may_ask(policy)) return nullptr;
    entry->known = false;
    entry->asked = true;
    has_known_.store(std::any_of(seen_.begin(), seen_.end(), [](const Seen& s) { return s.known; }),
                     std::memory_order_release);
  }
  policy.ask(name_, slots, dtype, true);
  return find(slots, dtype);
}

void Specialisations::note(const SpecialisationPolicy& policy, const std::vector<int64_t>& slots,
                           at::ScalarType dtype, int64_t nanoseconds) {
  if (nanoseconds < policy.call_ns) return;
  {
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    Seen* entry = lock ? seen(slots, dtype) : nullptr;
    if (entry == nullptr || entry->asked) return;
    ++entry->calls;
    entry->nanoseconds += nanoseconds;
    if (entry->calls < policy.calls || entry->nanoseconds < policy.total_ns || !may_ask(policy)) {
      return;
    }
    entry->asked = true;
  }
  policy.ask(name_, slots, dtype, false);
}

bool Specialisations::is_first(const std::vector<int64_t>& slots, at::ScalarType dtype,
                               int device) {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock || searched_.size() >= kMostSeen) return false;
  for (const auto& [known, type, place] : searched_) {
    if (type == dtype && place == device && known == slots) return false;
  }
  searched_.emplace_back(slots, dtype, device);
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

// Calls a kernel for known sizes; what fails there fails once more in the general one, in the
// program's own words, where this one knows numbers only. What it has written in place by then could
// hide the failure from that.
static Tensors call_known(Kernel kernel, Kernel general, const Tensors& tensors,
                          const std::vector<int64_t>& ints, bool in_place, size_t results) {
  try {
    return call_kernel(kernel, tensors, ints, in_place, results);
  } catch (...) {
    Tensors made = call_kernel(general, tensors, ints, false, results);
    if (in_place) throw;
    return made;
  }
}

Tensors run_specialised(Specialisations& own, const SpecialisationPolicy* policy,
                        const std::vector<int64_t>& slots, Kernel general, const Tensors& tensors,
                        const std::vector<int64_t>& ints, bool in_place, size_t results) {
  const auto call = [&] { return call_kernel(general, tensors, ints, in_place, results); };
  // A kernel is made for what took long, comes when it is ready, and may round otherwise.
  if (at::globalContext().deterministicAlgorithms()) return call();
  const auto dtype = is_double(tensors) ? at::kDouble : at::kFloat;
  if (policy != nullptr && policy->searches && !slots.empty() && own.is_first(slots, dtype)) {
    policy->search(own.name(), slots, dtype, kOnCpu, tensors, ints, in_place, results);
  }
  Kernel kernel = own.find(slots, dtype);
  // A full operator takes part no more, and one without sizes and ints is as special as it can be.
  const bool watched = policy != nullptr && !slots.empty() && !own.is_full();
  if (kernel == nullptr && watched) {
    kernel = own.load(*policy, slots, dtype);
  }
  if (kernel != nullptr) return call_known(kernel, general, tensors, ints, in_place, results);
  if (!watched) return call();
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  Tensors made = call();
  const auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start);
  own.note(*policy, slots, dtype, time.count());
  return made;
}

Tensors run_tuned(Specialisations& own, const SpecialisationPolicy* policy,
                  const std::vector<int64_t>& slots, Kernel general, const Tensors& tensors,
                  const std::vector<int64_t>& ints, bool in_place, size_t results) {
  const auto call = [&] { return call_kernel(general, tensors, ints, in_place, results); };
  const bool searches = policy != nullptr && policy->search;
  if (slots.empty() || !(searches || own.is_tuned())) return call();
  if (at::globalContext().deterministicAlgorithms()) return call();
  // What computes with narrow tensors as they are has one form of its own.
  const at::ScalarType in_float = is_narrow(call_dtype()) ? call_dtype() : at::kFloat;
  const at::ScalarType dtype = is_double(tensors) ? at::kDouble : in_float;
  const at::Device where = call_device();
  const int device = where.is_cuda() ? where.index() : 0;
  Kernel kernel = own.find_ready(slots, dtype, device);
  if (kernel == nullptr && searches && !gpu::is_capturing(device) &&
      own.is_first(slots, dtype, device)) {
    // Candidates also run on other streams, when all that they read is there; and what they report is
    // nobody's: what earlier calls have, this one tells before.
    if (policy->searches) gpu::check_device(where);
    policy->search(own.name(), slots, dtype, device, tensors, ints, in_place, results);
    kernel = own.find_ready(slots, dtype, device);
  }
  if (kernel == nullptr) return call();
  return call_known(kernel, general, tensors, ints, in_place, results);
}

}  // namespace loma
