// Hosts and switches that sum over sockets of the loopback interface.
#ifndef TESTS_XLA_FFI_HOST_SUPPORT_LOOPBACK_CLUSTER_H_
#define TESTS_XLA_FFI_HOST_SUPPORT_LOOPBACK_CLUSTER_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <future>
#include <iterator>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../tests/xla_ffi/eventually.h"
#include "../tests/xla_ffi/net/loopback_group.h"
#include "host/transport/striped_transport.h"
#include "switch/udp_switch.h"

namespace passing {

inline constexpr uint32_t kSlotCount = 64;

// One sum of one host with one device, in place, and its outcome. The transport may outlive it when a test fails.
template <typename T>
class Call {
 public:
  Call(uint64_t site, uint32_t execution, DType dtype, std::vector<T> values)
      : key_{.site = site, .execution = execution}, dtype_(dtype) {
    outcome_->values = std::move(values);
  }

  void Start(Collective& collective, bool caller_waits = false) {
    auto shape = std::make_shared<SumSpec>(SumSpec{
        .site_name = "site " + std::to_string(key_.site), .dtype = dtype_, .leaf_elements = {outcome_->values.size()}});
    collective.Start({.key = key_,
                      .spec = std::move(shape),
                      .inputs = {outcome_->values.data()},
                      .outputs = {outcome_->values.data()},
                      .done =
                          [outcome = outcome_](const Failure* failure) {
                            std::lock_guard lock(outcome->mutex);
                            if (failure != nullptr) outcome->failure = *failure;
                            ++outcome->times_done;
                            outcome->changed.notify_all();
                          },
                      .caller_waits = caller_waits});
  }

  bool Wait(double timeout_s = 20) {
    std::unique_lock lock(outcome_->mutex);
    return outcome_->changed.wait_for(lock, std::chrono::duration<double>(timeout_s),
                                      [this] { return outcome_->times_done > 0; });
  }
  const std::vector<T>& values() const { return outcome_->values; }
  std::optional<Failure> failure() const {
    std::lock_guard lock(outcome_->mutex);
    return outcome_->failure;
  }
  int times_done() const {
    std::lock_guard lock(outcome_->mutex);
    return outcome_->times_done;
  }

 private:
  struct Outcome {
    std::vector<T> values;
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Failure> failure;
    int times_done = 0;
  };
  const SumKey key_;
  const DType dtype_;
  std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();
};

using FloatCall = Call<float>;
using IntCall = Call<int32_t>;

inline std::vector<UdpSocket> One(UdpSocket socket) {
  std::vector<UdpSocket> sockets;
  sockets.push_back(std::move(socket));
  return sockets;
}

// Switches and their hosts, with a thread for each host that does what a session does with events.
class LoopbackCluster {
 public:
  // With `heard_by`, the switches send results to its first group; rank r joins heard_by[r]. `threads`: of each host.
  explicit LoopbackCluster(uint32_t world_size, double warn_s = 5, double deadline_s = 30, uint32_t shard_count = 1,
                           const std::vector<Address>& heard_by = {}, uint32_t threads = 1) {
    std::vector<std::vector<UdpSocket>> sockets(world_size);
    std::vector<std::vector<std::optional<UdpSocket>>> groups(world_size);
    RankOptions options{
        .job = {.world_size = world_size, .slots_per_shard = kSlotCount}, .warn_s = warn_s, .deadline_s = deadline_s};
    for (uint32_t shard = 0; shard < shard_count; ++shard) {
      switches_.push_back(std::make_unique<UdpSwitch>("127.0.0.1", 0, kSlotCount));
      JobSlots job{.job = 1, .epoch = 2, .slot_first = 0, .slot_count = kSlotCount, .addresses = {}};
      for (uint32_t rank = 0; rank < world_size; ++rank) {
        sockets[rank].push_back(UdpSocket::ConnectedTo("127.0.0.1", switches_.back()->port()));
        job.addresses.push_back(ResolveAddress("127.0.0.1", sockets[rank].back().port()));
        if (!heard_by.empty()) groups[rank].push_back(sockets[rank].back().JoinGroup(heard_by[rank]));
      }
      std::optional<MulticastGroup> group;
      if (!heard_by.empty()) group = {.group = heard_by[0], .from = ResolveAddress("127.0.0.1", 0)};
      switches_.back()->AddJob(job, group);
      options.job.shards.push_back({.job = 1, .epoch = 2, .name = "switch " + std::to_string(shard)});
    }
    for (uint32_t rank = 0; rank < world_size; ++rank) {
      options.job.rank = static_cast<uint16_t>(rank);
      for (Shard& shard : options.job.shards) shard.worker = options.job.rank;
      hosts_.push_back(std::make_unique<StripedTransport>(std::move(sockets[rank]), options, std::move(groups[rank]),
                                                          std::vector<StripedTransport::Keys>(threads)));
    }
    stalls_.resize(world_size);
    failures_.resize(world_size);
    for (uint32_t rank = 0; rank < world_size; ++rank) sessions_.emplace_back([this, rank] { Relay(rank); });
  }

  ~LoopbackCluster() {
    for (auto& host : hosts_) host->Close();
    stopping_ = true;
    for (std::thread& session : sessions_) session.join();
  }

  StripedTransport& host(size_t rank) { return *hosts_[rank]; }
  UdpSwitch& udp_switch(size_t shard = 0) { return *switches_[shard]; }
  int groups_lost() const { return groups_lost_; }
  std::vector<Stalled> stalls(size_t rank) {
    std::lock_guard lock(mutex_);
    return stalls_[rank];
  }
  std::vector<Failure> failures(size_t rank) {
    std::lock_guard lock(mutex_);
    return failures_[rank];
  }

 private:
  void Relay(uint32_t rank) {
    while (!stopping_) {
      const std::optional<RankEvent> event = hosts_[rank]->WaitEvent(0.2);
      if (!event.has_value()) continue;
      if (const auto* order = std::get_if<OrderMessage>(&*event)) {
        for (uint32_t other = 0; other < hosts_.size(); ++other) {
          if (other != rank && (rank == 0 || other == 0)) hosts_[other]->DeliverOrderMessage(order->bytes);
        }
      } else if (const auto* lost = std::get_if<GroupLost>(&*event)) {
        switches_[lost->shard]->StopMulticast(1);
        ++groups_lost_;
      } else {
        std::lock_guard lock(mutex_);
        if (const auto* stalled = std::get_if<Stalled>(&*event)) stalls_[rank].push_back(*stalled);
        if (const auto* failure = std::get_if<Failure>(&*event)) failures_[rank].push_back(*failure);
      }
    }
  }

  std::vector<std::unique_ptr<UdpSwitch>> switches_;
  std::vector<std::unique_ptr<StripedTransport>> hosts_;
  std::mutex mutex_;
  std::vector<std::vector<Stalled>> stalls_;
  std::vector<std::vector<Failure>> failures_;
  std::atomic<int> groups_lost_ = 0;
  std::atomic<bool> stopping_ = false;
  std::vector<std::thread> sessions_;
};

inline std::vector<float> Ramp(size_t count, float factor) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = factor * static_cast<float>(i % 1000);
  return values;
}

// All ranks of the cluster sum `count` floats; each gives `factor` times the ramp.
inline void SumRamps(LoopbackCluster& cluster, uint32_t world_size, uint32_t execution, size_t count) {
  std::vector<std::unique_ptr<FloatCall>> calls;
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    calls.push_back(std::make_unique<FloatCall>(7, execution, DType::kFloat32, Ramp(count, 1)));
    calls.back()->Start(cluster.host(rank));
  }
  const std::vector<float> expected = Ramp(count, static_cast<float>(world_size));
  for (auto& call : calls) {
    ASSERT_TRUE(call->Wait());
    ASSERT_FALSE(call->failure().has_value()) << call->failure()->message;
    ASSERT_EQ(call->values(), expected);
  }
}

}  // namespace passing

#endif  // TESTS_XLA_FFI_HOST_SUPPORT_LOOPBACK_CLUSTER_H_
