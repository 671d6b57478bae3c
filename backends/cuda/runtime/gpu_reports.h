// Checks that failed on a GPU, as exceptions of the host.
#ifndef LOMA_GPU_REPORTS_H
#define LOMA_GPU_REPORTS_H

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include "report.h"

namespace loma::gpu {

// Where the kernels of that device say which check failed. One for all modules of the process.
Report* report_of(at::Device device);

// Throws what the device's kernels have said, and forgets it; returns where they said nothing. Waits
// for nothing else.
void throw_report(at::Device device);

// The same when the device has done all that it was given.
void check_device(at::Device device);

// All devices that kernels ran on.
void check_devices();

// A failure in a function of the scalar layer, of which Python makes the exception that the CPU raises
// (loma/runtime_errors.py).
class ScalarFailure : public c10::Error {
 public:
  explicit ScalarFailure(const Report& report);

  std::string function;
  int64_t kind, line, first, second;
};

// The exception that the check of the CPU throws.
[[noreturn]] void throw_check(const Report& report);

}  // namespace loma::gpu

#endif  // LOMA_GPU_REPORTS_H
