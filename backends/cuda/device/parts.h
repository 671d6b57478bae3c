// The threads that share an iteration. Each kind of them has
//   first(low), last(high), step(): for (d = first(low); d < last(high); d += step()) in each thread
//     passes range(low, high) once in all of them together;
//   all_reduce<Kind>(acc): what all have, joined, in all; called by all or none of them;
//   leads(): one of them, which writes the result;
//   kAlong: whether they are neighbours, which read along memory.
#pragma once

#include <cstdint>

#include "grid.h"
#include "reduce.h"

namespace loma {

constexpr int kThreads = LOMA_THREADS;
constexpr int kTeam = LOMA_TEAM;
constexpr int kTeams = kThreads / kTeam;  // of a block

#ifndef LOMA_GROUPS  // of which one may copy for two
static_assert(kThreads > 0 && (kThreads & (kThreads - 1)) == 0, "LOMA_THREADS: no power of 2");
#endif
static_assert(kTeam > 0 && (kTeam & (kTeam - 1)) == 0, "LOMA_TEAM: no power of 2");
static_assert(kTeam <= 32 || kTeam == kThreads, "a team larger than a warp is a block");
static_assert(kTeam <= kThreads, "a team is in one block");
static_assert(!LOMA_ACROSS || kTeam == 1 || (kTeam <= 32 && kTeams % 32 == 0),
              "LOMA_ACROSS: at most 32 threads a team, a multiple of 32 teams");

// How many numbers a thread reads or writes at once, where they lie side by side: 16 bytes.
constexpr int kBeside = 16 / sizeof(LOMA_REAL);

// Memory in which the threads of a block exchange what they have, of 16 bytes at most each. With
// LOMA_ACROSS it is a row for each rank, one number longer than the teams, so that a team's numbers
// are in different banks; then the totals.
constexpr int kEntry = 16;
constexpr int kRow = kTeams + 1;
constexpr int kEntries = LOMA_ACROSS ? kTeam * kRow + kTeams : 2 * (kThreads / 32 + 1);

[[maybe_unused]] static char* exchange() {
  __shared__ __align__(16) char memory_[kEntries * kEntry];
  return memory_;
}

inline void team_barrier() {
  if constexpr (kTeam > 32) {
    __syncthreads();
  } else if constexpr (kTeam > 1) {
    __syncwarp(lanes_mask<kTeam>());
  }
}

// p, of which the compiler may know that range(count) has it: with a known count it divides without a
// branch on p's size, past which it would read nothing ahead.
inline int64_t within(int64_t p, int64_t count) {
  __builtin_assume(p >= 0 && p < count);
  return p;
}

// run(bounded): what goes through range(count), with bounded(p) for p; if that is short, the compiler
// may know so.
template <typename Run>
inline void bounded(int64_t count, const Run& run) {
#ifdef LOMA_KNOWN
  constexpr int64_t kShort = int64_t(1) << 31;
  if (count <= kShort) return run([](int64_t p) { return within(p, kShort); });
#endif
  run([](int64_t p) { return p; });
}

// A thread by itself.
struct Alone {
  static int64_t first(int64_t low) { return low; }
  static int64_t last(int64_t high) { return high; }
  static constexpr int64_t step() { return 1; }
  static constexpr bool kAlong = false;
  template <typename Kind = Best, int slot = 0, typename number>
  static void all_reduce(number&) {}
  static constexpr bool leads() { return true; }
  template <typename number, typename Value>
  static void add(number& place, Value value) {
    place += value;
  }
};

// One that adds later: which place, and what.
template <typename number>
struct Later : Alone {
  void add(number& to, number more) const { place = &to, value = more; }

  number*& place;
  number& value;
};

// body(at(k), part) for k in range(rounds), each of which has one place of its own, to which it adds
// or where it puts what it found: all that they read is read before the first is written, which a
// compiler may not change by itself.
template <typename number, int rounds, bool adds, typename At, typename Body>
inline void together(const At& at, const Body& body) {
  number* places[rounds];
  number values[rounds];
#pragma unroll
  for (int k = 0; k < rounds; ++k) body(at(k), Later<number>{{}, places[k], values[k]});
  if constexpr (adds) {
#pragma unroll
    for (int k = 0; k < rounds; ++k) values[k] = *places[k] + values[k];
  }
#pragma unroll
  for (int k = 0; k < rounds; ++k) *places[k] = values[k];
}

// An iteration's result, which goes to one place: at once, or later.
template <typename Part, typename number, typename Value>
inline void put(const Part&, number& place, Value value) {
  place = value;
}
template <typename number, typename Value>
inline void put(const Later<number>& part, number& place, Value value) {
  part.place = &place, part.value = value;
}

// What an iteration reads before it writes.
template <typename number, int count>
struct Read {
  number values[count];

  number operator[](int64_t k) const { return values[k]; }
};

// Iterations that change elements of their own: all of some are read before the first is written.
template <int rounds, typename At, typename Reading, typename Body>
inline void owned(const At& at, const Reading& reading, const Body& body) {
  decltype(reading(at(0))) read[rounds];
#pragma unroll
  for (int k = 0; k < rounds; ++k) read[k] = reading(at(k));
#pragma unroll
  for (int k = 0; k < rounds; ++k) body(at(k), Alone(), read[k]);
}

// One of the threads that do the same, of which one writes.
struct Twin : Alone {
  static bool leads() { return threadIdx.x % kTeam == 0; }
};

// Iterations side by side, the group p of them.
template <typename Body>
inline void side_by_side(int64_t p, const Body& body) {
#pragma unroll LOMA_BESIDE
  for (int offset = 0; offset < kBeside; ++offset) body(Neighbour{p * kBeside, offset}, Alone());
}

// Neighbours in a warp. Other such groups of it may be elsewhere in the program meanwhile.
template <int width>
struct Lanes {
  static int64_t rank() { return threadIdx.x % width; }
  static int64_t first(int64_t low) { return low + rank(); }
  static int64_t last(int64_t high) { return high; }
  static constexpr int64_t step() { return width; }
  static constexpr bool kAlong = true;
  template <typename Kind = Best, int slot = 0, typename number>
  static void all_reduce(number& acc) {
    acc = over_lanes<Kind, width>(lanes_mask<width>(), acc);
  }
  static bool leads() { return rank() == 0; }
};

// Such neighbours twice: first each has what it finds kept, then they join that, and look at nothing
// else. All lanes of the warp do the same.
template <typename number, int width>
struct OwnPart : Lanes<width> {
  template <typename Kind, int slot>
  void all_reduce(number& acc) const {
    own = acc;
  }
  static bool leads() { return false; }

  number& own;
};
template <typename number, int width>
struct OfParts : Lanes<width> {
  template <typename Kind, int slot>
  void all_reduce(number& acc) const {
    acc = over_lanes<Kind, width>(lanes_mask<32>(), own);
  }

  number own;
};

// All threads of a block. Reductions take turns with two halves of the memory: whoever writes one
// again has passed the barrier of the reduction between, before which all have read it.
struct Block {
  static int64_t first(int64_t low) { return low + threadIdx.x; }
  static int64_t last(int64_t high) { return high; }
  static constexpr int64_t step() { return kThreads; }
  static constexpr bool kAlong = true;
  template <typename Kind = Best, int slot = 0, typename number>
  void all_reduce(number& acc) const {
    const number* const all = totals(over_lanes<Kind, 32>(lanes_mask<32>(), acc));
    acc = over_lanes<Kind, kWarps>(lanes_mask<32>(), all[threadIdx.x % kWarps]);
  }
  static bool leads() { return threadIdx.x == 0; }

  // What each warp has, of which all threads are told.
  template <typename number>
  const number* totals(number own) const {
    static_assert(sizeof(number) <= kEntry, "an accumulator of more than 16 bytes");
    number* const all = reinterpret_cast<number*>(exchange() + turn_ * (kWarps * kEntry));
    turn_ ^= 1;
    if (threadIdx.x % 32 == 0) all[threadIdx.x / 32] = own;
    __syncthreads();
    return all;
  }

  static constexpr int kWarps = kThreads < 32 ? 1 : kThreads / 32;

 private:
  mutable int turn_ = 0;
};

// Threads of the same place in neighbouring teams are neighbours. ``inside``: whether the team has an
// iteration of its own; else it goes along with another, as barriers are the block's: what loops read
// they have read at the first barrier of a reduction, before that one's result is written.
struct Across {
  static int64_t rank() { return threadIdx.x / kTeams; }
  static int64_t first(int64_t low) { return low + rank(); }
  static int64_t last(int64_t high) { return high; }
  static constexpr int64_t step() { return kTeam; }
  static constexpr bool kAlong = false;

  // The numbers change places, so that a team's lie side by side: one barrier before its lanes join
  // them, one before all read the total. Each also keeps apart what two calls write and read.
  template <typename Kind = Best, int slot = 0, typename number>
  static void all_reduce(number& acc) {
    static_assert(sizeof(number) <= kEntry, "an accumulator of more than 16 bytes");
    number* const all = reinterpret_cast<number*>(exchange());
    number* const totals = reinterpret_cast<number*>(exchange() + kTeam * kRow * kEntry);
    all[rank() * kRow + threadIdx.x % kTeams] = acc;
    __syncthreads();
    const int team = threadIdx.x / kTeam, place = threadIdx.x % kTeam;
    const number total = over_lanes<Kind, kTeam>(lanes_mask<32>(), all[place * kRow + team]);
    if (place == 0) totals[team] = total;
    __syncthreads();
    acc = totals[threadIdx.x % kTeams];
  }
  bool leads() const { return inside && rank() == 0; }

  // What the threads of the own team have, kRow apart; a barrier has to stand before the next call.
  template <typename number>
  static const number* totals(number own) {
    static_assert(sizeof(number) <= kEntry, "an accumulator of more than 16 bytes");
    number* const all = reinterpret_cast<number*>(exchange()) + threadIdx.x % kTeams;
    all[rank() * kRow] = own;
    __syncthreads();
    return all;
  }

  bool inside;
};

// Threads of a team of which ``count`` neighbours have an iteration each, ``ranks`` times, so that
// they read along memory. Those that are left over go along, as barriers are the team's.
struct Columns {
  int64_t first(int64_t low) const { return low + rank; }
  int64_t last(int64_t high) const { return inside ? high : 0; }
  int64_t step() const { return ranks; }
  static constexpr bool kAlong = false;

  template <typename Kind = Best, int slot = 0, typename number>
  void all_reduce(number& acc) const {
    number* const all = columns<number>() + threadIdx.x / kTeam * kTeam;
    all[threadIdx.x % kTeam] = acc;
    team_barrier();
    number total = all[column];
    for (int k = 1; k < ranks; ++k) total = Kind::join(total, all[k * count + column]);
    team_barrier();  // before the next one writes
    acc = total;
  }
  bool leads() const { return inside && rank == 0; }

  int count, ranks, column, rank;
  bool inside;

 private:
  template <typename number>
  static number* columns() {
    static_assert(sizeof(number) <= kEntry, "an accumulator of more than 16 bytes");
    __shared__ __align__(16) char memory_[kThreads * sizeof(number)];
    return reinterpret_cast<number*>(memory_);
  }
};

// body(d) for a part's share of range(low, high). Where its threads are neighbours, each takes
// numbers side by side as long as there are such for all. Rounds that all threads take part in stand
// first, their number being the same for all, so that several are under way at a time; where it is
// known, threads may keep what they read of memory that nobody writes from one loop to the next.
template <typename Part, typename Body>
inline void over(const Part& part, int64_t low, int64_t high, const Body& body) {
  int64_t d = part.first(low);
  const int64_t end = part.last(high), step = part.step();
  if constexpr (Part::kAlong) {
    const int64_t rounds = (end - low) / (step * kBeside);
    int64_t first = low + (d - low) * kBeside;
#pragma unroll LOMA_UNROLL_BESIDE
    for (int64_t k = 0; k < rounds; ++k, first += step * kBeside) {
#pragma unroll LOMA_BESIDE
      for (int offset = 0; offset < kBeside; ++offset) body(first + offset);
    }
    d += rounds * step * kBeside;
    low += rounds * step * kBeside;
  }
#if LOMA_UNROLL == 1
#pragma unroll 1
  for (; d < end; d += step) body(d);
#else
  const int64_t rounds = (end - low) / step;
#pragma unroll LOMA_UNROLL
  for (int64_t k = 0; k < rounds; ++k, d += step) body(d);
  if (d < end) body(d);
#endif
}

template <typename number, int width, typename Body>
inline void over(const OfParts<number, width>&, int64_t, int64_t, const Body&) {}

// The totals of slices behind ``before`` others. Each reduction of a statement has its own.
template <typename number>
inline number* totals_of(void* parts, int64_t before) {
  return reinterpret_cast<number*>(static_cast<char*>(parts) + before * kEntry);
}

// A block's slice of a reduction in two stages: it leaves its total for the second.
template <typename Part>
struct Slice {
  int64_t first(int64_t low) const { return part.first(low) + own * part.step(); }
  int64_t last(int64_t high) const { return part.last(high); }
  int64_t step() const { return slices * part.step(); }
  template <typename Kind = Best, int slot = 0, typename number>
  void all_reduce(number& acc) const {
    part.template all_reduce<Kind>(acc);
    if (part.leads()) totals_of<number>(parts, slot * slices * count)[place] = acc;
  }
  static constexpr bool leads() { return false; }

  const Part& part;
  int64_t slices, count;
  void* parts;
  int64_t place;  // of the total
  int64_t own;    // the number of the slice
};

template <typename Part, typename Body>
inline void over(const Slice<Part>& part, int64_t low, int64_t high, const Body& body) {
  if (part.slices == 1) return over(part.part, low, high, body);
#pragma unroll 4
  for (int64_t d = part.first(low); d < part.last(high); d += part.step()) body(d);
}

// body(d, part) for range(low, high), in which a loop is that the part's threads share. Slices take
// numbers in turns, and where there are more slices than numbers, several share the loop inside, too.
template <typename Part, typename Body>
inline void around(const Part& part, int64_t low, int64_t high, const Body& body) {
  for (int64_t d = low; d < high; ++d) body(d, part);
}
template <typename Part, typename Body>
inline void around(const Slice<Part>& part, int64_t low, int64_t high, const Body& body) {
  const int64_t outer = min<int64_t>(part.slices, max<int64_t>(high - low, 1));
  const int64_t inner = part.slices / outer;
  if (part.own >= outer * inner) return;
  const Slice<Part> inside{part.part, inner, part.count, part.parts, part.place, part.own / outer};
  for (int64_t d = low + part.own % outer; d < high; d += outer) body(d, inside);
}

// The second stage: a thread joins the slices' totals, in their order.
struct Joined {
  static constexpr int64_t first(int64_t) { return 0; }
  static constexpr int64_t last(int64_t) { return 0; }
  static constexpr int64_t step() { return 1; }
  template <typename Kind = Best, int slot = 0, typename number>
  void all_reduce(number& acc) const {
    const number* const totals = totals_of<number>(parts, slot * slices * count) + place;
    acc = totals[0];
    for (int64_t slice = 1; slice < slices; ++slice) {
      acc = Kind::join(acc, totals[slice * count]);
    }
  }
  static constexpr bool leads() { return true; }

  int64_t slices, count;
  void* parts;
  int64_t place;
};

template <typename Body>
inline void over(const Joined&, int64_t, int64_t, const Body&) {}
template <typename Body>
inline void around(const Joined&, int64_t, int64_t, const Body&) {}

}  // namespace loma
