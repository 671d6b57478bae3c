// What a build with sanitizers (LOMA_SANITIZE) does differently; in others nothing.
//
// The toolchain defines LOMA_SANITIZE_ADDRESS or LOMA_SANITIZE_THREAD in such a build.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef LOMA_SANITIZE_ADDRESS
#include <sanitizer/asan_interface.h>
#endif

namespace loma {

#if defined(LOMA_SANITIZE_ADDRESS) || defined(LOMA_SANITIZE_THREAD)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// How many innermost steps are worth a thread: with sanitizers any number, so that programs of a few
// elements show their races.
constexpr int64_t kGrain = kSanitized ? 1 : LOMA_GRAIN;

// With sanitizers no more values make a block or a tile, so that small tensors have several.
constexpr int64_t kMostInPart = kSanitized ? 3 : INT64_MAX;

// Under AddressSanitizer private tensors of a kernel do not share memory, and behind each are that
// many bytes, more than the longest tile has, that must not be touched.
#ifdef LOMA_SANITIZE_ADDRESS
constexpr size_t kRedZone = 512;
inline void forbid(const std::byte* begin, const std::byte* end) {
  ASAN_POISON_MEMORY_REGION(begin, end - begin);
}
#else
constexpr size_t kRedZone = 0;
inline void forbid(const std::byte*, const std::byte*) {}
#endif

}  // namespace loma
