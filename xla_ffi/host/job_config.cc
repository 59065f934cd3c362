#include "host/job_config.h"

#include <algorithm>
#include <bit>

#include "host/numbers/fixed_point.h"
#include "host/sums/sum_plan.h"

namespace passing {

bool IsInRange(const JobConfig& job) {
  const auto every_shard = [&](auto&& holds) { return std::all_of(job.shards.begin(), job.shards.end(), holds); };
  const bool ranks = job.world_size <= kMaxWorldSize && job.rank < job.world_size &&
                     every_shard([](const Shard& shard) { return shard.worker < wire::kMaxWorkers; });
  // The order's limits hold for a window of this size (order.cc).
  const bool slots = std::has_single_bit(job.slots_per_shard) && !job.shards.empty() &&
                     job.slots_per_shard * job.shards.size() <= wire::kMaxSlots && every_shard([&](const Shard& shard) {
                       return uint64_t{shard.slot_first} + job.slots_per_shard <= wire::kMaxSlots;
                     });
  // A chunk carries an int64 or a precise float64, of three lanes, or the numbers of a block.
  const uint32_t lanes_of_block = kNumbersPerBlock * (job.check_key ? SumCheck::kNumberLanes : 1);
  const uint32_t lanes_of_check = job.check_key ? SumCheck::kLanes : 0;
  const bool lanes = job.lanes_per_chunk >= std::max(lanes_of_block, 3u) + lanes_of_check &&
                     job.lanes_per_chunk <= wire::kMaxLanes && every_shard([&](const Shard& shard) {
                       return shard.whole_lanes == 0 ||
                              (shard.whole_lanes >= job.lanes_per_chunk && shard.whole_lanes <= wire::kMaxLanes);
                     });
  return ranks && slots && lanes;
}

}  // namespace passing
