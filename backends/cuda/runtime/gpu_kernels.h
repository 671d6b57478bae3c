// Kernels of generated code, compiled for what a launch asks for; not for generated code.
#ifndef LOMA_GPU_KERNELS_H
#define LOMA_GPU_KERNELS_H

#include "gpu.h"
#include "gpu_driver.h"
#include "gpu_geometry.h"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace loma::gpu {

// What a kernel is compiled from.
struct Request {
  std::string name, text, architecture;
  std::vector<std::string> options;
};

// Whoever compiles kernels; Python, which has a cache. One for all kernels of a module.
struct Compiler {
  std::function<std::string(const Request&)> make;  // the image
  // Makes it some time, on another thread, and hands it over; nothing where it could not be made.
  std::function<void(const Request&, std::function<void(std::string)>)> make_later;
  int known = 0;  // for how many sets of numbers a kernel is compiled again
};
void set_compiler(Compiler compiler);

// While one exists, the launches of this thread are told: kernels, their forms and their blocks.
class Trace {
 public:
  Trace();
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  std::vector<std::string> launches;

 private:
  Trace* outer_;
};

// While one exists, this thread's calls try these numbers, by place; 0 for those behind them.
class Trial {
 public:
  explicit Trial(std::vector<int> numbers);
  ~Trial();
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  const std::vector<int> numbers;

 private:
  Trial* outer_;
};
bool is_trial();

constexpr int kMostFixed = 4;

// One of the forms in which a kernel is compiled.
struct Form {
  int device;
  size_t real_bytes;
  int threads, team, stage;
  bool across;
  int shared;
  int narrow = 0, depth = 0, width = 0, groups = 0;  // of passes by matrix units
  int set = 0;           // of known numbers, from 1 on
  bool aligned = false;  // pointers, to kWide; only with known numbers, or
  bool lists = false;    // a launch for positions of lists
  int registers = 0, unroll = 0;  // as Shape has them
  int lanes = 0;                  // that have a value of an inner loop
  int rows = 1, columns = 1;      // of the tile of sums that a thread has
  std::array<int64_t, kMostFixed> fixed{};  // the first numbers, where each form is for these

  bool operator==(const Form& other) const;
};

struct Compiled {
  Form form;
  Function function = nullptr;  // null for good where the driver refused an image for known numbers
  std::string image;            // what a thread has made, until it is loaded
  int64_t most_shared = kPlainShared - kOwnShared;  // how much its blocks may have, of private memory
};

struct Kernel::State {
  const std::string name, text;
  const bool lists, is_known;
  const int fixed;

  // The kernel in that form, whose blocks may have `shared` bytes of private memory; `numbers` are
  // those of this launch, and `aligned` are its pointers.
  Function find(Form form, const int64_t* numbers, int count, bool aligned, int64_t shared);

 private:
  struct Seen {
    std::vector<int64_t> numbers;
    int launches = 0;
    int set = 0;
  };

  int set_of(const int64_t* numbers, int count, int most, bool at_once);
  Function known(const Form& form, const int64_t* numbers, int count, bool aligned, int64_t shared);
  Compiled* made(const Form& form);
  void load_made(Compiled& entry);
  Function with_shared(Compiled& entry, int64_t bytes);
  Request request(const Form& form, const int64_t* numbers, int count) const;
  Function loaded(const Form& form, const std::string& image) const;

  std::mutex mutex_;  // never held while something is compiled
  std::vector<std::unique_ptr<Compiled>> compiled_;
  std::vector<Seen> seen_;
  size_t next_seen_ = 0;
  int sets_ = 0;

 public:
  State(const char* name, const char* text, bool lists, bool known, int fixed)
      : name(name), text(text), lists(lists), is_known(known), fixed(std::min(fixed, kMostFixed)) {}
};

}  // namespace loma::gpu

#endif  // LOMA_GPU_KERNELS_H
