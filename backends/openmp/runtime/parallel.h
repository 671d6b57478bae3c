// The parallel loop.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

// Parts of a module that are loaded later call these, too.
#pragma GCC visibility push(default)

namespace loma {

// A function that somebody else keeps: no longer than a call lasts.
template <typename... Given>
class Callback {
 public:
  template <typename Body>
  Callback(const Body& body)  // NOLINT: implicit on purpose
      : body_(std::addressof(body)), call_(call<Body>) {}

  void operator()(Given... given) const { call_(body_, given...); }

 private:
  // Its name has the body's, which stack traces show.
  template <typename Body>
  static void call(const void* body, Given... given) {
    (*static_cast<const Body*>(body))(given...);
  }

  const void* body_;
  void (*call_)(const void*, Given...);
};

using Range = Callback<int64_t, int64_t>;

bool in_parallel_region();

// body(begin, end) for parts of [begin, end) of at least ``grain``, each on a thread.
void parallel_for(int64_t begin, int64_t end, int64_t grain, Range body);

// Runs ``body(begin, end)`` over range(count), in parallel when there is enough to do. ``work`` is
// the number of innermost steps in one iteration.
void parallel(int64_t count, int64_t work, Range body);

}  // namespace loma

#pragma GCC visibility pop
