#include "gpu_driver.h"

#include "pool.h"

#include <c10/util/Exception.h>

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace loma::gpu {
namespace {

constexpr int kMaxDynamicShared = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kMajor = 75, kMinor = 76, kOptInShared = 97;  // CU_DEVICE_ATTRIBUTE_...
constexpr int kHeapLimit = 2;  // CU_LIMIT_MALLOC_HEAP_SIZE
constexpr size_t kHeap = size_t(512) << 20;
constexpr unsigned kPortable = 1, kMapped = 2;  // CU_MEMHOSTALLOC_...

// As cuda.h declares them. A CUresult and a CUdevice are ints.
struct Driver {
  int (*get_error_string)(int, const char**);
  int (*init)(unsigned);
  int (*device_get_attribute)(int*, int, int);
  int (*primary_retain)(void**, int);
  int (*context_get)(void**);
  int (*context_set)(void*);
  int (*context_synchronize)();
  int (*context_limit)(int, size_t);
  int (*module_load)(void**, const void*);
  int (*module_function)(void**, void*, const char*);
  int (*function_set)(void*, int, int);
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                void**, void**);
  int (*host_allocate)(void**, size_t, unsigned);
  int (*is_capturing)(void*, int*);

  bool is_stand_in;  // LOMA_CUDA_DRIVER's, which has no contexts and no streams
};

const char* stand_in_path() {
  const char* path = std::getenv("LOMA_CUDA_DRIVER");
  return path != nullptr && *path != '\0' ? path : nullptr;
}

Driver found_driver() {
  const char* given = stand_in_path();
  const char* path = given != nullptr ? given : "libcuda.so.1";
  void* library = dlopen(path, RTLD_NOW);
  TORCH_CHECK(library != nullptr, "loma found no CUDA driver (", path, "): ", dlerror(),
              "; install NVIDIA's driver for this GPU, or unset LOMA_CUDA_DRIVER where that names "
              "another file");
  Driver driver{};
  driver.is_stand_in = given != nullptr;
  const auto find = [&](auto& function, const char* name, bool needed = true) {
    void* symbol = dlsym(library, name);
    TORCH_CHECK(symbol != nullptr || !needed, path, " has no ", name,
                ": install a driver for CUDA 12 or later");
    std::memcpy(&function, &symbol, sizeof symbol);
  };
  const bool real = !driver.is_stand_in;
  find(driver.get_error_string, "cuGetErrorString", real);
  find(driver.init, "cuInit", real);
  find(driver.device_get_attribute, "cuDeviceGetAttribute");
  find(driver.primary_retain, "cuDevicePrimaryCtxRetain", real);
  find(driver.context_get, "cuCtxGetCurrent", real);
  find(driver.context_set, "cuCtxSetCurrent", real);
  find(driver.context_synchronize, "cuCtxSynchronize", real);
  find(driver.context_limit, "cuCtxSetLimit", real);
  find(driver.module_load, "cuModuleLoadData");
  find(driver.module_function, "cuModuleGetFunction");
  find(driver.function_set, "cuFuncSetAttribute");
  find(driver.launch, "cuLaunchKernel");
  find(driver.host_allocate, "cuMemHostAlloc", real);
  find(driver.is_capturing, "cuStreamIsCapturing", real);
  return driver;
}

const Driver& driver();

void check(const Driver& cuda, int result, const char* call, const char* subject = "") {
  if (result == 0) return;
  const char* text = nullptr;
  if (cuda.get_error_string != nullptr) cuda.get_error_string(result, &text);
  TORCH_CHECK(false, "CUDA: ", call, *subject == '\0' ? "" : " of ", subject, " failed: ",
              text == nullptr ? "error" : text, " (", result, ")");
}

const Driver& driver() {
  static const Driver found = [] {
    Driver cuda = found_driver();
    if (cuda.init != nullptr) check(cuda, cuda.init(0), "cuInit");
    return cuda;
  }();
  return found;
}

// torch's own context of the device becomes this thread's, which may not have called CUDA before:
// torch does so only where it has to.
const Driver& on_device(int device) {
  const Driver& cuda = driver();
  if (cuda.is_stand_in) return cuda;
  static std::atomic<void*> contexts[LOMA_DEVICES] = {};
  TORCH_CHECK(device >= 0 && device < LOMA_DEVICES, "CUDA device ", device, ": loma serves the first ",
              LOMA_DEVICES);
  void *current = nullptr, *own = contexts[device].load(std::memory_order_acquire);
  if (own == nullptr) {  // two threads get the same one
    check(cuda, cuda.primary_retain(&own, device), "cuDevicePrimaryCtxRetain");
    contexts[device].store(own, std::memory_order_release);
  }
  check(cuda, cuda.context_get(&current), "cuCtxGetCurrent");
  if (own != current) check(cuda, cuda.context_set(own), "cuCtxSetCurrent");
  return cuda;
}

// That which torch's operators use, by its stable interface for C; its headers are of a build with
// CUDA only.
Stream current_stream(int device) {
  if (driver().is_stand_in) return nullptr;
  using Get = int (*)(int32_t, void**);
  static const Get get = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    void* symbol =
        library == nullptr ? nullptr : dlsym(library, "aoti_torch_get_current_cuda_stream");
    TORCH_CHECK(symbol != nullptr, "loma needs a build of PyTorch with CUDA for tensors on GPUs");
    Get found;
    std::memcpy(&found, &symbol, sizeof symbol);
    return found;
  }();
  Stream stream = nullptr;
  TORCH_CHECK(get(device, &stream) == 0, "CUDA: torch has no current stream of device ", device);
  return stream;
}

int attribute(int device, int which) {
  const Driver& cuda = driver();
  int value = 0;
  check(cuda, cuda.device_get_attribute(&value, which, device), "cuDeviceGetAttribute");
  return value;
}

}  // namespace

Function load(int device, const std::string& image, const char* name) {
  const Driver& cuda = on_device(device);
  void *module = nullptr, *function = nullptr;
  // Kernels with stacks (values.h) have their name for it in the image. CUDA's own heap is small, and
  // keeps its size when another library's kernels use it already: then they have that.
  if (cuda.context_limit != nullptr && image.find("malloc") != std::string::npos) {
    cuda.context_limit(kHeapLimit, kHeap);
  }
  check(cuda, cuda.module_load(&module, image.data()), "cuModuleLoadData", name);
  check(cuda, cuda.module_function(&function, module, name), "cuModuleGetFunction", name);
  return function;
}

void allow_shared(int device, Function function, int64_t bytes) {
  const Driver& cuda = on_device(device);
  check(cuda, cuda.function_set(function, kMaxDynamicShared, static_cast<int>(bytes)),
        "cuFuncSetAttribute");
}

void launch(Function function, const char* name, int device, int64_t blocks, int64_t slices,
            int threads, int64_t shared_bytes, void** arguments) {
  const Driver& cuda = on_device(device);
  const int result = cuda.launch(function, static_cast<unsigned>(blocks),
                                 static_cast<unsigned>(slices), 1, static_cast<unsigned>(threads),
                                 1, 1, static_cast<unsigned>(shared_bytes), current_stream(device),
                                 arguments, nullptr);
  check(cuda, result, "cuLaunchKernel", name);
}

bool is_capturing(int device) {
  const Driver& cuda = on_device(device);
  int status = 0;  // CU_STREAM_CAPTURE_STATUS_NONE
  if (cuda.is_capturing != nullptr) {
    check(cuda, cuda.is_capturing(current_stream(device), &status), "cuStreamIsCapturing");
  }
  return status != 0;
}

std::string architecture(int device) {
  return "sm_" + std::to_string(10 * attribute(device, kMajor) + attribute(device, kMinor));
}

bool has_matrix_units(int device) {
  static std::array<std::atomic<int>, 64> known{};  // 0: not yet
  if (device < 0 || device >= static_cast<int>(known.size())) return attribute(device, kMajor) >= 8;
  int found = known[device].load(std::memory_order_relaxed);
  if (found == 0) known[device].store(found = attribute(device, kMajor) >= 8 ? 1 : -1);
  return found > 0;
}

bool units_take_groups(int device) { return attribute(device, kMajor) == 9; }

int64_t most_shared(int device) { return attribute(device, kOptInShared); }

void* visible_memory(int device, size_t bytes) {
  const Driver& cuda = on_device(device);
  void* memory = nullptr;
  if (cuda.host_allocate != nullptr) {
    check(cuda, cuda.host_allocate(&memory, bytes, kPortable | kMapped), "cuMemHostAlloc");
  } else {
    memory = std::malloc(bytes);
  }
  TORCH_CHECK(memory != nullptr, "not enough memory");
  std::memset(memory, 0, bytes);
  return memory;
}

void synchronize(int device) {
  void* before = nullptr;
  const bool real = !driver().is_stand_in;
  if (real) check(driver(), driver().context_get(&before), "cuCtxGetCurrent");
  const Driver& cuda = on_device(device);
  const int found = cuda.context_synchronize == nullptr ? 0 : cuda.context_synchronize();
  // What the thread does next is on the device that it was on.
  if (real && before != nullptr) check(cuda, cuda.context_set(before), "cuCtxSetCurrent");
  check(cuda, found, "cuCtxSynchronize");
}

}  // namespace loma::gpu
