#include "gpu_kernels.h"

#include <ATen/Context.h>
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
         set == o.set;
}

Kernel::Kernel(const char* name, const char* text, bool contract)
    : state_(new State(name, text, contract)) {}

Request Kernel::State::request(const Form& form, const int64_t* numbers, int count) const {
  Request made{name, text, architecture(form.device), {}};
  auto& options = made.options;
  options = {std::string("-DLOMA_REAL=") + (form.real_bytes == sizeof(double) ? "double" : "float"),
             define("LOMA_THREADS", form.threads), define("LOMA_TEAM", form.team),
             define("LOMA_ACROSS", form.across),   define("LOMA_STAGE", form.stage),
             define("LOMA_SHARED", form.shared)};
  if (!contract) options.emplace_back("--fmad=false");
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

// Which set of known numbers these are; 0: none yet. To be called under the lock.
int Kernel::State::set_of(const int64_t* numbers, int count, int most) {
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
  if (found->set == 0 && ++found->launches >= kLaunches && sets_ < most) found->set = ++sets_;
  return found->set;
}

// The kernel for known numbers, if it is there; asked for where it is time.
Compiled* Kernel::State::known(const Form& general, const int64_t* numbers, int count) {
  const Compiler& own = *compiler();
  const int most = std::min<int>(own.known, kMostSeen - 1);
  // What came when it was ready may round otherwise.
  if (count == 0 || most == 0 || at::globalContext().deterministicAlgorithms()) return nullptr;
  Form form = general;
  Compiled* entry;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    form.set = set_of(numbers, count, most);
    if (form.set == 0) return nullptr;
    entry = made(form);
    if (entry != nullptr) {
      if (entry->function == nullptr && !entry->image.empty() && !is_capturing(form.device)) {
        entry->function = load(form.device, entry->image, name.c_str());
        entry->image.clear();
      }
      return entry->function == nullptr ? nullptr : entry;
    }
    entry = compiled_.emplace_back(std::make_unique<Compiled>(Compiled{form})).get();
  }
  own.make_later(request(form, numbers, count), [this, entry](std::string image) {
    const std::lock_guard<std::mutex> lock(mutex_);
    entry->image = std::move(image);
  });
  return nullptr;
}

Compiled& Kernel::State::find(Form form, const int64_t* numbers, int count) {
  TORCH_CHECK(compiler() != nullptr, name, ": kernels for GPUs are compiled when they are first "
              "launched, which only a program in Python can do");
  if (form.stage != 2) {  // which is short
    if (Compiled* found = known(form, numbers, count)) return *found;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Compiled* found = made(form)) return *found;
  }
  const std::string image = compiler()->make(request(form, numbers, count));
  const Function function = load(form.device, image, name.c_str());
  const std::lock_guard<std::mutex> lock(mutex_);
  if (Compiled* found = made(form)) return *found;  // another thread's
  auto& own = compiled_.emplace_back(std::make_unique<Compiled>(Compiled{form}));
  own->function = function;
  return *own;
}

}  // namespace loma::gpu
