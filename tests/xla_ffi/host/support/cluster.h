// A whole cluster in one thread: the slot pools of all switches and the AllReduce of every rank over a FakeNetwork.
#ifndef TESTS_XLA_FFI_HOST_SUPPORT_CLUSTER_H_
#define TESTS_XLA_FFI_HOST_SUPPORT_CLUSTER_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../tests/xla_ffi/host/support/tree.h"
#include "../tests/xla_ffi/net/fake_network.h"
#include "../tests/xla_ffi/wire/random_key.h"
#include "host/all_reduce.h"
#include "host/window/sharding.h"
#include "switch/slot_pool.h"

namespace passing {

struct ClusterOptions {
  uint32_t world_size = 2;
  uint32_t shard_count = 1;
  std::vector<Tree> trees{};  // by shard; missing ones are one switch
  uint32_t slot_count = 16;   // of each shard
  uint32_t lanes_per_chunk = 64;
  std::vector<uint32_t> whole_lanes{};  // by shard; of the packets that it takes, 0: of any; missing shards: 0
  Faults faults;
  std::optional<Port> port{};    // on the way to each switch: all of its hosts' packets pass it
  int64_t order_delay_us = 300;  // of a message over the control connection, at most
  uint64_t first_position = 0;
  bool tagged = false;  // packets have tags
  std::optional<SumCheck::Key> check_key{};
  // Alters packets on their way: from hosts to their switch, and from there to hosts.
  std::function<void(std::vector<uint8_t>& packet)> alter_contribution = [](auto&) {};
  std::function<void(std::vector<uint8_t>& packet)> alter_result = [](auto&) {};
};

class Cluster {
 public:
  static constexpr uint16_t kJob = 3;
  static constexpr uint16_t kEpoch = 7;
  static constexpr uint32_t kSlotFirst = 5;

  Cluster(uint64_t seed, const ClusterOptions& options) : options_(options), network_(seed, options.faults) {
    for (uint32_t shard = 0; shard < options.shard_count; ++shard) AddShard(shard);
    order_arrival_us_.resize(options.world_size);
    for (uint32_t rank = 0; rank < options.world_size; ++rank) AddRank(rank);
  }

  FakeNetwork& network() { return network_; }
  AllReduce& rank(uint32_t rank) { return *ranks_[rank]; }
  SlotPool& pool(uint32_t shard = 0, uint32_t at = 0) { return *shards_[shard].switches[at].pool; }
  // Over all switches.
  uint64_t Count(Verdict verdict) const {
    uint64_t sum = 0;
    for (const ShardTree& shard : shards_) {
      for (const Switch& one : shard.switches) sum += one.pool->Count(verdict);
    }
    return sum;
  }
  const std::optional<Failure>& protocol_failure() const { return protocol_failure_; }

  // The rank takes nothing and sends nothing for so long.
  void Pause(uint32_t rank, int64_t pause_us) {
    paused_ = rank;
    network_.After(pause_us, [this] { paused_.reset(); });
  }

  // Runs until every rank is idle and no event is left, or until `deadline_us`. True if all are idle.
  bool Run(int64_t deadline_us) {
    while (network_.now_us() < deadline_us) {
      int64_t next_us = network_.next_us();
      for (auto& rank : ranks_) {
        if (paused_ && rank == ranks_[*paused_]) continue;
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
  struct Switch {
    std::unique_ptr<SlotPool> pool;
    std::vector<Member> members;  // by worker
    uint32_t parent = 0;
    uint32_t worker = 0;  // which one it is there
  };
  struct ShardTree {
    Tree tree;
    Port port;  // of its root alone
    std::vector<Switch> switches;
    std::vector<uint32_t> worker_of;  // by rank: at its switch
  };

  // Every switch counts its jobs, epochs and slots for itself.
  Shard ShardAt(uint32_t shard, uint32_t at, uint32_t worker) const {
    return {.job = static_cast<uint16_t>(kJob + shard + 10 * at),
            .epoch = static_cast<uint16_t>(kEpoch - shard + 3 * at),
            .slot_first = kSlotFirst + 2 * shard + 3 * at % 7,
            .worker = static_cast<uint16_t>(worker),
            .whole_lanes = shard < options_.whole_lanes.size() ? options_.whole_lanes[shard] : 0,
            .keys = KeysAt(shard, at, worker)};
  }

  std::optional<wire::MemberKeys> KeysAt(uint32_t shard, uint32_t at, uint32_t worker) const {
    if (!options_.tagged) return std::nullopt;
    const uint64_t here = uint64_t{shard} << 40 | uint64_t{at} << 20;
    return wire::MemberKeys{.contribution = wire::RandomKey(here | worker), .result = wire::RandomKey(here | 1 << 19)};
  }

  static Address AddressOf(const Member& member) {
    Address address;
    address.bytes[0] = member.is_switch;
    address.bytes[1] = static_cast<uint8_t>(member.index);
    address.bytes[2] = static_cast<uint8_t>(member.index >> 8);
    address.size = 3;
    return address;
  }

  void AddShard(uint32_t shard) {
    ShardTree& added = shards_.emplace_back();
    if (options_.port) added.port = *options_.port;
    added.tree = shard < options_.trees.size() ? options_.trees[shard] : Tree::OneSwitch(options_.world_size);
    added.switches.resize(added.tree.switch_count());
    added.worker_of.resize(options_.world_size);
    const std::vector<std::vector<Member>> members = MembersOf(added.tree);
    for (uint32_t at = 0; at < members.size(); ++at) {
      Switch& one = added.switches[at];
      one.members = members[at];
      one.parent = added.tree.parent_of[at];
      const Shard place = ShardAt(shard, at, 0);
      JobSlots slots{.job = place.job,
                     .epoch = place.epoch,
                     .slot_first = place.slot_first,
                     .slot_count = options_.slot_count,
                     .addresses = {},
                     .first_position = options_.first_position,
                     .reach = Reach()};
      if (place.keys) slots.keys.emplace(JobKeys{.contributions = {}, .results = place.keys->result});
      for (uint32_t worker = 0; worker < one.members.size(); ++worker) {
        const Member& member = one.members[worker];
        slots.addresses.push_back(AddressOf(member));
        if (slots.keys) slots.keys->contributions.push_back(KeysAt(shard, at, worker)->contribution);
        (member.is_switch ? added.switches[member.index].worker : added.worker_of[member.index]) = worker;
      }
      if (at > 0) {
        const Shard above = ShardAt(shard, one.parent, one.worker);
        slots.parent = {.job = above.job,
                        .epoch = above.epoch,
                        .slot_first = above.slot_first,
                        .worker = above.worker,
                        .address = AddressOf({true, one.parent}),
                        .keys = above.keys};
      }
      one.pool = std::make_unique<SlotPool>(place.slot_first + options_.slot_count);
      one.pool->AddJob(slots);
    }
  }

  // As the control plane says it, of shards all of whose slots are used (jax_passing/switch/data_planes/reach.py).
  uint32_t Reach() const {
    const Sharding sharding(options_.shard_count, options_.slot_count);
    return 2 * sharding.window() * (options_.shard_count == 1 ? 2 : (options_.shard_count + 1) * sharding.run() + 1);
  }

  void AddRank(uint32_t rank) {
    JobConfig job{.rank = static_cast<uint16_t>(rank),
                  .world_size = options_.world_size,
                  .shards = {},
                  .slots_per_shard = options_.slot_count,
                  .lanes_per_chunk = options_.lanes_per_chunk,
                  .check_key = options_.check_key,
                  .first_position = options_.first_position};
    std::vector<Driver*> drivers;
    for (uint32_t shard = 0; shard < options_.shard_count; ++shard) {
      drivers_.push_back(std::make_unique<FakeDriver>([this, shard, rank](std::vector<uint8_t> packet) {
        options_.alter_contribution(packet);
        SendToSwitch(shard, shards_[shard].tree.switch_of[rank], std::move(packet), {false, rank});
      }));
      drivers.push_back(drivers_.back().get());
      job.shards.push_back(ShardAt(shard, shards_[shard].tree.switch_of[rank], shards_[shard].worker_of[rank]));
    }
    ranks_.push_back(std::make_unique<AllReduce>(job, drivers, [this](std::string message) {
      for (uint32_t to = 1; to < options_.world_size; ++to) Relay(to, message);
    }));
  }

  void SendToSwitch(uint32_t shard, uint32_t to, std::vector<uint8_t> packet, const Member& source) {
    const auto deliver = [this, shard, to, source](std::span<const uint8_t> arrived) {
      OnSwitch(shard, to, arrived, source);
    };
    if (options_.port) return network_.Send(std::move(packet), shards_[shard].port, deliver);
    network_.Send(std::move(packet), deliver);
  }

  void OnSwitch(uint32_t shard, uint32_t at, std::span<const uint8_t> packet, const Member& source) {
    const uint32_t whole_lanes = ShardAt(shard, at, 0).whole_lanes;
    const size_t tag_bytes = options_.tagged ? wire::kTagBytes : 0;
    if (whole_lanes != 0 && packet.size() != wire::kHeaderBytes + 4 * size_t{whole_lanes} + tag_bytes) return;
    const Switch& own = shards_[shard].switches[at];
    const Action action = own.pool->OnPacket(packet, AddressOf(source));
    const std::vector<uint8_t> out(action.packet.begin(), action.packet.end());
    if (action.to == SendTo::kParent) SendToSwitch(shard, own.parent, out, {true, at});
    for (uint32_t worker = 0; worker < own.members.size(); ++worker) {
      const bool asked = action.to == SendTo::kWorker && action.worker == worker;
      if (action.to != SendTo::kEveryWorker && !asked) continue;
      const Member& to = own.members[worker];
      if (to.is_switch) {
        SendToSwitch(shard, to.index, out, {true, at});
        continue;
      }
      std::vector<uint8_t> result = out;
      options_.alter_result(result);
      network_.Send(result, [this, shard, rank = to.index](std::span<const uint8_t> arrived) {
        ranks_[rank]->OnPacket(shard, arrived, network_.now_us());
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
  std::vector<ShardTree> shards_;
  std::vector<std::unique_ptr<FakeDriver>> drivers_;
  std::vector<std::unique_ptr<AllReduce>> ranks_;
  std::vector<int64_t> order_arrival_us_;
  std::optional<uint32_t> paused_;
  std::optional<Failure> protocol_failure_;
};

}  // namespace passing

#endif  // TESTS_XLA_FFI_HOST_SUPPORT_CLUSTER_H_
