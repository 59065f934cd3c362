#include "host/job_config.h"

#include <algorithm>
#include <bit>

#include "host/numbers/fixed_point.h"
#include "host/sums/sum_plan.h"

namespace passing {

uint32_t LanesBehind(const JobConfig& job) { return job.check_key ? SumCheck::kLanes : job.mask_key ? kFlagLanes : 0; }

size_t FullPacketBytes(const JobConfig& job) {
  uint32_t lanes = job.lanes_per_chunk;
  for (const Shard& shard : job.shards) lanes = std::max(lanes, shard.whole_lanes);
  return wire::kHeaderBytes + 4 * size_t{lanes} + wire::kTagBytes;
}

bool HasExponentsApart(const JobConfig& job) {
  constexpr uint32_t kMaxRanks = kRanksPerLane * SumCheck::kNumberLanes * kNumbersPerBlock;
  return job.mask_key || (job.check_key && job.world_size <= kMaxRanks);
}

bool IsInRange(const JobConfig& job) {
  const auto every_shard = [&](auto&& holds) { return std::all_of(job.shards.begin(), job.shards.end(), holds); };
  const bool ranks = job.world_size <= kMaxWorldSize && job.rank < job.world_size &&
                     every_shard([](const Shard& shard) { return shard.worker < wire::kMaxWorkers; });
  // The order's limits hold for a window of this size (order.cc).
  const bool slots = std::has_single_bit(job.slots_per_shard) && !job.shards.empty() &&
                     job.slots_per_shard * job.shards.size() <= wire::kMaxSlots && every_shard([&](const Shard& shard) {
                       return uint64_t{shard.slot_first} + job.slots_per_shard <= wire::kMaxSlots;
                     });
  // A chunk carries an int64 or a precise float64, of three lanes, or the numbers of a block; where ranks have lanes of
  // their own, those of all ranks for an element.
  const uint32_t lanes_of_block = kNumbersPerBlock * (job.check_key ? SumCheck::kNumberLanes : 1);
  const uint32_t least = job.mask_key ? std::max(job.world_size, 3u) : std::max(lanes_of_block, 3u);
  const bool lanes = job.lanes_per_chunk >= least + LanesBehind(job) && job.lanes_per_chunk <= wire::kMaxLanes &&
                     every_shard([&](const Shard& shard) {
                       return shard.whole_lanes == 0 ||
                              (shard.whole_lanes >= job.lanes_per_chunk && shard.whole_lanes <= wire::kMaxLanes);
                     });
  return ranks && slots && lanes;
}

}  // namespace passing
