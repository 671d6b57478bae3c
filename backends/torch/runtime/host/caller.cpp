#include "caller.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>

#include <memory>
#include <utility>

namespace loma {

// RECORD_FUNCTION would cost twice as much where nobody profiles.
ProfiledRange::ProfiledRange(const char* name) : range_(nullptr) {
  if (auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION)) {
    auto range = std::make_unique<at::RecordFunction>(std::move(*callbacks));
    range->before(name);
    range_ = range.release();
  }
}

ProfiledRange::~ProfiledRange() { delete static_cast<at::RecordFunction*>(range_); }

CallerState::CallerState() : state_(new at::ThreadLocalState) {}

CallerState::~CallerState() { delete static_cast<at::ThreadLocalState*>(state_); }

CallerState::Scope::Scope(const CallerState& state)
    : guard_(new at::ThreadLocalStateGuard(*static_cast<at::ThreadLocalState*>(state.state_))) {}

CallerState::Scope::~Scope() { delete static_cast<at::ThreadLocalStateGuard*>(guard_); }

}  // namespace loma
