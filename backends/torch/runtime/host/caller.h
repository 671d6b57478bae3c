// What the loops of a kernel take along from the thread that calls it. Without torch's headers, which
// would take most of the time that launch.cpp needs.
#ifndef LOMA_CALLER_H
#define LOMA_CALLER_H

namespace loma {

// A range in profiles, while torch.profiler runs.
class ProfiledRange {
 public:
  explicit ProfiledRange(const char* name);
  ~ProfiledRange();
  ProfiledRange(const ProfiledRange&) = delete;
  ProfiledRange& operator=(const ProfiledRange&) = delete;

 private:
  void* range_;
};

// The state of torch that belongs to the thread which makes this; another one has it during a Scope.
class CallerState {
 public:
  CallerState();
  ~CallerState();
  CallerState(const CallerState&) = delete;
  CallerState& operator=(const CallerState&) = delete;

  class Scope {
   public:
    explicit Scope(const CallerState& state);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    void* guard_;
  };

 private:
  void* state_;
};

}  // namespace loma

#endif  // LOMA_CALLER_H
