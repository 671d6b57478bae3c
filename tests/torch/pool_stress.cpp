// Many threads take, hand over and give back blocks of the pool, while others release it, change its
// limit and fork. Every block is filled with its owner's mark and looked at before it goes back.
// Compiled with the pool's sources by test_memory.py, under sanitizers.
#include "heap.h"
#include "pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "pool_stress: %s\n", what);
  std::_Exit(1);
}

struct Held {
  unsigned char* data;
  size_t bytes;
  unsigned char mark;
};

// The first and last bytes and one of each page between.
void paint(const Held& held) {
  for (size_t k = 0; k < held.bytes; k += 4096) held.data[k] = held.mark;
  held.data[held.bytes - 1] = held.mark;
}

void look(const Held& held) {
  for (size_t k = 0; k < held.bytes; k += 4096) require(held.data[k] == held.mark, "overlap");
  require(held.data[held.bytes - 1] == held.mark, "overlap at the end");
}

Held take(size_t bytes, unsigned char mark) {
  void* data = loma_pool_take(bytes);
  require(data != nullptr && reinterpret_cast<uintptr_t>(data) % 64 == 0, "take");
  require(loma_pool_owns(data), "owns");
  const Held held{static_cast<unsigned char*>(data), bytes, mark};
  paint(held);
  return held;
}

void give(const Held& held) {
  look(held);
  require(loma_pool_give(held.data), "give");
}

std::mutex shelf_mutex;
std::vector<Held> shelf;  // blocks that another thread gives back

size_t random_size(std::mt19937& random) {
  const size_t scale = size_t{1} << (random() % 23);  // up to 8 MB
  return 1 + random() % (2 * scale);
}

void workspaces(std::mt19937& random, unsigned char mark, int depth) {
  size_t capacity = 0;
  const size_t bytes = random_size(random);
  void* data = loma_workspace_take(bytes, &capacity);
  require(data != nullptr && capacity >= bytes, "workspace");
  require(reinterpret_cast<uintptr_t>(data) % 64 == 0, "workspace's alignment");
  const Held held{static_cast<unsigned char*>(data), bytes, mark};
  paint(held);
  if (depth < 6) workspaces(random, static_cast<unsigned char>(mark + 1), depth + 1);
  look(held);
  loma_workspace_give(data, capacity);
}

void work(int seed, int steps) {
  std::mt19937 random(seed);
  std::vector<Held> own;
  const auto mark = static_cast<unsigned char>(seed * 16);
  for (int step = 0; step < steps; ++step) {
    switch (random() % 6) {
      case 0:
      case 1:
        own.push_back(take(random_size(random), mark));
        break;
      case 2:
        if (!own.empty()) {
          give(own.back());
          own.pop_back();
        }
        break;
      case 3:
        workspaces(random, mark, 0);
        break;
      case 4: {
        const std::lock_guard<std::mutex> lock(shelf_mutex);
        if (own.size() > 8) {
          shelf.push_back(own.back());
          own.pop_back();
        } else if (!shelf.empty()) {
          own.push_back(shelf.back());
          shelf.pop_back();
        }
        break;
      }
      case 5:
        if (step % 64 == 5) {
          loma_pool_release();
        } else if (step % 64 == 37) {
          loma_pool_set_limit(random() % 2 ? UINT64_MAX : random() % (8u << 20));
        }
        break;
    }
  }
  for (const Held& held : own) give(held);
}

// The child uses the pool at once, frees what was its parent's, and starts threads of its own.
void fork_once(int seed) {
  const Held before = take(100000, 7);
  shelf_mutex.lock();  // or the child could wait for a thread that it does not have
  const pid_t child = fork();
  shelf_mutex.unlock();
  if (child == 0) {
    alarm(60);  // a deadlock ends
    give(before);
    std::mt19937 random(seed);
    workspaces(random, 3, 0);
    std::thread(work, seed, 200).join();
    loma_pool_release();
    std::_Exit(0);
  }
  int status = 0;
  require(waitpid(child, &status, 0) == child && status == 0, "a forked child failed");
  give(before);
}

LomaPoolStats stats() {
  LomaPoolStats found;
  loma_pool_stats(&found);
  return found;
}

void threads(int steps, int forks) {
  std::vector<std::thread> running;
  for (int seed = 1; seed <= 4; ++seed) running.emplace_back(work, seed, steps);
  for (int k = 0; k < forks; ++k) fork_once(100 + k);
  for (auto& thread : running) thread.join();
  for (const Held& held : shelf) give(held);
  shelf.clear();
  loma_pool_release();
  const LomaPoolStats end = stats();
  require(end.in_use == 0 && end.blocks == 0, "blocks are lost");
  require(end.held == 0, "pages are kept after a release");
}

// Neighbours merge in any order of freeing, and a limit is kept to.
void one_thread() {
  loma_pool_set_limit(UINT64_MAX);
  std::vector<Held> blocks;
  for (int k = 0; k < 4; ++k) blocks.push_back(take(2 << 20, static_cast<unsigned char>(k)));
  unsigned char* lowest = blocks[0].data;
  for (const int k : {2, 0, 3, 1}) give(blocks[k]);
  const uint64_t obtained = stats().obtained;
  const Held whole = take(8 << 20, 9);
  require(whole.data == lowest, "free neighbours do not merge");
  require(stats().obtained == obtained, "memory that is kept is not used again");
  give(whole);
  require(stats().held >= 8 << 20, "nothing is kept");
  loma_pool_set_limit(4 << 20);
  require(stats().held <= 4 << 20, "more than the limit is kept");
  loma_pool_set_limit(0);
  give(take(5 << 20, 1));
  std::mt19937 random(1);
  workspaces(random, 1, 0);
  require(stats().held == 0, "with a limit of 0 something is kept");
  loma_pool_set_limit(UINT64_MAX);

  require(loma_pool_take(0) == nullptr, "zero bytes");
  require(loma_pool_take(SIZE_MAX) == nullptr, "all bytes");
  require(loma_pool_take(SIZE_MAX - 4096) == nullptr, "nearly all bytes");
  require(loma_pool_take(size_t{1} << 60) == nullptr, "too many bytes");
  size_t capacity = 0;
  require(loma_workspace_take(SIZE_MAX, &capacity) == nullptr, "a workspace of all bytes");
  loma_workspace_give(nullptr, 0);
  int local = 0;
  require(!loma_pool_give(&local) && !loma_pool_owns(&local), "a stranger's pointer");
  const Held held = take(100000, 1);
  require(!loma_pool_give(held.data + 4096), "a pointer into a block");
  give(held);
  require(!loma_pool_give(held.data), "a block twice");
}

}  // namespace

int main(int count, char** arguments) {
  require(count == 3, "usage: pool_stress STEPS FORKS");
  one_thread();
  threads(std::atoi(arguments[1]), std::atoi(arguments[2]));
  std::puts("ok");
}
