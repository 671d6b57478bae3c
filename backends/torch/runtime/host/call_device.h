// Where the call that a thread runs computes.
#ifndef LOMA_CALL_DEVICE_H
#define LOMA_CALL_DEVICE_H

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#pragma GCC visibility push(default)

namespace loma {

// Where what generated host code makes lies: on the device of the call, elsewhere on the CPU.
at::Device call_device();

// The floating dtype of the call's tensors, which narrow ones are not computed in.
at::ScalarType call_dtype();

// Whether the loops of the call are kernels on a GPU, which this thread launches.
bool call_on_gpu();

// Whether calls with tensors of that device run kernels for GPUs: CUDA's, and, for tests, the CPU's
// where LOMA_DEVICE=shim says that a stand-in for the driver runs these.
bool is_gpu(at::Device device);

// For tests: what LOMA_DEVICE said when the module was loaded.
void serve_cpu_by_gpu(bool is_shim);

// While one exists, this thread runs a call on that device. A GPU's failed checks are thrown: those
// of earlier calls before anything runs, those of this one by finish(), which waits for it, under
// LOMA_CHECK=sync.
class CallOn {
 public:
  explicit CallOn(at::Device device, at::ScalarType dtype = at::kFloat);
  ~CallOn();
  CallOn(const CallOn&) = delete;
  CallOn& operator=(const CallOn&) = delete;

  bool on_gpu() const;
  void finish() const;

 private:
  at::Device outer_;
  bool outer_gpu_;
  at::ScalarType outer_dtype_;
};

}  // namespace loma

#pragma GCC visibility pop

#endif  // LOMA_CALL_DEVICE_H
