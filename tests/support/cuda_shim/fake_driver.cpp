// A stand-in for CUDA's driver, for tests: an "image" is a shared library that g++ made with shim.h,
// memory of the device is memory of the host, and a launch runs at once, on the thread that asks.
//
// The threads of a block are fibers. A thread that never waits runs from beginning to end; those that
// wait go on when all have come that they wait for. The order is a random one that a seed gives, so
// that what lacks a barrier gives wrong results sooner or later. Shared memory is filled with bytes
// of 255, NaN as a float or double, before each block.
#include "threads.h"

#include <dlfcn.h>
#include <elf.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

namespace {

using loma_shim::Image;

constexpr int kInvalidValue = 1, kNotFound = 500, kLaunchFailed = 719;
constexpr size_t kStack = 128 << 10, kGuard = 4096;
constexpr size_t kAlign = 1024;  // of dynamic shared memory
constexpr unsigned kIdleRounds = 1000;  // in which all that run only look whether others have come
constexpr int kMostShared = 232448, kPlainShared = 48 << 10;
constexpr unsigned kMostThreads = 1024;

std::mutex lock;       // of all below: one launch at a time
std::string message;   // of the last error
uint64_t seed = 1;

int failed(int code, const char* format, ...) {
  char text[1000];
  va_list given;
  va_start(given, format);
  std::vsnprintf(text, sizeof text, format, given);
  va_end(given);
  message = text;
  std::fprintf(stderr, "cuda shim: %s\n", text);
  return code;
}

struct Function {
  std::string name;
  Image* image;
  void (*run)(void** arguments);
  int most_shared = kPlainShared;
};

// A small generator of random numbers (xorshift64*).
struct Random {
  uint64_t state;
  uint64_t below(uint64_t end) {
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return (state * 0x2545f4914f6cdd1dull >> 32) % end;
  }
};

// 0: the natural order.
void shuffle(std::vector<unsigned>& order, Random& random) {
  std::iota(order.begin(), order.end(), 0u);
  if (seed == 0) return;
  for (size_t k = order.size(); k > 1; --k) std::swap(order[k - 1], order[random.below(k)]);
}

// ----------------------------------------------------------------------------- fibers

// A stack on which threads run, one after the other, until one waits: then it is that thread's.
struct Fiber {
  ucontext_t start;
  jmp_buf place, end;  // end: that of the thread that runs on it
  char* stack;
};

enum class Wait { none, block, warp, turn };

struct Thread {
  Fiber* fiber = nullptr;  // of one that has begun and waits
  bool done = false;
  Wait wait = Wait::none;
  unsigned mask = 0, source = 0;
  uint64_t given = 0, taken = 0;
};

// Lanes of a warp that wait for each other, by the first of them.
struct Gathering {
  unsigned mask;
  int count = 0;
};

jmp_buf scheduler;
std::vector<std::unique_ptr<Fiber>> fibers;
std::vector<Fiber*> idle;
Fiber* running;
std::vector<Thread> threads;
std::vector<Gathering> gatherings;
unsigned current, at_barrier, at_turn;
Function* function;
void** arguments;

// _longjmp to another stack is what makes this fast: swapcontext calls the system twice.
[[noreturn]] void back() { _longjmp(scheduler, 1); }

void fiber_main() {
  for (;;) {
    if (_setjmp(running->place) == 0) back();
    if (_setjmp(running->end) == 0) function->run(arguments);
    threads[current].done = true;
  }
}

void end_thread() { _longjmp(running->end, 1); }

Fiber* idle_fiber() {
  if (idle.empty()) {
    auto fiber = std::make_unique<Fiber>();
    void* stack = mmap(nullptr, kStack, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) std::abort();
    mprotect(stack, kGuard, PROT_NONE);
    fiber->stack = static_cast<char*>(stack);
    getcontext(&fiber->start);
    fiber->start.uc_stack.ss_sp = fiber->stack;
    // Not all at the same distance from a page, or caches hold few of them.
    fiber->start.uc_stack.ss_size = kStack - fibers.size() % 61 * 192;
    fiber->start.uc_link = nullptr;
    makecontext(&fiber->start, fiber_main, 0);
    Fiber* const made = fiber.get();
    fibers.push_back(std::move(fiber));
    if (_setjmp(scheduler) == 0) {  // up to the first thread: it has none to run yet
      running = made;
      setcontext(&made->start);
    }
    return made;
  }
  Fiber* const fiber = idle.back();
  idle.pop_back();
  return fiber;
}

// Runs the thread until it waits or is done.
void step(unsigned index) {
  Thread& thread = threads[index];
  current = index;
  function->image->threads->thread = {index, 0, 0};
  Fiber* const fiber = thread.fiber != nullptr ? thread.fiber : idle_fiber();
  thread.fiber = fiber;
  running = fiber;
  if (_setjmp(scheduler) == 0) _longjmp(fiber->place, 1);
  if (threads[index].done) {
    threads[index].fiber = nullptr;
    idle.push_back(fiber);
  }
}

void wait() {
  if (_setjmp(running->place) == 0) back();
}

// ----------------------------------------------------------------------------- what kernels call

void barrier() {
  threads[current].wait = Wait::block;
  ++at_barrier;
  wait();
}

void turn() {
  threads[current].wait = Wait::turn;
  ++at_turn;
  wait();
}

// Goes on when all lanes of the mask have called this, with the same mask.
void warp_wait(unsigned mask, uint64_t given, unsigned source) {
  const unsigned lane = current % 32, first = current - lane;
  Thread& own = threads[current];
  own.wait = Wait::warp, own.mask = mask, own.given = given, own.source = source;
  if (!(mask >> lane & 1)) wait();  // for ever
  Gathering& gathering = gatherings[first + __builtin_ctz(mask)];
  if (gathering.count == 0) gathering.mask = mask;
  if (gathering.mask != mask) wait();
  if (++gathering.count < __builtin_popcount(mask)) return wait();
  gathering.count = 0;
  for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
    Thread& thread = threads[first + __builtin_ctz(rest)];
    const bool found = thread.source < 32 && mask >> thread.source & 1;
    thread.taken = found ? threads[first + thread.source].given : ~uint64_t(0);
    thread.wait = Wait::none;
  }
}

void warp_barrier(unsigned mask) { warp_wait(mask, 0, current % 32); }

unsigned long exchange(unsigned mask, unsigned long given, unsigned source) {
  warp_wait(mask, given, source);
  return threads[current].taken;
}

// ----------------------------------------------------------------------------- blocks

std::string stuck() {
  unsigned done = 0, block = 0, warp = 0, odd = 0;
  for (unsigned index = 0; index < threads.size(); ++index) {
    const Thread& thread = threads[index];
    (thread.done ? done : thread.wait == Wait::block ? block : warp) += 1;
    if (thread.wait == Wait::warp) odd = index;
  }
  char text[300];
  std::snprintf(text, sizeof text,
                "of %zu threads %u are done, %u wait at a barrier, %u for lanes of their warp",
                threads.size(), done, block, warp);
  std::string all = text;
  if (warp > 0) {
    std::snprintf(text, sizeof text, " (thread %u with mask %08x)", odd, threads[odd].mask);
    all += text;
  }
  return all;
}

// Runs the lanes of a warp, in an order of their own, until all are done or wait for other warps.
void run_warp(const unsigned* lanes, unsigned count, unsigned& rest) {
  for (bool moved = true; moved;) {
    moved = false;
    for (unsigned k = 0; k < count; ++k) {
      Thread& thread = threads[lanes[k]];
      if (thread.done || thread.wait != Wait::none) continue;
      moved = true;
      step(lanes[k]);
      rest -= thread.done;
    }
  }
}

// Whether all threads came to the end.
bool run_block(unsigned size, Random& random) {
  threads.assign(size, Thread());
  gatherings.assign((size + 31) / 32 * 32, Gathering());
  at_barrier = 0;
  std::vector<unsigned> order(size), warps((size + 31) / 32);
  shuffle(order, random);
  std::stable_sort(order.begin(), order.end(), [](unsigned a, unsigned b) { return a / 32 < b / 32; });
  at_turn = 0;
  unsigned idle_rounds = 0;
  for (unsigned rest = size; rest > 0;) {
    shuffle(warps, random);
    const unsigned left = rest, waiting = at_turn + at_barrier;
    for (Thread& thread : threads) {
      if (thread.wait == Wait::turn) thread.wait = Wait::none;
    }
    at_turn = 0;
    for (const unsigned warp : warps) {
      run_warp(&order[warp * 32], std::min(size - warp * 32, 32u), rest);
    }
    if (rest == 0) break;
    if (at_turn > 0) {
      idle_rounds = rest == left && at_turn + at_barrier == waiting ? idle_rounds + 1 : 0;
      if (idle_rounds > kIdleRounds) return false;
      continue;
    }
    if (at_barrier != size) return false;
    at_barrier = 0;
    for (Thread& thread : threads) thread.wait = Wait::none;
  }
  return true;
}

int launch(const unsigned (&grid)[3], unsigned size, size_t shared) {
  static uint64_t launches = 0;
  Random random{(seed + 1) * 0x9e3779b97f4a7c15ull + ++launches};
  Image& image = *function->image;
  loma_shim::Threads& state = *image.threads;
  std::vector<char> dynamic(shared + 2 * kGuard);
  state.shared = dynamic.data() + (kAlign - reinterpret_cast<uintptr_t>(dynamic.data()) % kAlign);
  state.grid_size = {grid[0], grid[1], grid[2]}, state.block_size = {size, 1, 1};
  state.barrier = barrier, state.turn = turn, state.warp_barrier = warp_barrier, state.exchange = exchange;
  state.end_thread = end_thread;
  std::memset(dynamic.data(), 255, dynamic.size());
  const char* const end = dynamic.data() + dynamic.size();
  std::vector<unsigned> blocks(size_t(grid[0]) * grid[1]);
  shuffle(blocks, random);
  for (const unsigned block : blocks) {
    state.block = {block % grid[0], block / grid[0], 0};
    std::memset(image.shared, 255, image.shared_end - image.shared);
    std::memset(state.shared, 255, shared);
    if (!run_block(size, random)) {
      return failed(kLaunchFailed, "%s, block (%u, %u): %s", function->name.c_str(), state.block.x,
                    state.block.y, stuck().c_str());
    }
  }
  for (const char* at = state.shared + shared; at < end; ++at) {
    if (*at != char(255)) {
      return failed(kLaunchFailed, "%s wrote behind its %zu bytes of dynamic shared memory",
                    function->name.c_str(), shared);
    }
  }
  return 0;
}

}  // namespace

#define LOMA_API extern "C" __attribute__((visibility("default")))

// For tests: whether launches are recorded for a graph, as far as callers ask.
extern "C" __attribute__((visibility("default"))) int capturing = 0;
LOMA_API int cuStreamIsCapturing(void*, int* status) {
  *status = capturing;
  return 0;
}

// For tests: another order of threads and blocks from now on, 0: the natural one.
LOMA_API void loma_shim_seed(uint64_t given) {
  const std::lock_guard<std::mutex> held(lock);
  seed = given;
}

LOMA_API int cuInit(unsigned) {
  const char* given = std::getenv("LOMA_SHIM_SEED");
  if (given != nullptr) loma_shim_seed(std::strtoull(given, nullptr, 10));
  return 0;
}

LOMA_API int cuGetErrorString(int code, const char** text) {
  const std::lock_guard<std::mutex> held(lock);
  static thread_local std::string kept;
  kept = code == 0 ? "no error" : message;
  *text = kept.c_str();
  return 0;
}

LOMA_API int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }

// For tests: of the architecture.
extern "C" __attribute__((visibility("default"))) int major = 9;

LOMA_API int cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 75: return *value = major, 0;         // the architecture is sm_90, unless a test wants another
    case 76: return *value = 0, 0;
    case 16: return *value = 4, 0;             // multiprocessors
    case 97: return *value = kMostShared, 0;   // of a block, opt in
    case 8: return *value = kPlainShared, 0;
    case 10: return *value = 32, 0;            // threads of a warp
    case 1: return *value = kMostThreads, 0;
    default: return failed(kInvalidValue, "attribute %d of a device is not known", attribute);
  }
}

LOMA_API int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &lock, 0; }
LOMA_API int cuCtxGetCurrent(void** context) { return *context = &lock, 0; }
LOMA_API int cuCtxSetCurrent(void*) { return 0; }
LOMA_API int cuCtxSynchronize() { return 0; }
LOMA_API int cuStreamSynchronize(void*) { return 0; }

LOMA_API int cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  return (*memory = std::malloc(bytes)) == nullptr ? failed(2, "no memory") : 0;
}

LOMA_API int cuMemFreeHost(void* memory) { return std::free(memory), 0; }

LOMA_API int cuModuleLoadData(void** module, const void* image) {
  const std::lock_guard<std::mutex> held(lock);
  *module = nullptr;
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return failed(200, "no image of the shim");
  const size_t size = header.e_shoff + size_t(header.e_shnum) * header.e_shentsize;  // the last part
  // Each under a name of its own: dlopen knows libraries by their names.
  static int images = 0;
  const char* const folder = std::getenv("TMPDIR");
  const std::string path = std::string(folder != nullptr && *folder ? folder : "/tmp") + "/loma_shim_" +
                           std::to_string(getpid()) + "_" + std::to_string(++images) + ".so";
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return failed(200, "an image cannot be written to %s", path.c_str());
  const bool whole = std::fwrite(image, 1, size, file) == size;
  if (std::fclose(file) == 0 && whole) *module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* const why = *module == nullptr ? dlerror() : nullptr;
  std::remove(path.c_str());
  return *module == nullptr ? failed(200, "an image cannot be loaded: %s", why ? why : path.c_str()) : 0;
}

LOMA_API int cuModuleUnload(void*) { return 0; }

LOMA_API int cuModuleGetFunction(void** found, void* module, const char* name) {
  const std::lock_guard<std::mutex> held(lock);
  auto made = std::make_unique<Function>();
  made->name = name;
  made->image = static_cast<Image*>(dlsym(module, "loma_shim_image"));
  void* const run = dlsym(module, (std::string(name) + "__shim").c_str());
  if (made->image == nullptr || run == nullptr) return failed(kNotFound, "no kernel %s", name);
  std::memcpy(&made->run, &run, sizeof run);
  *found = made.release();
  return 0;
}

LOMA_API int cuFuncSetAttribute(void* given, int attribute, int value) {
  const std::lock_guard<std::mutex> held(lock);
  if (attribute != 8) return 0;
  Function& set = *static_cast<Function*>(given);
  const auto fixed = set.image->shared_end - set.image->shared;
  if (value + fixed > kMostShared) return failed(kInvalidValue, "%d bytes of shared memory", value);
  set.most_shared = value;
  return 0;
}

LOMA_API int cuLaunchKernel(void* given, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned size_x, unsigned size_y, unsigned size_z, unsigned shared, void*,
                            void** with, void**) {
  const std::lock_guard<std::mutex> held(lock);
  function = static_cast<Function*>(given);
  arguments = with;
  const char* const name = function->name.c_str();
  if (size_x != function->image->block_threads || size_y != 1 || size_z != 1) {
    return failed(kInvalidValue, "%s: %u threads a block, compiled for %u", name, size_x,
                  function->image->block_threads);
  }
  if (grid_x == 0 || grid_y == 0 || grid_z != 1 || grid_y > 65535 || grid_x > 0x7fffffffu) {
    return failed(kInvalidValue, "%s: a grid of %u x %u x %u blocks", name, grid_x, grid_y, grid_z);
  }
  const auto fixed = unsigned(function->image->shared_end - function->image->shared);
  const unsigned most = unsigned(function->most_shared);
  if (shared > most || (most <= unsigned(kPlainShared) && shared + fixed > unsigned(kPlainShared))) {
    return failed(kInvalidValue, "%s: %u bytes of dynamic and %u of static shared memory, allowed %u",
                  name, shared, fixed, most);
  }
  return launch({grid_x, grid_y, grid_z}, size_x, shared);
}
