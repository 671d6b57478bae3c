// Cache references and misses of the whole process, from the kernel's counters: the same counting
// as loma.tools.measure.CacheCounters.
#pragma once

#include <cstdint>
#include <vector>

#ifdef __linux__
#include <dirent.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

class CacheCounters {
 public:
  ~CacheCounters() { close_all(); }

  // Counts all threads that there are, and those that they start later.
  void start() {
    DIR* tasks = opendir("/proc/self/task");
    if (tasks == nullptr) return;
    for (dirent* entry; (entry = readdir(tasks)) != nullptr;) {
      const int thread = std::atoi(entry->d_name);
      if (thread == 0) continue;
      if (!open_counter(PERF_COUNT_HW_CACHE_REFERENCES, thread) ||
          !open_counter(PERF_COUNT_HW_CACHE_MISSES, thread)) {
        close_all();
        break;
      }
    }
    closedir(tasks);
    for (const Counter& counter : counters_) ioctl(counter.file, PERF_EVENT_IOC_ENABLE, 0);
  }

  // Whether the machine has such counters and they ran.
  bool stop() {
    bool ran = false;
    for (const Counter& counter : counters_) ioctl(counter.file, PERF_EVENT_IOC_DISABLE, 0);
    for (const Counter& counter : counters_) {
      uint64_t read_values[3] = {0, 0, 0};  // value, time enabled, time running
      if (read(counter.file, read_values, sizeof read_values) != sizeof read_values) continue;
      if (read_values[2] == 0) continue;
      ran = true;
      const double scaled =
          static_cast<double>(read_values[0]) * read_values[1] / read_values[2];
      (counter.event == PERF_COUNT_HW_CACHE_MISSES ? misses_ : references_) += scaled;
    }
    close_all();
    return ran;
  }

  double references() const { return references_; }
  double misses() const { return misses_; }

 private:
  struct Counter {
    uint64_t event;
    int file;
  };

  bool open_counter(uint64_t event, int thread) {
    perf_event_attr attribute{};
    attribute.type = PERF_TYPE_HARDWARE;
    attribute.size = sizeof attribute;
    attribute.config = event;
    attribute.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING;
    attribute.disabled = 1;
    attribute.inherit = 1;
    attribute.exclude_kernel = 1;
    attribute.exclude_hv = 1;
    const long file =
        syscall(SYS_perf_event_open, &attribute, thread, -1, -1, PERF_FLAG_FD_CLOEXEC);
    if (file < 0) return false;
    counters_.push_back({event, static_cast<int>(file)});
    return true;
  }

  void close_all() {
    for (const Counter& counter : counters_) close(counter.file);
    counters_.clear();
  }

  std::vector<Counter> counters_;
  double references_ = 0.0, misses_ = 0.0;
};

#else

class CacheCounters {
 public:
  void start() {}
  bool stop() { return false; }
  double references() const { return 0.0; }
  double misses() const { return 0.0; }
};

#endif
