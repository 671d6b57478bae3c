// The loop of a kernel that is one statement: body(p, part) for p in range(grid.count). Iterations
// go round over the teams of the grid.
#pragma once

#include <cstdint>

#include "parts.h"

namespace loma {

// body(p, part) as the stage wants it.
template <typename Body, typename Part>
inline void staged(const Grid& grid, const Body& body, int64_t p, const Part& part) {
  if constexpr (LOMA_STAGE == 1) {
    const int64_t own = blockIdx.y;
    body(p, Slice<Part>{part, grid.slices, grid.count, grid.parts, own * grid.count + p, own});
  } else {
    body(p, part);
  }
}

// ``row``: the length of the axis along which iterations are in order, 1 where they are not to be
// taken side by side.
template <typename Body>
inline void statement(const Grid& grid, int64_t row, const Body& body) {
  const int64_t count = grid.count;
  if constexpr (LOMA_STAGE == 2) {
    const int64_t all = blocks(grid) * kThreads;
    for (int64_t p = block(grid) * kThreads + threadIdx.x; p < count; p += all) {
      body(p, Joined{grid.slices, count, grid.parts, p});
    }
  } else if constexpr (kTeam > 32) {
    const Block part{};
    for (int64_t p = block(grid); p < count; p += blocks(grid)) staged(grid, body, p, part);
  } else if constexpr (LOMA_ACROSS && kTeam > 1) {
    const int64_t all = blocks(grid) * kTeams;
    for (int64_t p = block(grid) * kTeams; p < count; p += all) {
      const int64_t own = p + threadIdx.x % kTeams;
      const bool inside = own < count;
      staged(grid, body, inside ? own : count - 1, Across{inside});
    }
  } else {
    const int64_t all = blocks(grid) * kTeams;
    int64_t p = block(grid) * kTeams + threadIdx.x / kTeam;
    if constexpr (kTeam > 1) {
      for (; p < count; p += all) staged(grid, body, p, Lanes<kTeam>());
    } else {
      bounded(count, [&](const auto& at) {
        if (LOMA_STAGE == 0 && grid.beside > 1 && row % kBeside == 0) {
          for (; p < count / kBeside; p += all) side_by_side(at(p), body);
        } else {
#pragma unroll 4
          for (; p < count; p += all) staged(grid, body, at(p), Alone());
        }
      });
    }
  }
}

template <typename Body>
inline void statement(const Grid& grid, const Body& body) {
  statement(grid, 1, body);
}

// The same for iterations that change elements of their own: body(p, part, reading(p)).
template <typename Reading, typename Body>
inline void owned(const Grid& grid, const Reading& reading, const Body& body) {
  const int64_t count = grid.count, all = blocks(grid) * kTeams;
  int64_t p = block(grid) * kTeams + threadIdx.x / kTeam;
  bounded(count, [&](const auto& at) {
    for (; p < count - 3 * all; p += 4 * all) {
      owned<4>([&](int k) { return at(p + k * all); }, reading, body);
    }
#pragma unroll 1
    for (; p < count; p += all) body(at(p), Alone(), reading(at(p)));
  });
}

// The same for iterations each of which adds to one place.
template <typename number, typename Body>
inline void adding(const Grid& grid, int64_t row, const Body& body) {
  const int64_t count = grid.count, all = blocks(grid) * kTeams;
  int64_t p = block(grid) * kTeams + threadIdx.x / kTeam;
  bounded(count, [&](const auto& at) {
    if (grid.beside > 1 && row % kBeside == 0) {
      for (; p < count / kBeside; p += all) {
        together<number, kBeside, true>([&](int k) { return Neighbour{at(p) * kBeside, k}; }, body);
      }
    } else {
      for (; p < count; p += all) body(at(p), Alone());
    }
  });
}

}  // namespace loma
