// Loops inside of an iteration whose values a few lanes take each, one value at a time: body(r, row)
// for r in range(count), every second loop from the end, where the one before has read last: that is
// still in the second-level cache. Statements between which nothing but such a value passes run one after the
// other without a barrier, numbers of theirs are in registers, and what two of them read is read
// once. Sums over r are carried in registers, and joined behind the loop.
//   LOMA_LANES  lanes that have a value, a power of 2: they share the sums inside along memory
#pragma once

#include <cstdint>

#include "team.h"

namespace loma {

constexpr int kLanes = LOMA_LANES;
static_assert(kLanes >= 1 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0, "LOMA_LANES");

// Loops over what a lane has in registers are written out, whatever other numbers are known.
#define LOMA_UNROLL_ROW _Pragma("unroll 32")

// A number of two axes, of which the last one's values are shared by lanes.
struct Place {
  int64_t row, column, length;

  operator int64_t() const { return row * length + column; }
};
inline int64_t quotient(const Place& p, int64_t) { return p.row; }

// Columns that each lane has: those that lie side by side, then others.
constexpr int64_t side_by_side_of(int64_t columns) { return columns / (kLanes * kBeside); }
constexpr int64_t others_of(int64_t columns) {
  return (columns - side_by_side_of(columns) * kLanes * kBeside + kLanes - 1) / kLanes;
}
constexpr int64_t sums_of(int64_t rows, int64_t columns) {
  return rows * (side_by_side_of(columns) * kBeside + others_of(columns));
}

// Where a lane has the number at a place of its own.
inline int slot(int64_t place, int64_t columns) {
  const uint32_t p = static_cast<uint32_t>(place), length = static_cast<uint32_t>(columns);
  const uint32_t row = p / length, column = p % length;
  const uint32_t along = static_cast<uint32_t>(side_by_side_of(columns)), both = kLanes * kBeside;
  const uint32_t each = along * kBeside + static_cast<uint32_t>(others_of(columns));
  if (length % both == 0 || column < along * both) {
    return static_cast<int>(row * each + column / both * kBeside + column % kBeside);
  }
  return static_cast<int>(row * each + along * kBeside + (column - along * both) / kLanes);
}

constexpr int64_t at_least_one(int64_t count) { return count > 0 ? count : 1; }

// body(place, slot, inside) for the places of a lane, slots in order, as often in all lanes: some may
// have less.
template <typename Body>
inline void all_places(int64_t rows, int64_t columns, const Body& body) {
  const int64_t rank = threadIdx.x % kLanes;
  const int64_t along = side_by_side_of(columns), others = others_of(columns);
  const int64_t each = along * kBeside + others, rest = along * kLanes * kBeside;
  LOMA_UNROLL_ROW
  for (int64_t row = 0; row < rows; ++row) {
    LOMA_UNROLL_ROW
    for (int64_t k = 0; k < along; ++k) {
      LOMA_UNROLL_ROW
      for (int offset = 0; offset < kBeside; ++offset) {
        const int64_t column = within((k * kLanes + rank) * kBeside + offset, columns);
        body(Place{row, column, columns}, row * each + k * kBeside + offset, true);
      }
    }
    LOMA_UNROLL_ROW
    for (int64_t k = 0; k < others; ++k) {
      const int64_t column = rest + k * kLanes + rank;
      const bool inside = (k + 1) * kLanes <= columns - rest || column < columns;
      body(Place{row, column, columns}, row * each + along * kBeside + k, inside);
    }
  }
}

// The same for those that it has.
template <typename Body>
inline void places(int64_t rows, int64_t columns, const Body& body) {
  all_places(rows, columns, [&](const Place& place, int64_t slot, bool inside) {
    if (inside) body(place, slot);
  });
}

// All lanes do the same; one of them writes what lies in memory.
struct AllLanes : Alone {
  bool leads() const { return lead; }

  bool lead;
};
template <typename Body>
inline void over(const AllLanes&, int64_t low, int64_t high, const Body& body) {
  LOMA_UNROLL_ROW
  for (int64_t d = low; d < high; ++d) body(d);
}

// They share sums. First each lane finds its part of all of them, then these are joined and used, so
// that all which sums read is under way at a time.
template <typename number>
struct PartOfLane : Lanes<kLanes> {
  template <typename Kind, int slot>
  void all_reduce(number& acc) const {
    own = acc;
  }
  static bool leads() { return false; }
  static constexpr bool is_whole() { return false; }

  number& own;
};
template <typename number>
struct PartsOfLanes : Lanes<kLanes> {
  template <typename Kind, int slot>
  void all_reduce(number& acc) const {
    acc = over_lanes<Kind, kLanes>(lanes_mask<32>(), own);
  }
  bool leads() const { return lead; }
  static constexpr bool is_whole() { return true; }

  number own;
  bool lead;
};
template <typename number, typename Body>
inline void over(const PartOfLane<number>&, int64_t, int64_t high, const Body& body) {
  places(1, high, [&](const Place& place, int64_t) { body(int64_t(place)); });
}
template <typename number, typename Body>
inline void over(const PartsOfLanes<number>&, int64_t, int64_t, const Body&) {}

// The lanes that have a value. Where there are more lanes than values some go along, and write nothing.
struct Row {
  // body(p, part) for p in range(count) in all lanes; ``meets``: others of them read what it wrote.
  template <typename Body>
  void alike(int64_t count, bool meets, const Body& body) const {
    const AllLanes part{{}, leads()};
    LOMA_UNROLL_ROW
    for (int64_t p = 0; p < count; ++p) body(p, part);
    if (meets) __syncwarp();
  }

  // The same for sums that they share, of elements from 0 on.
  template <typename number, typename Body>
  void shared(int64_t count, bool meets, const Body& body) const {
    number own[32];
    LOMA_UNROLL_ROW
    for (int64_t p = 0; p < count; ++p) body(p, PartOfLane<number>{{}, own[p]});
    LOMA_UNROLL_ROW
    for (int64_t p = 0; p < count; ++p) body(p, PartsOfLanes<number>{{}, own[p], leads()});
    if (meets) __syncwarp();
  }

  // body(p, part) for p in range(rows * columns), each by the lane that has it.
  template <typename Body>
  void apart(int64_t rows, int64_t columns, const Body& body) const {
    places(rows, columns, [&](const Place& place, int64_t) { body(place, Alone()); });
  }

  bool leads() const { return inside && threadIdx.x % kLanes == 0; }

  bool inside;
};

// ``back``: whether this loop goes from the end; so the next one does not.
template <typename Body>
inline void inner(int64_t count, bool& back, const Body& body) {
  static_assert(kTeam >= 32 && kTeam <= 512, "a team of warps, as many as parts of sums");
  constexpr int groups = kTeam / kLanes;
  const int64_t rounds = (count + groups - 1) / groups;
#pragma unroll 1
  for (int64_t k = 0; k < rounds; ++k) {
    const int64_t r = (back ? rounds - 1 - k : k) * groups + threadIdx.x % kTeam / kLanes;
    body(within(r < count ? r : count - 1, count), Row{r < count});
  }
  back = !back;
}

// Behind the loop: the sums of all lanes, in an order that follows from sizes. ``parts`` has them for
// each warp, then begins with the totals.
template <typename number>
inline void join(const number* own, int64_t rows, int64_t columns, number* parts) {
  const int64_t count = rows * columns;
  const int warp = threadIdx.x % kTeam / 32;
  all_places(rows, columns, [&](const Place& place, int64_t slot, bool inside) {
    number sum = own[slot];
#pragma unroll
    for (int width = kLanes; width < 32; width *= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, width);
    }
    if (inside && threadIdx.x % 32 < kLanes) parts[warp * count + place] = sum;
  });
  team_barrier();
  for (int64_t p = threadIdx.x % kTeam; p < count; p += kTeam) {
    number sum = parts[p];
#pragma unroll
    for (int k = 1; k < kTeam / 32; ++k) sum += parts[k * count + p];
    parts[p] = sum;
  }
  team_barrier();
}

}  // namespace loma
