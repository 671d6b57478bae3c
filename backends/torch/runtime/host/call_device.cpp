#include "call_device.h"

#include "gpu_reports.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

namespace loma {
namespace {

std::string_view setting(const char* name) {
  const char* given = std::getenv(name);
  return given == nullptr ? "" : given;
}

std::atomic<bool>& shim() {
  static std::atomic<bool> is_shim{setting("LOMA_DEVICE") == "shim"};
  return is_shim;
}

thread_local at::Device current{at::kCPU};
thread_local bool current_gpu = false;
thread_local at::ScalarType current_dtype = at::kFloat;

}  // namespace

at::Device call_device() { return current; }

at::ScalarType call_dtype() { return current_dtype; }

bool call_on_gpu() { return current_gpu; }

bool is_gpu(at::Device device) {
  return device.is_cuda() || (device.is_cpu() && shim().load(std::memory_order_relaxed));
}

void serve_cpu_by_gpu(bool is_shim) { shim().store(is_shim); }

CallOn::CallOn(at::Device device, at::ScalarType dtype)
    : outer_(current), outer_gpu_(current_gpu), outer_dtype_(current_dtype) {
  const bool gpu = is_gpu(device);
  if (gpu) gpu::throw_report(device);
  // A meta tensor's call computes nothing; what its host code makes beside is the CPU's.
  current = device.is_cuda() ? device : at::Device(at::kCPU);
  current_gpu = gpu;
  current_dtype = dtype;
}

CallOn::~CallOn() {
  current = outer_;
  current_gpu = outer_gpu_;
  current_dtype = outer_dtype_;
}

bool CallOn::on_gpu() const { return current_gpu; }

void CallOn::finish() const {
  if (current_gpu && setting("LOMA_CHECK") == "sync") gpu::check_device(current);
}

}  // namespace loma
