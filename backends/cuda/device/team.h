// The loop of a kernel that runs several statements an iteration, with private memory between them:
// body(i, team, memory) for i in range(grid.count).
#pragma once

#include <cstdint>

#include "parts.h"

#ifndef LOMA_DYNAMIC_SHARED
#define LOMA_DYNAMIC_SHARED(name) extern __shared__ __align__(16) char name[]
#endif

namespace loma {

// The threads of an iteration.
struct Team {
  static int rank() { return threadIdx.x % kTeam; }

  // body(0, part) in all threads, each of which finds what all find; they share what is as long as
  // ``inner``. A barrier ends it where ``meets``: where memory is written that others read.
  template <typename Body>
  void alike(int64_t inner, bool meets, const Body& body) const {
    if (kTeam == 1 || inner < 8) {
      body(0, Twin());
    } else {
      whole([&](const auto& part) { body(0, part); });
    }
    if (meets) team_barrier();
  }

  // body(p, part) for p in range(count), where ``inner`` is the length of what a part shares. Not
  // ``across``: that lies along memory, which the lanes of a warp read together where it is long. A
  // barrier ends it, so what one call has written, the next reads.
  template <typename Body>
  void each(int64_t count, int64_t inner, bool across, const Body& body) const {
    constexpr int warps = kTeam / 32;
    const bool along = !across && inner >= 32;
    if (kTeam == 1 || inner < 8 || (2 * count > kTeam && !along)) {
      int64_t p = rank();
#if LOMA_UNROLL == 1
#pragma unroll 1
      for (; p < count; p += kTeam) body(within(p, count), Alone());
#else
      const int64_t rounds = count / kTeam;
#pragma unroll LOMA_UNROLL
      for (int64_t k = 0; k < rounds; ++k, p += kTeam) body(within(p, count), Alone());
      if (p < count) body(within(p, count), Alone());
#endif
    } else if (across) {
      if (kTeam > 1 && count > 0) {
        const int own = static_cast<int>(count);
        const int ranks = static_cast<int>(std::min<int64_t>(kTeam / own, inner / 4));
        const int thread = static_cast<int>(rank()), column = thread % own, r = thread / own;
        body(column, Columns{own, ranks, column, r, r < ranks});
      }
    } else if (warps > 1 && by_warps(count, inner)) {
      if constexpr (warps > 1) {
        for (int64_t p = threadIdx.x / 32; p < count; p += warps) body(p, Lanes<32>());
      }
    } else if constexpr (kTeam > 1) {
      whole([&](const auto& part) {
        for (int64_t p = 0; p < count; ++p) body(p, part);
      });
    }
    team_barrier();
  }

  // The same for iterations each of which takes one sum along memory. Short rows are read 16 bytes by
  // each of a few neighbours, so that what a warp reads lies together, and several of them before the
  // first sum is taken.
  template <typename number, typename Body>
  void rows(int64_t count, int64_t inner, const Body& body) const {
    if (2 * count > kTeam && (in_lanes<number, 2>(count, inner, body) ||
                              in_lanes<number, 4>(count, inner, body))) {
      return team_barrier();
    }
    each(count, inner, false, body);
  }

  template <typename Body>
  void each(int64_t count, int64_t inner, const Body& body) const {
    each(count, inner, true, body);
  }

  // body(p, part) for p in range(count), rows of numbers that the threads of a part share: a warp has
  // one where there are enough, else all have one after the other.
  template <typename Body>
  void running(int64_t count, const Body& body) const {
    constexpr int warps = kTeam / 32;
    if (warps > 1 && count >= warps) {
      if constexpr (warps > 1) {
        for (int64_t p = threadIdx.x / 32; p < count; p += warps) body(p, Lanes<32>());
      }
    } else {
      whole([&](const auto& part) {
        for (int64_t p = 0; p < count; ++p) body(p, part);
      });
    }
    team_barrier();
  }

  // The same without anything shared, for iterations in order along an axis of length ``row``.
  template <typename Body>
  void beside(int64_t count, int64_t row, const Body& body) const {
    if (row % kBeside != 0 || count < kTeam * kBeside) return each(count, 1, body);
    const int64_t groups = count / kBeside;
    int64_t p = rank();
#if LOMA_UNROLL == 1
#pragma unroll 1
    for (; p < groups; p += kTeam) side_by_side(within(p, groups), body);
#else
    const int64_t rounds = groups / kTeam;
#pragma unroll LOMA_UNROLL_BESIDE
    for (int64_t k = 0; k < rounds; ++k, p += kTeam) side_by_side(within(p, groups), body);
    if (p < groups) side_by_side(within(p, groups), body);
#endif
    team_barrier();
  }

  // The same for iterations each of which puts a sum of ``inner`` steps into one place. Where these are
  // few, a thread has those side by side along an axis of length ``row``, and what they share.
  template <typename number, typename Body>
  void sums(int64_t count, int64_t row, int64_t inner, bool across, const Body& body) const {
#if LOMA_UNROLL > 1
    if (inner < 8 && row % kBeside == 0 && count >= kTeam * kBeside) {
      constexpr int groups = 4;
      const int64_t all = count / kBeside;
      const auto at = [&](int64_t group, int k) {
        return Neighbour{within(group + k / kBeside * kTeam, all) * kBeside, k % kBeside};
      };
      int64_t p = rank();
#pragma unroll 1
      for (; p < all - (groups - 1) * kTeam; p += groups * kTeam) {
        together<number, groups * kBeside, false>([&](int k) { return at(p, k); }, body);
      }
#pragma unroll 1
      for (; p < all; p += kTeam) {
        together<number, kBeside, false>([&](int k) { return at(p, k); }, body);
      }
      return team_barrier();
    }
#endif
    each(count, inner, across, body);
  }

  // The same for iterations that change elements of their own: body(p, part, reading(p)).
  template <typename Reading, typename Body>
  void owned(int64_t count, const Reading& reading, const Body& body) const {
    int64_t p = rank();
#if LOMA_UNROLL > 1
#ifdef LOMA_KNOWN  // else neighbours are not read and written as 16 bytes, but far from other threads'
    if (count % kBeside == 0 && count >= kTeam * kBeside) {
      const int64_t groups = count / kBeside;
#pragma unroll 1
      for (; p < groups; p += kTeam) {
        const auto at = [&](int k) { return int64_t(Neighbour{within(p, groups) * kBeside, k}); };
        loma::owned<kBeside>(at, reading, body);
      }
      return team_barrier();
    }
#endif
    for (; p < count - 3 * kTeam; p += 4 * kTeam) {
      loma::owned<4>([&](int k) { return within(p + k * kTeam, count); }, reading, body);
    }
#endif
#pragma unroll 1
    for (; p < count; p += kTeam) body(within(p, count), Alone(), reading(within(p, count)));
    team_barrier();
  }

  // The same for iterations each of which adds to one place.
  template <typename number, typename Body>
  void adding(int64_t count, int64_t row, const Body& body) const {
    int64_t p = rank();
#if LOMA_UNROLL > 1
    constexpr int groups = LOMA_UNROLL_BESIDE, several = groups * kBeside;
    if (row % kBeside == 0 && count >= kTeam * kBeside) {
      const int64_t all = count / kBeside;
      const auto at = [&](int64_t group, int k) {
        return Neighbour{within(group + k / kBeside * kTeam, all) * kBeside, k % kBeside};
      };
      for (; p <= all - groups * kTeam; p += groups * kTeam) {
        together<number, several, true>([&](int k) { return at(p, k); }, body);
      }
      for (; p < all; p += kTeam) {
        together<number, kBeside, true>([&](int k) { return at(p, k); }, body);
      }
      return team_barrier();
    }
    for (; p <= count - several * kTeam; p += several * kTeam) {
      together<number, several, true>([&](int k) { return within(p + k * kTeam, count); }, body);
    }
#endif
#pragma unroll 1
    for (; p < count; p += kTeam) body(within(p, count), Alone());
    team_barrier();
  }

 private:
  // Whether a warp for each row takes less time than all threads for one after the other, who need
  // kJoining steps to put together what they have.
  static bool by_warps(int64_t count, int64_t inner) {
    constexpr int64_t kJoining = 8;
    constexpr int warps = std::max(kTeam / 32, 1);
    return (count + warps - 1) / warps * (inner / 32) <= count * (kJoining + inner / kTeam);
  }

  // rows() for rows that ``width`` lanes read at once; whether these are such.
  template <typename number, int width, typename Body>
  bool in_lanes(int64_t count, int64_t inner, const Body& body) const {
    if (kTeam < 32 || inner != width * kBeside) return false;
    constexpr int groups = kTeam / width;
    int64_t p = rank() / width;
#if LOMA_UNROLL > 1
    constexpr int several = 8;
    const int64_t rounds = count / (several * groups);
#pragma unroll 1
    for (int64_t k = 0; k < rounds; ++k, p += several * groups) {
      number own[several];
#pragma unroll
      for (int j = 0; j < several; ++j) {
        body(within(p + j * groups, count), OwnPart<number, width>{{}, own[j]});
      }
#pragma unroll
      for (int j = 0; j < several; ++j) {
        body(within(p + j * groups, count), OfParts<number, width>{{}, own[j]});
      }
    }
#endif
#pragma unroll 1
    for (; p < count; p += groups) body(within(p, count), Lanes<width>());
    return true;
  }

  template <typename Body>
  void whole(const Body& body) const {
    if constexpr (kTeam > 32) {
      body(block_);
    } else if constexpr (kTeam > 1) {
      body(Lanes<kTeam>());
    } else {
      body(Alone());
    }
  }

  Block block_;  // one for all reductions, as not all of them have a barrier between
};

// What an iteration has of the workspace: what is far, then the rest where that is not shared memory.
inline char* far_memory(const Grid& grid) {
  const int64_t team = threadIdx.x / kTeam, far = grid.far / 16 * 16;  // so it says in the text
  const int64_t bytes = LOMA_SHARED ? 0 : grid.bytes / 16 * 16;
#ifdef LOMA_ALIGNED
  static_cast<void>(__builtin_assume_aligned(grid.workspace, 16));
#endif
  return grid.workspace + (block(grid) * kTeams + team) * (far + bytes);
}

// An iteration's private memory.
inline char* private_memory(const Grid& grid) {
  if constexpr (LOMA_SHARED) {
    LOMA_DYNAMIC_SHARED(shared);
    return shared + threadIdx.x / kTeam * (grid.bytes / 16 * 16);
  } else {
    return far_memory(grid) + grid.far / 16 * 16;
  }
}

// A place in it: kFar stands before the offsets of what is far.
inline char* private_at(const Grid& grid, char* memory, int64_t offset) {
  constexpr int64_t kFar = int64_t(1) << 48;
  if constexpr (LOMA_SHARED != 1) {
    if (offset >= kFar) return far_memory(grid) + (offset - kFar);
  }
  return memory + offset;
}

template <typename Body>
inline void iterations(const Grid& grid, const Body& body) {
  char* const memory = private_memory(grid);
  const Team team;
  const int64_t count = grid.count, all = blocks(grid) * kTeams;
  for (int64_t i = block(grid) * kTeams + threadIdx.x / kTeam; i < count; i += all) {
    body(i, team, memory);
  }
}

// The same where teams, all of a block each, carry sums from one iteration to the next: start(team,
// memory) before the first one, end(number of the team, team, memory) behind the last.
template <typename Start, typename Body, typename End>
inline void carried(const Grid& grid, const Start& start, const Body& body, const End& end) {
  char* const memory = private_memory(grid);
  const Team team;
  start(team, memory);
  iterations(grid, body);
  end(block(grid), team, memory);
}

}  // namespace loma
