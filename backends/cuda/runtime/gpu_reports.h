// Checks that failed on a GPU, as exceptions of the host.
#ifndef LOMA_GPU_REPORTS_H
#define LOMA_GPU_REPORTS_H

#include <c10/core/Device.h>

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

// Throws what Python makes of a failure in a function of the scalar layer (loma/runtime_errors.py); set
// by the binding.
using Failed = void (*)(const Report& report);
void set_failed(Failed failed);

// The exception that the check of the CPU throws.
[[noreturn]] void throw_check(const Report& report);

}  // namespace loma::gpu

#endif  // LOMA_GPU_REPORTS_H
