// A whole cluster in one thread: the slot pools of all shards and the AllReduce of every rank over a FakeNetwork.
#ifndef TESTS_XLA_FFI_CLIENT_CLUSTER_H_
#define TESTS_XLA_FFI_CLIENT_CLUSTER_H_

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/all_reduce.h"
#include "net/fake_network.h"
#include "switch/slot_pool.h"

namespace passing {

struct ClusterOptions {
  uint32_t world_size = 2;
  uint32_t shard_count = 1;
  uint32_t slot_count = 16;  // of each shard
  uint32_t lanes_per_chunk = 64;
  std::vector<uint32_t> whole_lanes{};  // by shard; of the packets that it takes, 0: of any; missing shards: 0
  Faults faults;
  int64_t order_delay_us = 300;  // of a message over the control connection, at most
  uint64_t first_position = 0;
};

class Cluster {
 public:
  static constexpr uint16_t kJob = 3;
  static constexpr uint16_t kEpoch = 7;
  static constexpr uint32_t kSlotFirst = 5;

  Cluster(uint64_t seed, const ClusterOptions& options) : options_(options), network_(seed, options.faults) {
    for (uint32_t shard = 0; shard < options.shard_count; ++shard) {
      const Shard place = ShardAt(shard, 0);
      JobSlots slots{.job = place.job,
                     .epoch = place.epoch,
                     .slot_first = place.slot_first,
                     .slot_count = options.slot_count,
                     .addresses = {}};
      for (uint32_t rank = 0; rank < options.world_size; ++rank) slots.addresses.push_back(AddressOf(rank));
      pools_.push_back(std::make_unique<SlotPool>(place.slot_first + options.slot_count));
      pools_.back()->AddJob(slots);
    }
    order_arrival_us_.resize(options.world_size);
    for (uint32_t rank = 0; rank < options.world_size; ++rank) AddRank(rank);
  }

  FakeNetwork& network() { return network_; }
  AllReduce& rank(uint32_t rank) { return *ranks_[rank]; }
  SlotPool& pool(uint32_t shard = 0) { return *pools_[shard]; }
  const std::optional<Failure>& protocol_failure() const { return protocol_failure_; }

  // Runs until every rank is idle and no event is left, or until `deadline_us`. True if all are idle.
  bool Run(int64_t deadline_us) {
    while (network_.now_us() < deadline_us) {
      int64_t next_us = network_.next_us();
      for (auto& rank : ranks_) {
        while (rank->next_timer_us() <= network_.now_us()) rank->OnTimer(network_.now_us());
        next_us = std::min(next_us, rank->next_timer_us());
      }
      next_us = std::min(next_us, network_.next_us());
      if (next_us == INT64_MAX) break;
      network_.RunUntil(std::max(next_us, network_.now_us()));
    }
    return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->idle(); });
  }

 private:
  // Every switch counts its jobs, epochs and slots for itself.
  Shard ShardAt(uint32_t shard, uint32_t worker) const {
    return {.job = static_cast<uint16_t>(kJob + shard),
            .epoch = static_cast<uint16_t>(kEpoch - shard),
            .slot_first = kSlotFirst + 2 * shard,
            .worker = static_cast<uint16_t>(worker),
            .whole_lanes = shard < options_.whole_lanes.size() ? options_.whole_lanes[shard] : 0};
  }

  static Address AddressOf(uint32_t rank) {
    Address address;
    address.bytes[0] = static_cast<uint8_t>(rank + 1);
    address.size = 1;
    return address;
  }

  void AddRank(uint32_t rank) {
    JobConfig job{.rank = static_cast<uint16_t>(rank),
                  .world_size = options_.world_size,
                  .shards = {},
                  .slots_per_shard = options_.slot_count,
                  .lanes_per_chunk = options_.lanes_per_chunk,
                  .first_position = options_.first_position};
    std::vector<Driver*> drivers;
    for (uint32_t shard = 0; shard < options_.shard_count; ++shard) {
      drivers_.push_back(std::make_unique<FakeDriver>([this, shard, rank](std::vector<uint8_t> packet) {
        network_.Send(std::move(packet),
                      [this, shard, rank](std::span<const uint8_t> arrived) { OnSwitch(shard, arrived, rank); });
      }));
      drivers.push_back(drivers_.back().get());
      job.shards.push_back(ShardAt(shard, rank));
    }
    ranks_.push_back(std::make_unique<AllReduce>(job, drivers, [this](std::string message) {
      for (uint32_t to = 1; to < options_.world_size; ++to) Relay(to, message);
    }));
  }

  void OnSwitch(uint32_t shard, std::span<const uint8_t> packet, uint32_t source) {
    const uint32_t whole_lanes = ShardAt(shard, source).whole_lanes;
    if (whole_lanes != 0 && packet.size() != wire::kHeaderBytes + 4 * size_t{whole_lanes}) return;
    const Action action = pools_[shard]->OnPacket(packet, AddressOf(source));
    if (action.verdict != Verdict::kComplete && action.verdict != Verdict::kResend) return;
    for (uint32_t to = 0; to < options_.world_size; ++to) {
      if (action.verdict == Verdict::kResend && to != action.worker) continue;
      network_.Send({action.packet.begin(), action.packet.end()}, [this, shard, to](std::span<const uint8_t> arrived) {
        ranks_[to]->OnPacket(shard, arrived, network_.now_us());
      });
    }
  }

  // Reliable and in order, as TCP is.
  void Relay(uint32_t to, const std::string& message) {
    int64_t& arrival_us = order_arrival_us_[to];
    arrival_us = std::max(arrival_us + 1, network_.now_us() + network_.Below(options_.order_delay_us + 1));
    network_.After(arrival_us - network_.now_us(), [this, to, message] {
      auto failure = ranks_[to]->OnOrderMessage({reinterpret_cast<const uint8_t*>(message.data()), message.size()});
      if (failure) protocol_failure_ = failure;
    });
  }

  const ClusterOptions options_;
  FakeNetwork network_;
  std::vector<std::unique_ptr<SlotPool>> pools_;  // by shard
  std::vector<std::unique_ptr<FakeDriver>> drivers_;
  std::vector<std::unique_ptr<AllReduce>> ranks_;
  std::vector<int64_t> order_arrival_us_;
  std::optional<Failure> protocol_failure_;
};

}  // namespace passing

#endif  // TESTS_XLA_FFI_CLIENT_CLUSTER_H_
