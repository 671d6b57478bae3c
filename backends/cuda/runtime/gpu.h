// How generated host code launches its kernels on a GPU. Has nothing of torch, and stands behind
// either prelude, whose loma::Tensor it takes.
#ifndef LOMA_GPU_H
#define LOMA_GPU_H

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

namespace at {
class Tensor;
}

#pragma GCC visibility push(default)

namespace loma::gpu {

struct Geometry;

// Numbers of a long row that a thread has at least; and where threads wait for each other more often.
constexpr int64_t kUsualNumbers = 8, kMoreNumbers = 16;

// What a tuner may want of a launch other than what sizes make of it (loma/backends/cuda/shapes.py),
// as far as the launch can have it. `team`, `threads` and `slices`: so many times 2 the usual number of
// threads that share an iteration, of threads of a block, of pieces of a sum. `beside`: iterations
// that a thread takes side by side; `blocks`: at most so many, which then take iterations in turns.
// `registers`: of a thread, at most; `unroll`: rounds of a loop under way. 0: as usual.
struct Shape {
  int team = 0, threads = 0, slices = 0;
  int beside = 0, blocks = 0;
  int registers = 0, unroll = 0;
};

// What a search tries in this call for one of the choices that its code leaves to the caller.
int tried(int place);

// A kernel of generated code, for all devices and launches of a process: its text is compiled when it
// is first launched. `lists`: it is all that a call does, so that a launch may serve several calls.
// `known`: the numbers of the first launch count as known at once, as a tuned function's sizes are.
class Kernel {
 public:
  // `fixed`: so many of its numbers, the first ones, each form is compiled for.
  Kernel(const char* name, const char* text, bool lists = false, bool known = false, int fixed = 0);
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  struct State;
  State& state() const { return *state_; }

 private:
  State* state_;  // never freed: calls may run while the process ends
};

// How many values of an axis make a block of a fused kernel: a thread each, fewer where their private
// tensors, of `bytes` for each, would fill shared memory, or where there would be few blocks.
// `twice`: so many times 2 the usual number.
inline int64_t block_size(int64_t extent, int64_t bytes, int twice = 0) {
  constexpr int64_t kRoom = 24576, kMost = 256, kLeast = 32, kBlocks = 512;
  int64_t size = kMost;
  while (size > kLeast && (size * bytes > kRoom || size * kBlocks > extent)) size /= 2;
  if (twice > 0) size <<= twice;
  if (twice < 0) size >>= -twice;
  return size;
}

// Whether so many iterations of a fused kernel keep a GPU busy, or are soon done: a launch of its own
// for each statement costs about as much as `kLaunch` steps of one team, a processor's. Of 64 iterations
// each has half of the processors' time for itself at most. `keeps`: it keeps in registers what
// launches would read again.
inline bool fills(int64_t iterations, int64_t work, int64_t launches, bool keeps = false) {
  constexpr int64_t kKept = 64, kFew = 80, kLaunch = 1 << 16;
  return iterations >= (keeps ? kKept : kFew) || work < kLaunch * launches;
}

// How many teams of threads carry sums of `bytes` through so many rows of `width` elements: fewer than
// rows, but enough to keep a GPU busy, and 0 where there are too few numbers for that, or sums are too
// long to be near their team. By sizes alone.
int64_t carriers(int64_t rows, int64_t width, int64_t bytes);

// Whether an inner loop of a kernel has enough `values`, of which each is shared by some lanes along
// `columns`, and its numbers fit into registers: of a value's own these `few`, and what lanes have of
// each of these (rows, columns).
bool lanes_fit(size_t real_bytes, int64_t values, int64_t columns, std::initializer_list<int64_t> few,
               std::initializer_list<int64_t> apart);

// Whether additions to elements that data name are worth sorting, so that many threads share them: one
// thread makes as many as that while they are sorted.
inline bool are_many(int64_t additions) { return additions >= 64; }

// Of cells, the numbers of what is added to: the cells' places sorted by these, equal ones in their
// order, and for each how many equal ones begin there, 0 where one of them has begun before.
void group(at::Tensor& order, at::Tensor& lengths, const at::Tensor& cells);
template <class Tensor>
struct Groups {
  Tensor order, lengths;
};
template <class Tensor>
Groups<Tensor> grouped(const Tensor& cells) {
  Groups<Tensor> found;
  group(found.order, found.lengths, cells);
  return found;
}

// What reductions have of a block's shared memory, at most, beside an iteration's private memory; and
// the most of that which is all near its threads, in shared memory where a device has so much.
constexpr int64_t kOwnShared = 18 << 10;
constexpr int64_t kMostNear = (227 << 10) - kOwnShared;

// Whether the call's tensors have narrow numbers, and the device units that multiply matrices of these
// and are worth it for so many rows and columns, with products over `depth` and `width` numbers.
bool sweeps(size_t real_bytes, int64_t rows, int64_t columns, int64_t depth, int64_t width);

// The tensor in the dtype that a call is computed in, where it was left in a narrow one.
void widen(at::Tensor& to, const at::Tensor& from, size_t real_bytes);
template <typename real, class Tensor>
Tensor widened(const Tensor& tensor) {
  Tensor made;
  widen(made, tensor, sizeof(real));
  return made;
}

// The tensor in the narrow dtype of the call.
void narrow(at::Tensor& to, const at::Tensor& from);
template <class Tensor>
Tensor narrowed(const Tensor& tensor) {
  Tensor made;
  narrow(made, tensor);
  return made;
}

// One launch on the current stream of the call's device. The arguments are given in the kernel's
// order, but for the numbers, which it has last; then one of statement, fused and serial launches
// it. Nothing is launched for no iterations.
class Launch {
 public:
  // `real_bytes`: 4 for a kernel in float, 8 for one in double.
  Launch(Kernel& kernel, size_t real_bytes);
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;
  ~Launch();

  void pointer(const void* address);

  // A 0-dim tensor, on the host or on the device, for a parameter of type Number<real>.
  template <typename real, class Tensor>
  void element(const Tensor& tensor) {
    static_assert(std::is_floating_point_v<real>);
    element_of(tensor, sizeof(real));
  }

  // The tensor in the narrow dtype of the call, contiguous: itself, or a copy that lives as long.
  template <class Tensor>
  void operand(const Tensor& tensor) {
    operand_of(tensor);
  }

  // The tensor for a parameter of type Halves: in the narrow dtype of the call, or in floats.
  template <class Tensor>
  void halves(const Tensor& tensor) {
    halves_of(tensor);
  }

  // Makes the tensor a new one of that dtype.
  template <class Tensor>
  void result(Tensor& tensor, std::initializer_list<int64_t> sizes) {
    result_of(tensor, sizes.begin(), sizes.size());
  }

  // A number of the host, for a parameter of that type.
  template <typename number>
  void value(number given) {
    static_assert(std::is_arithmetic_v<number> && sizeof(number) <= sizeof(uint64_t));
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &given, sizeof given);
    add(bits);
  }

  // What the launch is to be other than usual.
  Shape& shape() { return shape_; }

  // An argument of any type, by the bytes that the kernel's parameter has.
  void bytes(const void* value, size_t size);

  // The next of the kernel's LOMA_NUMBERs.
  void number(int64_t given);

  // `inner`: how many steps one iteration has, 1 without a reduction. `across`: neighbouring
  // iterations, not neighbouring steps, read neighbouring memory. `sums`: how many reductions there
  // are, whose steps blocks may share; 0: they may not. `several`: the extent of the axis of which a
  // thread may have several iterations, 0: it may not; `second`: that of another one, of which it may
  // have several for each of these, two if they are `pairs` that share nothing. `around`: how often the loop of the steps runs.
  void statement(int64_t count, int64_t inner, bool across, int sums, int64_t several = 0,
                 int64_t around = 1, int64_t second = 1, bool pairs = false);

  // Running reductions along rows of `length` elements, which blocks may share if it `splits`;
  // `across`: neighbouring rows lie beside each other.
  void running(int64_t rows, int64_t length, bool splits = true, bool across = false);

  // `inner`: the steps of an iteration's widest statement; `bytes` of private memory for each, and so
  // many `far` from it, where there would be too many. `carriers`: the teams that carry sums, among
  // that memory, from one iteration to the next; 0: none do. `least`: numbers of a long row that a
  // thread has at least.
  void fused(int64_t count, int64_t inner, int64_t bytes, int64_t far = 0, int64_t carriers = 0,
             int64_t least = kUsualNumbers);

  // The same with inner loops of so many `values`, of which lanes share `columns`.
  void lanes(int64_t count, int64_t values, int64_t columns, int64_t bytes, int64_t far);

  void serial();

  // A pass over columns for `rows` rows of each of `outer` values; see sweep.h of the device.
  void sweep(int64_t outer, int64_t rows, int64_t depth, int64_t width);

  // A pass over pairs; see pairs.h of the device.
  void pairs(int64_t outer, int64_t rows, int64_t depth, int64_t width, int64_t kept);

 private:
  static constexpr int kMost = 500;  // of 8 bytes: CUDA takes 4096 bytes, of which the grid has some

  void add(uint64_t bits, uint64_t behind = 0, int slots = 1);
  void element_of(const at::Tensor& tensor, size_t bytes);
  void operand_of(const at::Tensor& tensor);
  void halves_of(const at::Tensor& tensor);
  void result_of(at::Tensor& tensor, const int64_t* sizes, size_t rank);
  void pass(const Geometry& of_call, int64_t count);
  void iterations(const Geometry& geometry, int64_t count, int64_t bytes, int64_t far);

  Kernel& kernel_;
  const size_t real_bytes_;
  Shape shape_;
  int slots_ = 0, arguments_ = 0, numbers_ = 0;
  bool aligned_ = true, narrow_ = false;  // whether operands are among the arguments
  struct Held;
  Held* held_ = nullptr;  // copies of operands
  uint64_t bits_[kMost];
  void* starts_[kMost];  // of each argument among the bits
  int64_t known_[kMost];

  friend class Launcher;
};

}  // namespace loma::gpu

#pragma GCC visibility pop

#endif  // LOMA_GPU_H
