// A whole cluster in one thread: trees of switches and the ranks below them, over simulated packets.
#ifndef TESTS_XLA_FFI_HOST_SUPPORT_CLUSTER_H_
#define TESTS_XLA_FFI_HOST_SUPPORT_CLUSTER_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../tests/xla_ffi/host/support/tree.h"
#include "../tests/xla_ffi/simulation/packets.h"
#include "host/window/sharding.h"

namespace passing {

struct ClusterOptions {
  uint32_t world_size = 2;
  uint32_t shard_count = 1;
  std::vector<Tree> trees{};  // by shard; missing ones are one switch
  uint32_t slot_count = 16;   // of each shard
  uint32_t lanes_per_chunk = 64;
  Faults faults;
  std::optional<Link> link{};                                             // of each root, and each rank
  std::function<void(uint32_t to, std::string& message)> relays_order{};  // what a switch makes of it
  int64_t order_delay_us = 300;  // of a message over the control connection, at most
  uint64_t first_position = 0;
  std::optional<SumCheck::Key> check_key{};
  std::optional<LaneMasks::Key> mask_key{};
  bool check_nans = false;
  bool bare = true;     // switches know packets without lanes
  bool plain = false;   // all elements are finite, and there when their sum starts
  double warn_s = 0.2;  // of a stall, which no deadline ends
};

// The sums that it executes are checked as Packets says.
class Cluster {
 public:
  static constexpr uint16_t kJob = 3;
  static constexpr uint16_t kEpoch = 7;
  static constexpr uint32_t kSlotFirst = 5;

  Cluster(uint64_t seed, const ClusterOptions& options)
      : options_(options),
        packets_(seed, options.faults, options.faults, /*strangers=*/{}, options.plain),
        order_arrival_us_(options.world_size),
        stalls_(options.world_size),
        failures_(options.world_size),
        non_finite_(options.world_size) {
    for (uint32_t shard = 0; shard < options.shard_count; ++shard) AddShard(shard);
    for (uint32_t rank = 0; rank < options.world_size; ++rank) AddRank(rank);
  }

  int64_t now_us() const { return packets_.now_us(); }
  const RankCore& rank(uint32_t rank) const { return packets_.RankOf(hosts_[rank]); }
  const SwitchCore& core(uint32_t shard = 0, uint32_t at = 0) const {
    return packets_.CoreOf(shards_[shard].switches[at]);
  }
  // Over all switches.
  uint64_t Count(Verdict verdict) const {
    uint64_t sum = 0;
    for (const ShardTree& shard : shards_) {
      for (const uint32_t one : shard.switches) sum += packets_.CoreOf(one).Count(verdict);
    }
    return sum;
  }
  // The last stall that the rank reported, and why it can't go on.
  const std::optional<Stall>& stall(uint32_t rank) const { return stalls_[rank]; }
  const std::optional<Failure>& failure(uint32_t rank) const { return failures_[rank]; }
  // Elements that weren't finite, as it told.
  const std::vector<NonFinite>& non_finite(uint32_t rank) const { return non_finite_[rank]; }

  void Observe(simulation::Packets::Observer observer) { packets_.Observe(std::move(observer)); }

  // The rank takes nothing and sends nothing for so long.
  void Pause(uint32_t rank, int64_t pause_us) { packets_.Pause(MachineOf(rank), now_us() + pause_us); }

  uint32_t AddSite(DType dtype, std::vector<uint64_t> leaves, uint32_t device_count, Op op = Op::kSum,
                   WireDtype wire_dtype = WireDtype::kFull, Moves moves = Moves::kAll, bool early = false) {
    return packets_.AddSite(dtype, std::move(leaves), device_count, op, wire_dtype, moves, early);
  }
  // One execution of a program that calls `sites`: every rank issues them in its own order and at its own pace. But it
  // issues an early sum behind those before it, and on some ranks only when they are done.
  uint32_t Execute(const std::vector<uint32_t>& sites, int64_t spread_us) {
    for (const uint32_t host : hosts_) packets_.Execute(host, executions_, sites, spread_us);
    return executions_++;
  }
  // When the rank had all sums of an execution.
  int64_t done_us(uint32_t execution, uint32_t rank) const { return done_us_.at({execution, hosts_[rank]}); }
  // A sum of the test's own.
  void Start(uint32_t rank, Sum sum) { packets_.Start(hosts_[rank], std::move(sum)); }
  void OnReady(uint32_t rank, const SumKey& key, uint64_t elements) { packets_.OnReady(hosts_[rank], key, elements); }
  void Fail(uint32_t rank, const Failure& failure) { packets_.Fail(hosts_[rank], failure); }

  // Runs until no rank has a sum or will issue one, or until `deadline_us`. True if none has.
  bool Run(int64_t deadline_us) {
    while (!packets_.idle()) {
      if (now_us() >= deadline_us) return false;
      packets_.Run(std::min(deadline_us, now_us() + 1000));
      for (simulation::Event& event : packets_.Take()) Hear(event);
    }
    return true;
  }

  std::string Stalls() const {
    std::string text = "at " + std::to_string(now_us()) + " us\n";
    for (uint32_t of = 0; of < options_.world_size; ++of) {
      if (rank(of).idle() || !stalls_[of]) continue;
      const Stall& stall = *stalls_[of];
      text += "rank " + std::to_string(of) + ": " + stall.site_name + " execution " +
              std::to_string(stall.key.execution) + (stall.waits_for_gpu ? " waits for elements" : "") +
              (stall.waits_for_order ? " waits for its place" : "") + ", slot " + std::to_string(stall.slot) +
              " version " + std::to_string(stall.version) + " sequence " + std::to_string(stall.sequence) +
              " job is at " + stall.job_is_at + "\n";
    }
    return text;
  }

 private:
  struct ShardTree {
    Tree tree;
    std::vector<uint32_t> switches{};   // numbers of the simulation
    std::vector<uint32_t> worker_of{};  // by rank: at its switch
  };

  static uint32_t MachineOf(uint32_t rank) { return 1 + rank; }
  static simulation::Endpoint EndpointOf(uint32_t shard, uint32_t at) { return {(1 + shard) << 16 | at, 1}; }
  static simulation::Endpoint UplinkOf(uint32_t shard, uint32_t at) { return {(1 + shard) << 16 | at, 2}; }
  static simulation::Endpoint SocketOf(uint32_t rank, uint32_t shard) {
    return {MachineOf(rank), static_cast<uint16_t>(1 + shard)};
  }

  // Every switch counts its jobs, epochs and slots for itself.
  Shard ShardAt(uint32_t shard, uint32_t at, uint32_t worker) const {
    return {.job = static_cast<uint16_t>(kJob + shard + 10 * at),
            .epoch = static_cast<uint16_t>(kEpoch - shard + 3 * at),
            .slot_first = kSlotFirst + 2 * shard + 3 * at % 7,
            .worker = static_cast<uint16_t>(worker),
            .bare = options_.bare};
  }

  void AddShard(uint32_t shard) {
    const Tree tree = shard < options_.trees.size() ? options_.trees[shard] : Tree::OneSwitch(options_.world_size);
    ShardTree& added = shards_.emplace_back(ShardTree{.tree = tree});
    added.worker_of.resize(options_.world_size);
    if (options_.link) packets_.AddLink(EndpointOf(shard, 0).machine, *options_.link);
    std::vector<uint32_t> worker_at_parent(tree.switch_count());
    const std::vector<std::vector<Member>> members = MembersOf(tree);
    for (uint32_t at = 0; at < members.size(); ++at) {
      const Shard place = ShardAt(shard, at, 0);
      JobSlots slots{.job = place.job,
                     .epoch = place.epoch,
                     .slot_first = place.slot_first,
                     .slot_count = options_.slot_count,
                     .lanes_per_chunk = options_.lanes_per_chunk,
                     .addresses = {},
                     .first_position = options_.first_position,
                     .reach = Reach()};
      std::vector<simulation::Endpoint> workers;
      for (uint32_t worker = 0; worker < members[at].size(); ++worker) {
        const auto& [is_switch, index] = members[at][worker];
        workers.push_back(is_switch ? UplinkOf(shard, index) : SocketOf(index, shard));
        (is_switch ? worker_at_parent : added.worker_of)[index] = worker;
      }
      const uint32_t number =
          packets_.AddSwitch(EndpointOf(shard, at), place.slot_first + options_.slot_count, /*whole_lanes=*/0);
      added.switches.push_back(number);
      uint32_t uplink = 0;
      if (at > 0) {
        const uint32_t parent = tree.parent_of[at];
        const Shard above = ShardAt(shard, parent, worker_at_parent[at]);
        slots.parent = {.job = above.job,
                        .epoch = above.epoch,
                        .slot_first = above.slot_first,
                        .worker = above.worker,
                        .address = {}};
        uplink = packets_.Open(UplinkOf(shard, at), EndpointOf(shard, parent));
      }
      packets_.AddJob(number, std::move(slots), workers, std::nullopt, uplink);
    }
  }

  // As the control plane says it, of shards all of whose slots are used (jax_passing/switch/data_planes/reach.py).
  uint32_t Reach() const {
    const Sharding sharding(options_.shard_count, options_.slot_count, options_.lanes_per_chunk);
    return 2 * sharding.window() * (options_.shard_count == 1 ? 3 : (options_.shard_count + 1) * sharding.run() + 2);
  }

  void AddRank(uint32_t rank) {
    RankOptions options{.job = {.rank = static_cast<uint16_t>(rank),
                                .world_size = options_.world_size,
                                .ranks_at_port = options_.link ? options_.world_size : 1,
                                .shards = {},
                                .slots_per_shard = options_.slot_count,
                                .lanes_per_chunk = options_.lanes_per_chunk,
                                .check_key = options_.check_key,
                                .mask_key = options_.mask_key,
                                .check_nans = options_.check_nans,
                                .first_position = options_.first_position},
                        .warn_s = options_.warn_s,
                        .deadline_s = 1e6};
    if (options_.link) packets_.AddLink(MachineOf(rank), *options_.link);
    std::vector<uint32_t> sockets;
    for (uint32_t shard = 0; shard < options_.shard_count; ++shard) {
      const uint32_t at = shards_[shard].tree.switch_of[rank];
      options.job.shards.push_back(ShardAt(shard, at, shards_[shard].worker_of[rank]));
      sockets.push_back(packets_.Open(SocketOf(rank, shard), EndpointOf(shard, at)));
    }
    hosts_.push_back(packets_.AddHost(options, sockets, /*incarnation=*/1));
    rank_of_[hosts_.back()] = rank;
  }

  // Does with an event what a session does.
  void Hear(simulation::Event& event) {
    if (const auto* violation = std::get_if<simulation::Violation>(&event.what)) ADD_FAILURE() << violation->text;
    if (std::holds_alternative<simulation::Executed>(event.what)) {
      done_us_[{std::get<simulation::Executed>(event.what).execution, event.who}] = now_us();
    }
    auto* of_rank = std::get_if<RankEvent>(&event.what);
    if (of_rank == nullptr) return;
    const uint32_t rank = rank_of_.at(event.who);
    if (auto* stalled = std::get_if<Stalled>(of_rank)) stalls_[rank] = std::move(stalled->stall);
    if (auto* failure = std::get_if<Failure>(of_rank)) failures_[rank] = std::move(*failure);
    if (auto* found = std::get_if<NonFinite>(of_rank)) non_finite_[rank].push_back(std::move(*found));
    if (const auto* order = std::get_if<OrderMessage>(of_rank)) {
      for (uint32_t to = 0; to < options_.world_size; ++to) {
        if (to != rank && (rank == 0 || to == 0)) Relay(to, order->bytes);
      }
    }
  }

  // Reliable and in order, as TCP is.
  void Relay(uint32_t to, std::string message) {
    if (options_.relays_order) options_.relays_order(to, message);
    int64_t& arrival_us = order_arrival_us_[to];
    arrival_us = std::max(arrival_us + 1, now_us() + packets_.network().Below(options_.order_delay_us + 1));
    packets_.network().After(arrival_us - now_us(), [this, to, message] {
      packets_.OnOrderMessage(hosts_[to], {reinterpret_cast<const uint8_t*>(message.data()), message.size()});
    });
  }

  const ClusterOptions options_;
  simulation::Packets packets_;
  std::vector<ShardTree> shards_;
  std::vector<uint32_t> hosts_;  // numbers of the simulation, by rank
  std::map<uint32_t, uint32_t> rank_of_;
  std::vector<int64_t> order_arrival_us_;
  std::vector<std::optional<Stall>> stalls_;
  std::vector<std::optional<Failure>> failures_;
  std::vector<std::vector<NonFinite>> non_finite_;
  std::map<std::pair<uint32_t, uint32_t>, int64_t> done_us_;
  uint32_t executions_ = 0;
};

}  // namespace passing

#endif  // TESTS_XLA_FFI_HOST_SUPPORT_CLUSTER_H_
