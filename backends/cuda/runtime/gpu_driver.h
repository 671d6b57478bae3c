// CUDA's driver, found when it is first needed: nothing of CUDA is compiled or linked.
#ifndef LOMA_GPU_DRIVER_H
#define LOMA_GPU_DRIVER_H

#include <cstddef>
#include <cstdint>
#include <string>

namespace loma::gpu {

using Function = void*;  // a CUfunction
using Stream = void*;    // a CUstream

// A kernel's image, loaded for the device, which is current.
Function load(int device, const std::string& image, const char* name);

// How much dynamic shared memory a function's blocks have at most.
void allow_shared(int device, Function function, int64_t bytes);

void launch(Function function, const char* name, int device, int64_t blocks, int64_t slices,
            int threads, int64_t shared_bytes, void** arguments);

// Whether launches on the current stream are recorded for a graph: nothing may be loaded then.
bool is_capturing(int device);

// As compilers name it: sm_90.
std::string architecture(int device);

// Whether it multiplies matrices of bfloat16 and float16, and copies beside computing: from sm_80 on.
bool has_matrix_units(int device);
// Whether four warps use them together (Hopper's; warpgroups.h of the device).
bool units_take_groups(int device);

// The shared memory that a block can have at most.
int64_t most_shared(int device);

// Memory of zeros that the host and all devices read and write at one address; never freed.
void* visible_memory(int device, size_t bytes);

// Waits until the device has done what it was given.
void synchronize(int device);

}  // namespace loma::gpu

#endif  // LOMA_GPU_DRIVER_H
