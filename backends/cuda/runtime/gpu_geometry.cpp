#include "gpu_geometry.h"

#include <algorithm>

namespace loma::gpu {
namespace {

constexpr int64_t kFull = 1 << 17;  // threads that fill a GPU
constexpr int64_t kBusy = 1 << 16;  // threads that keep one busy, of which each has several sums
constexpr int64_t kTiled = 5 << 13;  // or a whole tile
constexpr int kTiles = 128;         // of a block whose threads have tiles of sums
constexpr int kMostOfTile = 20;     // sums, but where a thread has all of both axes
// Registers of a thread with a tile of long sums, and of one with pairs of sums: where nobody says how
// many there are, the compiler takes few, and reads for one step after the other.
constexpr int kOfTiles = 128, kOfPairs = 64;
constexpr int64_t kFew = 1 << 16;   // below that many a reduction's steps are shared by blocks, too
constexpr int kBlock = 256, kWarp = 32;
constexpr int kMostTeam = 512, kMostThreads = 1024;
constexpr int64_t kShortSum = 128;    // steps of sums of which a thread has several, at most
constexpr int64_t kLong = 1024;       // steps of an iteration that are worth a block
constexpr int kSideBySide = 32;       // iterations whose reads are one
constexpr int64_t kLeastSteps = 8;    // of a thread that shares an iteration
constexpr int64_t kLeastSlice = 1024, kMostSlices = 256;
// Of running reductions: rows of which few share blocks, numbers of a slice, slices of all rows.
constexpr int64_t kLongRow = 1 << 15, kLeastPart = 1 << 13, kSlices = 512;
constexpr int64_t kMostBlocks = 1 << 14;      // more iterations are taken in turns
constexpr int64_t kMostFused = 1 << 16;
constexpr int64_t kMostWorkspaces = 1024;
constexpr int64_t kPlain = kPlainShared - kOwnShared;
constexpr int kHalf = 65536 / (2 * kMostThreads);  // registers of a thread, if two such blocks have all
constexpr int kLeastBlock = 64;               // threads of a block whose teams are small
constexpr int64_t kLeastLength = 16, kMostLength = 128;  // of rows of a sweep's operands
// Numbers that teams which carry sums go through at least, and at a time; rows of each; their sums.
constexpr int64_t kCarried = 1 << 22, kAtOnce = 1 << 20, kRowsEach = 8, kMostSums = 64 << 10;
// Of inner loops: threads of a block, what they have at least to do, numbers that a thread reads at
// once, and how many it has: of a statement, of a value's own, and in all.
constexpr int kMostLanes = 512, kAtOnceBeside = 4;
constexpr int64_t kLeastValues = 2048, kMostFew = 32, kMostOwn = 64, kMostInRegisters = 112;
constexpr int64_t kStandIn = 1 << 12;         // of numbers, where a CPU stands in
constexpr int64_t kSpread = 256;              // fewer blocks leave processors idle

int64_t blocks_for(int64_t count, int64_t teams, int64_t most) {
  return std::clamp<int64_t>((count + teams - 1) / teams, 1, most);
}

// The largest power of 2 that is not larger.
int64_t power_below(int64_t number) {
  int64_t power = 1;
  while (power <= number / 2) power *= 2;
  return power;
}

// Threads that read along memory together: as many as fill the GPU. Of a few steps a thread reads all
// where that is so already, for each finds its iteration's place by divisions.
int along(int64_t count, int64_t inner) {
  if (inner < kWarp && count >= kFull) return 1;
  if (inner < kWarp) return static_cast<int>(std::max<int64_t>(power_below(inner) / 2, 1));
  int64_t team = kWarp;
  while (team < kMostTeam && 2 * team <= inner / 4 && count * team < kFull) team *= 2;
  return static_cast<int>(team);
}

// Threads of an iteration that lie apart, so that those side by side read along memory.
int ranks(int64_t count, int64_t inner) {
  int64_t team = 1;
  while (team < kMostThreads / kSideBySide && 2 * team * kLeastSteps <= inner &&
         count * team < kFull) {
    team *= 2;
  }
  return static_cast<int>(team);
}

// How many small teams a block has: fewer where there would be few blocks.
int64_t teams_beside(int64_t count, int64_t team) {
  int64_t teams = kBlock / team;
  while (teams > 1 && teams * team > kLeastBlock && count / teams < kSpread) teams /= 2;
  return teams;
}

// A power of 2 that a tuner wants to be another one.
int64_t turned(int64_t number, int twice, int64_t least, int64_t most) {
  if (twice == 0) return number;
  const int64_t wanted = twice > 0 ? number << twice : number >> -twice;
  return std::clamp(wanted, std::min(least, most), most);
}

int64_t at_most(int64_t blocks, int most) { return most > 0 ? std::min<int64_t>(blocks, most) : blocks; }

// How many sums a thread has, of an axis of that extent, where `least` threads are to be left. `apart`:
// what differs between neighbouring threads lies in other lines of memory, so each is for many sums.
int sums_beside(int64_t count, int64_t extent, int64_t least, bool apart = false) {
  for (const int number : {16, 8}) {
    if (apart && extent % number == 0 && count >= number * 4 * least) return number;
  }
  for (const int number : {4, 5, 3, 2}) {
    if (extent % number == 0 && count >= number * least) return number;
  }
  return 1;
}

// The tile of sums that a thread has, of two axes: of as many as it can be, then with a short border.
void choose_tile(Geometry& g, int64_t count, int64_t first, int64_t second) {
  for (const int rows : {1, 2, 3, 4, 5}) {
    for (const int columns : {1, 2, 3, 4, 5}) {
      const int sums = rows * columns, before = g.rows * g.columns;
      const bool small = sums <= kMostOfTile || sums == first * second;
      const bool fits = first % rows == 0 && second % columns == 0 && count >= sums * kTiled && small;
      const bool more = sums > before || (sums == before && rows + columns < g.rows + g.columns);
      if (fits && more) g.rows = rows, g.columns = columns;
    }
  }
}

// Private memory of the teams of a block: shared memory where it fits.
Geometry with_memory(Geometry g, int64_t teams, int64_t bytes, int64_t most_shared, int64_t far) {
  g.shared_bytes = teams * bytes;
  g.shared = g.shared_bytes <= (teams == 1 ? most_shared - kOwnShared : kPlain);
  if (g.shared && far == 0) return g;
  g.blocks = std::min(g.blocks, kMostWorkspaces);
  g.workspace_bytes = g.blocks * teams * (g.shared ? far : far + bytes);
  if (g.shared) {
    g.shared = 2;
  } else {
    g.shared_bytes = 0;
  }
  return g;
}

// Lanes that have a value of an inner loop: each reads 16 bytes of it at once, of 32-bit numbers.
int lanes_for(int64_t columns) {
  const int64_t lanes = power_below(std::max<int64_t>(columns / kAtOnceBeside, 1));
  return static_cast<int>(std::min<int64_t>(lanes, kWarp));
}

}  // namespace

Geometry statement_geometry(int64_t count, int64_t inner, bool across, bool splits, int beside,
                            int64_t several, int64_t around, int64_t second, bool pairs,
                            const Shape& shape) {
  Geometry g;
  g.threads = kBlock;
  if (inner > 1) {
    // A thread has all steps where it may have several sums, which share what they read.
    const bool alone = several > 0 && inner <= kShortSum && count >= 4 * kFull;
    const int64_t team = alone ? 1 : across ? ranks(count, inner) : along(count, inner);
    const int64_t most = across ? kMostThreads / kSideBySide : kMostTeam;
    g.team = static_cast<int>(turned(team, shape.team, 1, std::min(most, power_below(inner))));
    g.across = across && g.team > 1;
    if (g.across) {
      g.threads = std::max(kBlock, g.team * kSideBySide);
    } else if (g.team > kWarp) {
      g.threads = g.team;
    } else if (g.team > 1) {
      g.threads = g.team * static_cast<int>(teams_beside(count, g.team));
    }
  }
  if (g.team <= kWarp) {
    const int64_t least = g.across ? g.team * kSideBySide : kWarp;
    g.threads = static_cast<int>(turned(g.threads, shape.threads, least, kMostThreads));
  }
  if (inner <= 1 && (shape.beside == 0 ? count >= beside * kFull : shape.beside > 1)) {
    g.beside = beside;
  }
  if (inner > 1 && g.team == 1 && several > 0) {
    const bool fits = shape.beside > 0 && shape.beside <= 5 && several % shape.beside == 0;
    if (fits || pairs || second == 1 || count < 4 * kFull) {
      g.rows = fits ? shape.beside : sums_beside(count, several, kFull, second == 1 && !across && !pairs);
      g.columns = pairs ? 1 : sums_beside(count / g.rows, second, kBusy);
    } else {
      choose_tile(g, count, several, second);
    }
    if (pairs && second % 2 == 0 && count / g.rows >= 2 * kFull) {
      g.columns = 2;
      g.registers = kOfPairs;
    } else if (g.columns > 1) {
      g.threads = std::min(g.threads, kTiles);
      if (inner >= kLeastSteps) g.registers = kOfTiles;
    }
  }
  g.blocks = blocks_for(count, g.threads / g.team * g.beside * g.rows * g.columns, kMostBlocks);
  if (splits) {
    const int64_t threads = count * g.team;
    const int64_t steps = inner * std::max<int64_t>(around, 1);
    if (threads < kFew) {
      const int64_t wanted = (kFull + threads - 1) / std::max<int64_t>(threads, 1);
      g.slices = std::max<int64_t>(1, std::min({wanted, steps / kLeastSlice, kMostSlices}));
    }
    const int64_t most = std::clamp<int64_t>(steps / (g.team * kLeastSteps), 1, kMostSlices);
    g.slices = turned(g.slices, shape.slices, 1, power_below(most));
    if (around > 1 && g.slices > around) g.slices -= g.slices % around;
  }
  g.blocks = at_most(g.blocks, shape.blocks);
  return g;
}

Geometry running_geometry(int64_t rows, int64_t length, bool splits, bool across,
                          const Shape& shape) {
  Geometry g;
  if (across) {
    constexpr int64_t most = kMostThreads / kSideBySide;
    g.team = static_cast<int>(turned(ranks(rows, length), shape.team, 1, std::min(most, power_below(length))));
    g.across = g.team > 1;
    g.threads = g.across ? std::max(kBlock, g.team * kSideBySide) : kBlock;
    const int64_t threads = rows * g.team;
    if (splits && g.across && threads < kFew) {
      g.slices = std::clamp<int64_t>(std::min(kFull / threads, length / kLeastSlice), 1, kMostSlices);
      g.slices = turned(g.slices, shape.slices, 1, kMostSlices);
    }
    g.blocks = at_most(blocks_for(rows, g.threads / g.team, kMostBlocks), shape.blocks);
    return g;
  }
  int64_t team = 1, threads = kBlock;
  while (team < kWarp && team * kAtOnceBeside < length) team *= 2;
  while (team >= kWarp && team < kMostThreads && 2 * team * kLeastSteps <= length &&
         rows * team < kFull) {
    team *= 2;
  }
  // Of long rows that are few each has several blocks, which read it twice.
  if (splits && rows < kLeastBlock && length >= kLongRow) {
    team = kBlock;
    g.slices = std::clamp<int64_t>(kSlices / std::max<int64_t>(rows, 1), 1, length / kLeastPart);
    g.slices = turned(g.slices, shape.slices, 1, kSlices);
  }
  team = turned(team, shape.team, 1, kMostThreads);
  if (g.slices > 1) team = std::max<int64_t>(team, 2 * kWarp);
  if (team > kWarp) {
    threads = team;
  } else {
    threads = turned(team * teams_beside(rows, team), shape.threads, kWarp, kMostThreads);
  }
  g.team = static_cast<int>(team);
  g.threads = static_cast<int>(threads);
  g.blocks = at_most(blocks_for(rows, threads / team, kMostBlocks), shape.blocks);
  return g;
}

Geometry joining_geometry(int64_t count) {
  Geometry g;
  g.threads = kBlock;
  g.blocks = blocks_for(count, kBlock, kMostBlocks);
  return g;
}

Geometry fused_geometry(int64_t count, int64_t inner, int64_t bytes, int64_t most_shared,
                        int64_t far, const Shape& shape, int64_t carriers, int64_t least) {
  Geometry g;
  const int64_t whole = power_below(std::max<int64_t>(inner, 1));
  // Of a few steps a thread has all where iterations fill the GPU.
  int64_t team = inner < kWarp && count >= kFull ? 1 : std::min<int64_t>(whole, kWarp);
  // A thread has so few steps of a long row that what one statement has read of it is still at hand,
  // in registers or in the first-level cache, when the next one does.
  const auto larger = [&] {
    const bool worth = inner >= kLong && 2 * team * least <= inner;
    return 2 * team <= kMostThreads && 2 * team <= whole && (worth || count * team < kFull);
  };
  while (team > 1 && larger()) team *= 2;
  // Where few teams' memory fits beside each other, each has more threads.
  while (team < std::min<int64_t>(whole, kBlock) && bytes * (kBlock / team) > kPlain) team *= 2;
  team = turned(team, shape.team, carriers > 0 ? kWarp : 1, std::min<int64_t>(whole, kMostThreads));
  if (carriers > 0) team = std::max<int64_t>(team, kWarp);
  int64_t teams = team > kWarp || carriers > 0 ? 1 : teams_beside(count, team);
  if (team <= kWarp && carriers == 0) teams = turned(teams * team, shape.threads, kWarp, kMostThreads) / team;
  const int64_t fewest = shape.threads < 0 ? kWarp : kLeastBlock;
  while (teams > 1 && teams * team > fewest && teams * bytes > kPlain) teams /= 2;
  g.team = static_cast<int>(team);
  g.threads = static_cast<int>(team * teams);
  g.blocks = at_most(blocks_for(count, teams, kMostFused), shape.blocks);
  if (carriers > 0) g.blocks = carriers;
  return with_memory(g, teams, bytes, most_shared, far);
}

Geometry lanes_geometry(int64_t count, int64_t values, int64_t columns, int64_t bytes,
                        int64_t most_shared, int64_t far) {
  Geometry g;
  g.lanes = lanes_for(columns);
  const int64_t threads = power_below(std::max<int64_t>(values * g.lanes, 1));
  g.team = g.threads = static_cast<int>(std::clamp<int64_t>(threads, kWarp, kMostLanes));
  g.blocks = blocks_for(count, 1, kMostFused);
  return with_memory(g, 1, bytes, most_shared, far);
}

bool lanes_fit(int64_t values, int64_t columns, std::initializer_list<int64_t> few,
               std::initializer_list<int64_t> apart, bool on_gpu) {
  const int64_t lanes = lanes_for(columns), least = on_gpu ? kLeastValues : kWarp;
  if (values <= 0 || columns <= 0 || values * lanes < least) return false;
  int64_t registers = 0;
  for (const int64_t own : few) {
    if (own <= 0 || own > kMostFew) return false;
    registers += own;
  }
  if (registers > kMostOwn) return false;
  for (auto at = apart.begin(); at != apart.end(); at += 2) {
    if (at[0] <= 0 || at[0] > kMostFew || at[1] > kMostFew * lanes) return false;
    const int64_t whole = at[1] / (lanes * kAtOnceBeside), rest = at[1] - whole * lanes * kAtOnceBeside;
    registers += at[0] * (whole * kAtOnceBeside + (rest + lanes - 1) / lanes);
  }
  return registers <= kMostInRegisters;
}

// Of the largest blocks two are to find room on a processor, or it waits at each barrier: layer norm of
// rows of 8192 takes 1.6 times as long with one (H200).
int registers_for(const Geometry& geometry, size_t real_bytes, int64_t most_shared) {
  const bool fits = 2 * (geometry.shared_bytes + kOwnShared) <= most_shared;
  const bool two = geometry.blocks >= kMostThreads && fits && real_bytes == sizeof(float);
  return geometry.threads == kMostThreads && two ? kHalf : 0;
}

int64_t carriers(int64_t rows, int64_t width, int64_t bytes, bool on_gpu) {
  const int64_t least = on_gpu ? 1 : kStandIn;
  if (width < (on_gpu ? kBlock : kWarp) || bytes > kMostSums || rows < kCarried / least / width) return 0;
  return std::min({std::max<int64_t>(kAtOnce / least / width, 1), rows / kRowsEach, kMostWorkspaces});
}

namespace {

// Behind each row of 16-bit numbers in shared memory is room for so many more.
constexpr int kRoom = 8, kBytes = 2;

int sixteens(int64_t length) { return static_cast<int>((length + 15) / 16 * 16); }

}  // namespace

bool sweeps_fit(int64_t rows, int64_t columns, int64_t depth, int64_t width) {
  constexpr int64_t kMost = int64_t(1) << 30;  // places are 32 bits in a block
  const auto fits = [](int64_t length) {
    return length % 8 == 0 && length >= kLeastLength && length <= kMostLength;
  };
  return rows < kMost && columns < kMost && columns > 0 && fits(depth) && fits(width);
}

namespace {

// Blocks of groups (warpgroups.h of the device): tiles of 64 rows, of which four are there at a time,
// and what says so.
constexpr int kGroups = 2, kGroupRows = 64, kGroupStages = 4, kSignals = 128;
constexpr int kMostRegisters = 65536;

Geometry of_groups(int64_t outer, int64_t rows, int64_t depth, int64_t width) {
  Geometry g;
  g.depth = sixteens(depth);
  g.width = sixteens(width);
  g.groups = kGroups;
  g.threads = 4 * kWarp * kGroups;
  constexpr int block = kGroupRows * kGroups;
  g.blocks = outer * ((rows + block - 1) / block);
  g.shared_bytes = kBytes * kGroupStages * kGroupRows * (g.depth + g.width);
  return g;
}

}  // namespace

Geometry sweep_geometry(int64_t outer, int64_t rows, int64_t depth, int64_t width, bool groups) {
  Geometry g;
  g.depth = sixteens(depth);
  g.width = sixteens(width);
  const bool is_small = g.depth + g.width <= 128;  // as sweep.h has it
  if (groups) {
    g = of_groups(outer, rows, depth, width);
    g.shared_bytes += kBytes * g.groups * kGroupRows * g.depth;
    g.registers = is_small ? 128 : 0;  // two blocks of a processor, if sums are few
    return g;
  }
  g.threads = is_small ? 128 : 256;
  const int block = (is_small ? 32 : 16) * g.threads / kWarp;
  constexpr int kColumns = 64;
  g.blocks = outer * ((rows + block - 1) / block);
  g.shared_bytes = kBytes * ((block + 2 * kColumns) * (g.depth + kRoom) +
                             2 * kColumns * (g.width + kRoom));
  return g;
}

Geometry pairs_geometry(int64_t outer, int64_t rows, int64_t depth, int64_t width, int64_t kept,
                        bool groups) {
  constexpr int64_t kNumber = sizeof(float);
  Geometry g;
  if (groups) {
    g = of_groups(outer, rows, depth, width);
    g.shared_bytes += kBytes * g.groups * kGroupRows * (g.depth + g.width);
    g.shared_bytes += kNumber * kGroupStages * kGroupRows * kept + kSignals;
    g.threads += 4 * kWarp;  // that copy
    g.registers = kMostRegisters / g.threads / 8 * 8;  // before some leave theirs to others
    return g;
  }
  g.depth = sixteens(depth);
  g.width = sixteens(width);
  g.threads = 128;
  constexpr int kBlockRows = 64, kTile = 32;
  g.blocks = outer * ((rows + kBlockRows - 1) / kBlockRows);
  g.shared_bytes = kBytes * (kBlockRows + 2 * kTile) * (g.depth + kRoom + g.width + kRoom) +
                   kNumber * 2 * kTile * kept;
  return g;
}

}  // namespace loma::gpu
