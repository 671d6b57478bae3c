// Running reductions along memory (backends/cuda/running.py), which the threads of a part share:
// vectors of a thread's own numbers, steps of 1, 2, 4 lanes in a warp, warps of a block, and blocks of
// a row in two launches. What is joined with what follows from sizes only.
#pragma once

#include <cstdint>

#include "parts.h"

namespace loma {

// What another one of ``width`` neighbours has.
template <int width, typename number>
inline number of_lane(number value, int lane) {
  return __shfl_sync(lanes_mask<width>(), value, lane, width);
}
template <int width, typename number>
inline Affine<number> of_lane(Affine<number> value, int lane) {
  return {of_lane<width>(value.factor, lane), of_lane<width>(value.rest, lane)};
}
template <int width, typename number>
inline number of_lower(number value, int distance) {
  return __shfl_up_sync(lanes_mask<width>(), value, distance, width);
}
template <int width, typename number>
inline Affine<number> of_lower(Affine<number> value, int distance) {
  return {of_lower<width>(value.factor, distance), of_lower<width>(value.rest, distance)};
}

// What ``width`` neighbours have, each joined with those of all lanes before it.
template <typename Kind, int width, typename number>
inline number up_to(number value) {
#pragma unroll
  for (int distance = 1; distance < width; distance *= 2) {
    const number lower = of_lower<width>(value, distance);
    if (static_cast<int>(threadIdx.x % width) >= distance) value = Kind::join(lower, value);
  }
  return value;
}

// What warps of a block have before each other, or neighbours that are alone: nothing.
template <typename Kind, typename number>
inline number before(const Block& block, number own, number none, number& all) {
  constexpr int warps = Block::kWarps;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const number* const totals = block.totals(own);
  const number up = up_to<Kind, 32>(lane < warps ? totals[lane] : none);
  all = of_lane<32>(up, warps - 1);
  const number lower = of_lane<32>(up, warp == 0 ? 0 : warp - 1);
  return warp == 0 ? none : lower;
}
template <typename Kind, int width, typename number>
inline number before(const Lanes<width>&, number own, number none, number& all) {
  all = own;
  return none;
}

// Whether one of the factors is too large for a number, or none: a product of it stays so. Then these
// must not be multiplied with each other before they are with the number that there is.
template <typename Kind>
constexpr bool kMultiplies = false;
template <>
constexpr bool kMultiplies<Prod> = true;
template <typename Kind, typename number>
inline bool is_too_large(number product) {
  return kMultiplies<Kind> && product - product != 0;
}
template <typename Kind, typename number>
inline bool is_too_large(const Affine<number>& steps) {
  return steps.factor - steps.factor != 0;
}

// What the first of the threads has.
template <typename number>
inline number of_first(const Block& block, number value) {
  return block.totals(value)[0];
}
template <int width, typename number>
inline number of_first(const Lanes<width>&, number value) {
  return of_lane<width>(value, 0);
}

// The same on one thread.
template <typename Kind, typename number, typename Value, typename Write>
inline number one_by_one(int64_t low, int64_t high, number last, const Value& value,
                         const Write& write) {
#pragma unroll 4
  for (int64_t t = low; t < high; ++t) {
    last = Kind::join(last, number(value(t)));
    write(t, last);
  }
  return last;
}

// write(t, last . value(low) . ... . value(t)) for every t of [low, high), by ``segments`` groups of
// ``width`` lanes, of which this is one: a thread has kBeside numbers side by side, ``rounds`` times.
template <typename Kind, int width, int rounds, typename Part, typename number, typename Value,
          typename Write>
inline void in_tiles(const Part& part, int segments, int64_t low, int64_t high, number last,
                     number none, const Value& value, const Write& write) {
  constexpr int64_t kRound = int64_t(width) * kBeside, kOwn = kRound * rounds;
  const int lane = static_cast<int>(threadIdx.x % width);
  const int segment = segments == 1 ? 0 : static_cast<int>(threadIdx.x / width);
  for (int64_t tile = low; tile < high; tile += segments * kOwn) {
    const int64_t first = (tile / kBeside + segment * (kOwn / kBeside) + lane) * kBeside;
    const bool whole = tile + segments * kOwn <= high;
    number found[rounds][kBeside], lower[rounds];
    if (whole) {
#pragma unroll
      for (int k = 0; k < rounds; ++k) {
#pragma unroll
        for (int own = 0; own < kBeside; ++own) {
          found[k][own] = number(value(first + k * kRound + own));
        }
      }
    } else {
#pragma unroll
      for (int k = 0; k < rounds; ++k) {
#pragma unroll
        for (int own = 0; own < kBeside; ++own) {
          const int64_t at = first + k * kRound + own;
          found[k][own] = at < high ? number(value(at)) : none;
        }
      }
    }
    number total = none;
#pragma unroll
    for (int k = 0; k < rounds; ++k) {
#pragma unroll
      for (int own = 1; own < kBeside; ++own) {
        found[k][own] = Kind::join(found[k][own - 1], found[k][own]);
      }
      const number up = up_to<Kind, width>(found[k][kBeside - 1]);
      lower[k] = of_lower<width>(up, 1);
      if (lane == 0) lower[k] = none;
      lower[k] = Kind::join(total, lower[k]);
      total = Kind::join(total, of_lane<width>(up, width - 1));
    }
    number all;
    const number outer = Kind::join(last, before<Kind>(part, total, none, all));
    if (is_too_large<Kind>(all)) {
      const int64_t end = min<int64_t>(tile + segments * kOwn, high);
      if (part.leads()) last = one_by_one<Kind>(tile, end, last, value, write);
      last = of_first(part, last);
      continue;
    }
#pragma unroll
    for (int k = 0; k < rounds; ++k) {
      const number start = Kind::join(outer, lower[k]);
#pragma unroll
      for (int own = 0; own < kBeside; ++own) {
        const int64_t at = first + k * kRound + own;
        if (whole || at < high) write(at, Kind::join(start, found[k][own]));
      }
    }
    last = Kind::join(last, all);
  }
}

// The same with as many rounds as a row of known length has something for.
template <typename Kind, int width, typename Part, typename number, typename Value, typename Write>
inline void by_lanes(const Part& part, int segments, int64_t high, number last, number none,
                     const Value& value, const Write& write) {
#if LOMA_UNROLL == 1
  in_tiles<Kind, width, 1>(part, segments, 0, high, last, none, value, write);
#elif defined(LOMA_KNOWN)
  const int64_t round = int64_t(segments) * width * kBeside;
  if (high > 4 * round && sizeof(number) <= 8) {
    in_tiles<Kind, width, 8>(part, segments, 0, high, last, none, value, write);
  } else if (high > 2 * round) {
    in_tiles<Kind, width, 4>(part, segments, 0, high, last, none, value, write);
  } else if (high > round) {
    in_tiles<Kind, width, 2>(part, segments, 0, high, last, none, value, write);
  } else {
    in_tiles<Kind, width, 1>(part, segments, 0, high, last, none, value, write);
  }
#else
  in_tiles<Kind, width, 4>(part, segments, 0, high, last, none, value, write);
#endif
}

// write(t, *begin . value(0) . ... . value(t)) for every t of [0, count); there is nothing at ``begin``
// where that is empty, or no pointer. ``none`` is the reduction of no numbers.
template <typename Kind, typename number, typename Value, typename Write>
inline void running(const Alone&, int64_t count, const number* begin, number none,
                    const Value& value, const Write& write) {
  if (count <= 0) return;
  one_by_one<Kind>(0, count, begin == nullptr ? none : *begin, value, write);
}
template <typename Kind, typename number, int width, typename Value, typename Write>
inline void running(const Lanes<width>& part, int64_t count, const number* begin, number none,
                    const Value& value, const Write& write) {
  if (count <= 0) return;
  by_lanes<Kind, width>(part, 1, count, begin == nullptr ? none : *begin, none, value, write);
}
template <typename Kind, typename number, typename Value, typename Write>
inline void running(const Block& part, int64_t count, const number* begin, number none,
                    const Value& value, const Write& write) {
  if (count <= 0) return;
  by_lanes<Kind, 32>(part, Block::kWarps, count, begin == nullptr ? none : *begin, none, value, write);
}

// The same where neighbouring threads have rows that lie beside each other: each of a row has a stretch
// of it, which it goes through twice. Steps that cannot be joined it takes from the beginning.
template <typename Kind, typename number, typename Value, typename Write>
inline void in_stretches(const Across& part, int64_t low, int64_t high, number last, number none,
                         const Value& value, const Write& write) {
  const int64_t length = (high - low + kTeam - 1) / kTeam;
  const int64_t own = min<int64_t>(low + part.rank() * length, high);
  const int64_t end = min<int64_t>(own + length, high);
  number total = none;
#pragma unroll 8
  for (int64_t t = own; t < end; ++t) total = Kind::join(total, number(value(t)));
  const number* const totals = part.totals(total);
  number before = none;
  for (int rank = 0; rank < static_cast<int>(part.rank()); ++rank) {
    before = Kind::join(before, totals[rank * kRow]);
  }
  if (is_too_large<Kind>(before)) {
    for (int64_t t = low; t < own; ++t) last = Kind::join(last, number(value(t)));
  } else {
    last = Kind::join(last, before);
  }
  __syncthreads();  // all is read: of the totals, and of what others write now
  if (!part.inside) return;
#pragma unroll 8
  for (int64_t t = own; t < end; ++t) {
    last = Kind::join(last, number(value(t)));
    write(t, last);
  }
}
template <typename Kind, typename number, typename Value, typename Write>
inline void running(const Across& part, int64_t count, const number* begin, number none,
                    const Value& value, const Write& write) {
  if (count <= 0) return;
  in_stretches<Kind>(part, 0, count, begin == nullptr ? none : *begin, none, value, write);
}

// A block's slice of rows. First it leaves what the reduction makes of the slice; then it takes that
// of the slices before it, and goes through its own again.
template <typename Part, int stage>
struct SliceOfRow {
  int64_t length(int64_t count) const {
    constexpr int64_t kTogether = 64;
    return ((count + slices - 1) / slices + kTogether - 1) / kTogether * kTogether;
  }

  const Part& part;
  int64_t slices, own;
  int64_t rows, row;
  void* parts;
};
template <typename Kind, typename number, typename Part, int stage, typename Value, typename Write>
inline void running(const SliceOfRow<Part, stage>& slice, int64_t count, const number* begin,
                    number none, const Value& value, const Write& write) {
  const int64_t length = slice.length(count), low = min<int64_t>(slice.own * length, count);
  const int64_t high = min<int64_t>(low + length, count);
  number* const totals = static_cast<number*>(slice.parts) + slice.row;
  number found = none;
  if constexpr (stage == 1) {
    over(slice.part, low, high, [&](int64_t t) { found = Kind::join(found, number(value(t))); });
    slice.part.template all_reduce<Kind>(found);
    if (slice.part.leads()) totals[slice.own * slice.rows] = found;
  } else {
    for (int64_t other = slice.part.first(0); other < slice.own; other += slice.part.step()) {
      found = Kind::join(found, totals[other * slice.rows]);
    }
    slice.part.template all_reduce<Kind>(found);
    if (begin != nullptr && count > 0) found = Kind::join(*begin, found);
    if constexpr (Part::kAlong) {
      constexpr int rounds = LOMA_UNROLL == 1 ? 1 : 4;
      in_tiles<Kind, 32, rounds>(slice.part, Block::kWarps, low, high, found, none, value, write);
    } else {
      in_stretches<Kind>(slice.part, low, high, found, none, value, write);
    }
  }
}

// write(t, x) for every t of [0, count), where x is factor(t) times what was there before, first at
// ``begin``, and more(t). ``cuts``: nothing of it where the factor is 0.
template <typename number, bool cuts, typename Part, typename Factor, typename More, typename Write>
inline void recurrence(const Part& part, int64_t count, const number* begin, const Factor& factor,
                       const More& more, const Write& write) {
  if (count <= 0) return;
  const Affine<number> start{0, *begin};
  running<Steps<cuts>, Affine<number>>(
      part, count, &start, {1, 0},
      [&](int64_t t) {
        return Affine<number>{number(factor(t)), number(more(t))};
      },
      [&](int64_t t, const Affine<number>& found) { write(t, found.rest); });
}

// body(p, part), in slices where there are some.
template <typename Body, typename Part>
inline void sliced(const Grid& grid, const Body& body, int64_t p, const Part& part) {
  if constexpr (LOMA_STAGE > 0) {
    const int64_t own = blockIdx.y;
    body(p, SliceOfRow<Part, LOMA_STAGE>{part, grid.slices, own, grid.count, p, grid.parts});
  } else {
    body(p, part);
  }
}

// A kernel that is one such reduction: body(p, part) for p in range(grid.count), each of which calls
// ``running`` once.
template <typename Body>
inline void running_rows(const Grid& grid, const Body& body) {
  const int64_t count = grid.count, all = blocks(grid) * kTeams;
  if constexpr (LOMA_ACROSS) {
    for (int64_t p = block(grid) * kTeams; p < count; p += all) {
      const int64_t own = p + threadIdx.x % kTeams;
      sliced(grid, body, own < count ? own : count - 1, Across{own < count});
    }
  } else if constexpr (kTeam > 32) {
    const Block part{};
    for (int64_t p = block(grid); p < count; p += blocks(grid)) sliced(grid, body, p, part);
  } else {
    for (int64_t p = block(grid) * kTeams + threadIdx.x / kTeam; p < count; p += all) {
      if constexpr (kTeam > 1) {
        body(p, Lanes<kTeam>());
      } else {
        body(p, Alone());
      }
    }
  }
}

}  // namespace loma
