// What an image and the fake driver know of each other: where the running thread is, and how it waits
// for others. Neither includes a header of the system here, as images have none.
#pragma once

namespace loma_shim {

struct Place {
  unsigned x, y, z;
};

// The image has one; the driver fills it in, and changes `thread` whenever another thread runs.
struct Threads {
  Place thread, block, block_size, grid_size;
  char* shared;  // dynamic
  void (*barrier)();
  void (*warp_barrier)(unsigned mask);
  void (*turn)();  // lets all others run until they wait
  // What the lane `source` gives; all lanes of `mask` call this together.
  unsigned long (*exchange)(unsigned mask, unsigned long given, unsigned source);
  void (*end_thread)();
};

// What the driver finds in an image under the name `loma_shim_image`.
struct Image {
  Threads* threads;
  unsigned block_threads;        // LOMA_THREADS
  char *shared, *shared_end;     // static shared memory
};

}  // namespace loma_shim
