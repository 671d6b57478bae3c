#include "gpu_kernels.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace loma::gpu {
namespace {

constexpr int kLaunches = 3;      // with the same numbers, before they count as known
constexpr size_t kMostSeen = 16;  // sets of numbers that are counted at a time

const Compiler*& compiler() {
  static const Compiler* set = nullptr;  // never freed: calls may run while the process ends
  return set;
}

std::string define(const char* name, int64_t value) {
  return std::string("-D") + name + "=" + std::to_string(value);
}

}  // namespace

void set_compiler(Compiler given) { compiler() = new Compiler(std::move(given)); }

bool Form::operator==(const Form& o) const {
  return device == o.device && real_bytes == o.real_bytes && threads == o.threads &&
         team == o.team && stage == o.stage && across == o.across && shared == o.shared &&
         narrow == o.narrow && depth == o.depth && width == o.width && groups == o.groups &&
         set == o.set && aligned == o.aligned && lists == o.lists && registers == o.registers &&
         unroll == o.unroll && lanes == o.lanes && rows == o.rows && columns == o.columns && fixed == o.fixed;
}

Kernel::Kernel(const char* name, const char* text, bool lists, bool known, int fixed)
    : state_(new State(name, text, lists, known, fixed)) {}

Request Kernel::State::request(const Form& form, const int64_t* numbers, int count) const {
  Request made{name, text, architecture(form.device), {}};
  auto& options = made.options;
  options = {std::string("-DLOMA_REAL=") + (form.real_bytes == sizeof(double) ? "double" : "float"),
             define("LOMA_THREADS", form.threads), define("LOMA_TEAM", form.team),
             define("LOMA_ACROSS", form.across),   define("LOMA_STAGE", form.stage),
             define("LOMA_SHARED", form.shared)};
  if (form.narrow != 0) {
    options.push_back(define("LOMA_NARROW", form.narrow));
    options.push_back(define("LOMA_DEPTH", form.depth));
    options.push_back(define("LOMA_WIDTH", form.width));
    if (form.groups != 0) options.push_back(define("LOMA_GROUPS", form.groups));
  }
  if (form.rows * form.columns > 1) {
    options.push_back(define("LOMA_TILE_ROWS", form.rows));
    options.push_back(define("LOMA_TILE_COLUMNS", form.columns));
  }
  if (form.lanes != 0) options.push_back(define("LOMA_LANES", form.lanes));
  for (int k = 0; k < fixed; ++k) {
    options.push_back(define(("LOMA_FIXED_" + std::to_string(k)).c_str(), form.fixed[k]));
  }
  if (form.registers != 0) options.push_back(define("LOMA_REGISTERS", form.registers));
  if (form.unroll != 0) options.push_back(define("LOMA_ROUNDS", form.unroll));
  if (form.aligned) options.emplace_back("-DLOMA_ALIGNED");
  if (form.lists) options.emplace_back("-DLOMA_LISTED");
  if (form.set != 0) {
    options.emplace_back("-DLOMA_KNOWN");
    for (int k = 0; k < count; ++k) {
      options.push_back(define(("LOMA_KNOWN_" + std::to_string(k)).c_str(), numbers[k]));
    }
  }
  return made;
}

// To be called under the lock.
Compiled* Kernel::State::made(const Form& form) {
  const auto found = std::find_if(compiled_.begin(), compiled_.end(),
                                  [&](const auto& one) { return one->form == form; });
  return found == compiled_.end() ? nullptr : found->get();
}

// Which set of known numbers these are; 0: none yet. `at_once`: the first counts from its first launch
// on. To be called under the lock.
int Kernel::State::set_of(const int64_t* numbers, int count, int most, bool at_once) {
  const auto same = [&](const Seen& one) {
    return std::equal(one.numbers.begin(), one.numbers.end(), numbers, numbers + count);
  };
  auto found = std::find_if(seen_.begin(), seen_.end(), same);
  if (found == seen_.end()) {
    if (sets_ >= most) return 0;
    Seen one{{numbers, numbers + count}, 0, 0};
    if (seen_.size() < kMostSeen) {
      seen_.push_back(std::move(one));
      found = seen_.end() - 1;
    } else {  // the next one in turn that is no set
      do {
        next_seen_ = (next_seen_ + 1) % kMostSeen;
      } while (seen_[next_seen_].set != 0);
      found = seen_.begin() + static_cast<std::ptrdiff_t>(next_seen_);
      *found = std::move(one);
    }
  }
  const int launches = at_once && sets_ == 0 ? 1 : kLaunches;
  if (found->set == 0 && ++found->launches >= launches && sets_ < most) found->set = ++sets_;
  return found->set;
}

Function Kernel::State::loaded(const Form& form, const std::string& image) const {
  return load(form.device, image, (form.lists ? name + "__lists" : name).c_str());
}

// Loads what a thread has made. Where the driver does not take it, a warning says so once, and the
// kernel for all numbers stays. To be called under the lock.
void Kernel::State::load_made(Compiled& entry) {
  const std::string image = std::move(entry.image);
  entry.image.clear();
  try {
    entry.function = loaded(entry.form, image);
  } catch (const c10::Error& error) {
    TORCH_WARN_ONCE("loma: the kernel '", name, "' could not be loaded for the numbers it is called "
                    "with, the general one stays (further failures are not reported): ",
                    error.what_without_backtrace());
  }
}

// The entry's function, once its blocks may have so many bytes of private memory: a smaller launch of
// another thread must not take back what a larger one has asked for. To be called under the lock.
Function Kernel::State::with_shared(Compiled& entry, int64_t bytes) {
  if (bytes > entry.most_shared) {
    const int64_t most = std::max(bytes, kPlainShared + kOwnShared);
    allow_shared(entry.form.device, entry.function, most);
    entry.most_shared = most;
  }
  return entry.function;
}

// The kernel for known numbers, if it is there; asked for where it is time.
Function Kernel::State::known(const Form& general, const int64_t* numbers, int count,
                              bool aligned, int64_t shared) {
  const Compiler& own = *compiler();
  const int most = std::min<int>(own.known, kMostSeen - 1);
  if (count == 0 || most == 0) return nullptr;
  Form form = general;
  Compiled* entry;
  bool now = is_known && !is_capturing(form.device);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    form.set = set_of(numbers, count, most, now);
    if (form.set == 0) return nullptr;
    now = now && form.set == 1;
    form.aligned = aligned;
    entry = made(form);
    if (entry != nullptr) {
      if (entry->function == nullptr && !entry->image.empty() && !is_capturing(form.device)) {
        load_made(*entry);
      }
      if (entry->function != nullptr) return with_shared(*entry, shared);
      // Another thread may be at it: what is measured next has to be that kernel.
      if (!now || !is_trial()) return nullptr;
    } else {
      entry = compiled_.emplace_back(std::make_unique<Compiled>(Compiled{form})).get();
    }
  }
  if (now) {
    const Function function = loaded(form, own.make(request(form, numbers, count)));
    const std::lock_guard<std::mutex> lock(mutex_);
    entry->function = function;
    return with_shared(*entry, shared);
  }
  own.make_later(request(form, numbers, count), [this, entry](std::string image) {
    const std::lock_guard<std::mutex> lock(mutex_);
    entry->image = std::move(image);
  });
  return nullptr;
}

Function Kernel::State::find(Form form, const int64_t* numbers, int count, bool aligned,
                             int64_t shared) {
  TORCH_CHECK(compiler() != nullptr, name, ": kernels for GPUs are compiled when they are first "
              "launched, which only a program in Python can do");
  std::copy_n(numbers, std::min(fixed, count), form.fixed.begin());
  if (form.stage != 2 && !form.lists) {  // the former is short, the latter has numbers of many
    if (Function found = known(form, numbers, count, aligned, shared)) return found;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Compiled* found = made(form)) return with_shared(*found, shared);
  }
  const std::string image = compiler()->make(request(form, numbers, count));
  const Function function = loaded(form, image);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (Compiled* found = made(form)) return with_shared(*found, shared);  // another thread's
  auto& own = compiled_.emplace_back(std::make_unique<Compiled>(Compiled{form}));
  own->function = function;
  return with_shared(*own, shared);
}

}  // namespace loma::gpu
