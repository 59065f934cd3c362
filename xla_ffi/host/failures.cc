#include "host/failures.h"

#include <cstdio>

namespace passing {
namespace {

template <typename... Args>
std::string Format(const char* format, Args... args) {
  std::string text(static_cast<size_t>(std::snprintf(nullptr, 0, format, args...)), '\0');
  std::snprintf(text.data(), text.size() + 1, format, args...);
  return text;
}

}  // namespace

std::string NoJob(const JobConfig& job) {
  std::string at;
  for (const Shard& shard : job.shards) at += Format(" %u", shard.slot_first);
  return Format("rank %u of %u, %u slots from%s and %u lanes in a chunk make no job", job.rank, job.world_size,
                job.slots_per_shard, at.c_str(), job.lanes_per_chunk);
}

Failure Closed() { return {"ClosedError", "the session was shut down before this sum was complete"}; }

Failure DeadlineExceeded(const JobConfig& job, const Stall& stall, int64_t stalled_us, const std::string& note,
                         double deadline_s) {
  std::string waits;
  const char* advice;
  if (stall.waits_for_gpu) {
    waits = "this host's GPU hasn't delivered what is to be sent next";
    advice = "What runs on that GPU before the copy is slow or never ends: look at this host's program.";
  } else if (!stall.job_is_at.empty()) {
    waits = "rank 0 comes to " + stall.job_is_at + " first, which this host hasn't started";
    advice = "The hosts run different programs, or this one is late with that sum.";
  } else if (stall.waits_for_order && job.rank == 0) {
    waits = "another host hasn't come to this sum";
    advice = "It is slow or stopped, or runs another program: look at the other hosts' logs.";
  } else if (stall.waits_for_order) {
    waits = "rank 0 hasn't started this sum";
    advice = "Rank 0 is slow or stopped, or runs another program: look at its log.";
  } else {
    waits = Format("no result for slot %u, version %u, sequence %u of %s", stall.slot, stall.version, stall.sequence,
                   job.shards[stall.shard].name.c_str());
    advice =
        "Another host is slow or stopped, or runs another program, or packets to the switch are lost: look at the "
        "other hosts' logs and at the switch's.";
  }
  return {"DeadlineExceededError",
          Format("%s (execution %u, step %u) made no progress for %.1f s: %s. This is rank %u of %u, job '%s', "
                 "epoch %u.%s%s %s "
                 "If hosts may wait that long for each other, raise deadline_s (now %.1f).",
                 stall.site_name.c_str(), stall.key.execution, stall.key.step, static_cast<double>(stalled_us) / 1e6,
                 waits.c_str(), job.rank, job.world_size, job.name.c_str(), job.shards[0].epoch,
                 note.empty() ? "" : " ", note.c_str(), advice, deadline_s)};
}

}  // namespace passing
