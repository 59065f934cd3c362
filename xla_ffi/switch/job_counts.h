// A switch counts of a job how much it adds up, and for which worker the others wait. No clock, no threads.
#ifndef XLA_FFI_SWITCH_JOB_COUNTS_H_
#define XLA_FFI_SWITCH_JOB_COUNTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace passing {

struct WorkerCounts {
  uint64_t contributions = 0;  // that were added
  uint64_t resends = 0;        // that had been added before
  uint64_t last = 0;           // that completed a chunk to which others had contributed
  uint64_t waited_us = 0;      // how long some chunk lacked nothing but this worker's contribution
  uint64_t silent_us = 0;      // since its latest contribution, or since the job was added
};

// A chunk that isn't complete.
struct WaitingChunk {
  uint32_t slot = 0;
  uint8_t version = 0;
  uint32_t sequence = 0;
  uint64_t bitmap = 0;     // the workers that have contributed; all of them: the parent's result is missing
  uint64_t waited_us = 0;  // since the latest contribution
};

struct JobCounts {
  uint64_t chunks = 0;                                // to which all workers have contributed
  uint64_t lanes = 0;                                 // of these chunks
  uint32_t waiting = 0;                               // how many chunks aren't complete
  std::optional<WaitingChunk> oldest = std::nullopt;  // the one of them that has waited longest
  std::vector<WorkerCounts> workers;
};

// Counts what a job's workers do. Times are those of packets, in microseconds since any moment.
class JobCounter {
 public:
  JobCounter(size_t worker_count, uint64_t now_us) : workers_(worker_count, {.latest_us = now_us}) {}

  void OnAdded(uint16_t worker, uint64_t now_us) {
    ++workers_[worker].counts.contributions;
    workers_[worker].latest_us = now_us;
  }
  void OnAgain(uint16_t worker) { ++workers_[worker].counts.resends; }

  // This worker's contribution was the last one, `waited_us` after the one before. Chunks wait side by side, so time in
  // which others have waited for the same worker already doesn't count again.
  void OnLast(uint16_t worker, uint32_t lanes, uint64_t waited_us, uint64_t now_us) {
    ++chunks_;
    lanes_ += lanes;
    if (workers_.size() == 1) return;
    Worker& one = workers_[worker];
    ++one.counts.last;
    one.counts.waited_us += std::min(waited_us, now_us - one.waited_until_us);
    one.waited_until_us = now_us;
  }

  // Since the worker's latest contribution, or since the job was added.
  uint64_t SilentUs(uint16_t worker, uint64_t now_us) const { return now_us - workers_[worker].latest_us; }

  // Without the chunks that wait. `waits_us`: for how long, by worker, a chunk has waited that lacks nothing but its
  // contribution.
  JobCounts Counts(uint64_t now_us, const std::vector<uint64_t>& waits_us) const {
    JobCounts counts{.chunks = chunks_, .lanes = lanes_, .workers = {}};
    for (size_t index = 0; index < workers_.size(); ++index) {
      const Worker& worker = workers_[index];
      WorkerCounts& told = counts.workers.emplace_back(worker.counts);
      told.silent_us = SilentUs(static_cast<uint16_t>(index), now_us);
      if (workers_.size() > 1) told.waited_us += std::min(waits_us[index], now_us - worker.waited_until_us);
    }
    return counts;
  }

 private:
  struct Worker {
    WorkerCounts counts{};
    uint64_t latest_us = 0;        // its latest contribution
    uint64_t waited_until_us = 0;  // when it was last of a chunk
  };

  uint64_t chunks_ = 0;
  uint64_t lanes_ = 0;
  std::vector<Worker> workers_;
};

}  // namespace passing

#endif  // XLA_FFI_SWITCH_JOB_COUNTS_H_
