// One launch for many positions of lists: each has blocks of its own, and its arguments among the
// words of the only parameter.
#pragma once

#include <cstdint>

namespace loma {

// A kernel's parameters are 4096 bytes. How many positions there are; how many words the arguments
// of each have; the first block of each; the arguments of each, as the host gives them to a launch
// for one.
struct Lists {
  static constexpr int kMost = 512;
  uint64_t words[kMost];
};

template <auto kernel>
struct Listed;

template <typename... Given, void (*kernel)(Given...)>
struct Listed<kernel> {
  static void at(const uint64_t* words) { call(words, Parameters<Given...>()); }

 private:
  template <typename...>
  struct Parameters {};

  template <typename... Made>
  static void call(const uint64_t*, Parameters<>, Made... made) {
    kernel(made...);
  }
  template <typename Next, typename... Rest, typename... Made>
  static void call(const uint64_t* words, Parameters<Next, Rest...>, Made... made) {
    const auto& next = *reinterpret_cast<const Next*>(words);
    call(words + (sizeof(Next) + 7) / 8, Parameters<Rest...>(), made..., next);
  }
};

// The kernel, by the blocks of whose position this is one.
template <auto kernel>
inline void at_position(const uint64_t* words) {
  const int64_t count = words[0], size = words[1];
  int64_t k = 0;
  while (k + 1 < count && blockIdx.x >= words[2 + k + 1]) ++k;
  Listed<kernel>::at(words + 2 + count + k * size);
}

}  // namespace loma
