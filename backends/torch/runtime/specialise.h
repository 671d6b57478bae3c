// Kernels for known sizes: which there are, and which are worth making.
//
// An operator's kernel serves all sizes. Besides it there may be kernels for some: each computes the
// same for calls with certain slots (sizes, then ints) and one floating type, and takes its place in
// those calls. They come in objects of their own, which register them when they are loaded or
// linked. Where a hook is set, calls that have none are timed, and the hook hears of slots that are
// worth a kernel.
#ifndef LOMA_SPECIALISE_H
#define LOMA_SPECIALISE_H

#include "calls.h"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace loma {

// When a kernel is worth making: calls of at least `call_ns` count; there must be `calls` of them,
// which took `total_ns`. At most `limit` kernels are asked for per operator.
struct SpecialisationPolicy {
  int limit;
  int calls;
  int64_t call_ns, total_ns;
  // Asked once for an operator's slots: to make the kernel later, or, where it is known to be in the
  // cache, to load it `now`. Throws nothing.
  std::function<void(const std::string& name, const std::vector<int64_t>& slots,
                     at::ScalarType dtype, bool now)> ask;
  // Not empty where kernels are tuned: it hears of the first call with some slots before that runs,
  // on a GPU or, if `searches`, on the CPU, and may add kernels, which only then takes long. Throws
  // nothing.
  std::function<void(const std::string& name, const std::vector<int64_t>& slots,
                     at::ScalarType dtype, int device, const Tensors& tensors,
                     const std::vector<int64_t>& ints, bool in_place, size_t results)>
      search;
  bool searches = false;
};

// Where a kernel runs: on the GPU of that number, or on the CPU.
constexpr int kOnCpu = -1;

// Of one operator. Lives as long as the process; safe from several threads, and after a fork.
class Specialisations {
 public:
  explicit Specialisations(std::string name) : name_(std::move(name)) {}
  const std::string& name() const { return name_; }

  // The kernels for any sizes, for float and for double: of the CPU, and of GPUs.
  std::atomic<Kernel> general[2][2] = {{nullptr, nullptr}, {nullptr, nullptr}};
  // Which tensors the GPU's kernel in float takes as they are.
  std::atomic<uint64_t> narrow{0};

  // The kernel for a call with those slots, null where there is none.
  Kernel find(const std::vector<int64_t>& slots, at::ScalarType dtype, int device = kOnCpu) const;
  // The same on a GPU, but for one that would have to be loaded while a graph is recorded.
  Kernel find_ready(const std::vector<int64_t>& slots, at::ScalarType dtype, int device) const;
  void add(std::vector<int64_t> slots, at::ScalarType dtype, Kernel kernel, int device = kOnCpu);
  // Whether there are kernels for GPUs.
  bool is_tuned() const { return is_tuned_.load(std::memory_order_acquire); }

  // A kernel that the cache has: the first call that it is for loads it.
  void add_known(std::vector<int64_t> slots, at::ScalarType dtype);
  // Loads what is known for those slots, and finds it.
  Kernel load(const SpecialisationPolicy& policy, const std::vector<int64_t>& slots,
              at::ScalarType dtype);
  // Hears that a call took so long, and asks for a kernel when it is time.
  void note(const SpecialisationPolicy& policy, const std::vector<int64_t>& slots,
            at::ScalarType dtype, int64_t nanoseconds);
  // Whether nobody has asked this before for those slots, nor will once they are many.
  bool is_first(const std::vector<int64_t>& slots, at::ScalarType dtype, int device = kOnCpu);
  // Whether there is nothing left to note.
  bool is_full() const { return full_.load(std::memory_order_relaxed); }

 private:
  struct Made {
    std::vector<int64_t> slots;
    at::ScalarType dtype;
    int device;
    Kernel kernel;
    const Made* next;
    mutable std::atomic<bool> has_run{false};  // on a GPU
  };
  struct Seen {
    std::vector<int64_t> slots;
    at::ScalarType dtype;
    bool known = false, asked = false;
    int calls = 0;
    int64_t nanoseconds = 0;
  };

  const Made* made(const std::vector<int64_t>& slots, at::ScalarType dtype, int device) const;
  Seen* seen(const std::vector<int64_t>& slots, at::ScalarType dtype);
  bool may_ask(const SpecialisationPolicy& policy);

  const std::string name_;
  std::atomic<const Made*> made_{nullptr};  // never shortened, so that readers need no lock
  std::atomic<bool> full_{false}, has_known_{false}, is_tuned_{false};
  // Only ever tried: another thread may have held it when this process was forked.
  std::mutex mutex_;
  std::vector<Seen> seen_;
  std::vector<std::tuple<std::vector<int64_t>, at::ScalarType, int>> searched_;
  int asked_ = 0;
};

// Those of the operator "namespace::name".
Specialisations& specialisations_of(const std::string& name);

// A kernel of the operator "namespace::name" that takes no part in calls, but for a call of
// call_kernel, until it is added. `narrow`: which tensors it takes as they are in calls with bfloat16
// or float16.
struct Apart {
  std::string name;
  Kernel kernel = nullptr;
  uint64_t narrow = 0;
};

// Loads a library with one for known sizes. No kernel where the library had been loaded, or cannot
// be.
Apart load_apart(const std::string& library);

// Runs the kernel for those slots if there is one, else `general`, on copies of Out arguments unless
// these are written `in_place`. `policy` may be null.
// There are so many results.
Tensors run_specialised(Specialisations& own, const SpecialisationPolicy* policy,
                        const std::vector<int64_t>& slots, Kernel general, const Tensors& tensors,
                        const std::vector<int64_t>& ints, bool in_place, size_t results);

// The same on a GPU, where `general` knows its sizes soon by itself: another kernel is one that was
// tuned. Nothing is looked for while a graph is recorded.
Tensors run_tuned(Specialisations& own, const SpecialisationPolicy* policy,
                  const std::vector<int64_t>& slots, Kernel general, const Tensors& tensors,
                  const std::vector<int64_t>& ints, bool in_place, size_t results);

// Calls a kernel with so many results.
Tensors call_kernel(Kernel kernel, const Tensors& tensors, const std::vector<int64_t>& ints,
                    bool in_place, size_t results);

// Whether a kernel computes in double: the dtype is that of the first tensor which has a floating
// one, float32 if there is none.
bool is_double(const Tensors& tensors);

}  // namespace loma

#endif  // LOMA_SPECIALISE_H
