#include "host/transport/transport.h"

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

#include "../tests/xla_ffi/net/loopback_group.h"
#include "switch/udp_switch.h"

namespace passing {
namespace {

constexpr uint32_t kSlotCount = 64;

// One sum of one host with one device, in place, and its outcome. The transport may outlive it when a test fails.
template <typename T>
class Call {
 public:
  Call(uint64_t site, uint32_t execution, DType dtype, std::vector<T> values)
      : key_{.site = site, .execution = execution}, dtype_(dtype) {
    outcome_->values = std::move(values);
  }

  void Start(Collective& collective) {
    auto shape = std::make_shared<SumShape>(SumShape{.site_name = "site " + std::to_string(key_.site),
                                                     .dtype = dtype_,
                                                     .leaf_elements = {outcome_->values.size()},
                                                     .device_count = 1});
    collective.Start({.key = key_,
                      .shape = std::move(shape),
                      .inputs = {outcome_->values.data()},
                      .outputs = {outcome_->values.data()},
                      .done = [outcome = outcome_](const Failure* failure) {
                        std::lock_guard lock(outcome->mutex);
                        if (failure != nullptr) outcome->failure = *failure;
                        ++outcome->times_done;
                        outcome->changed.notify_all();
                      }});
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

// Waits until `condition` holds, for as long as a busy machine may need.
template <typename Condition>
bool Eventually(Condition condition) {
  for (int waited_ms = 0; waited_ms < 20'000 && !condition(); ++waited_ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

using FloatCall = Call<float>;
using IntCall = Call<int32_t>;

std::vector<UdpSocket> One(UdpSocket socket) {
  std::vector<UdpSocket> sockets;
  sockets.push_back(std::move(socket));
  return sockets;
}

// Switches and their hosts, with a thread for each host that does what a session does with events.
class Cluster {
 public:
  // With `heard_by`, the switches send results to its first group; rank r joins heard_by[r].
  explicit Cluster(uint32_t world_size, double warn_s = 5, double deadline_s = 30, uint32_t shard_count = 1,
                   const std::vector<Address>& heard_by = {}) {
    std::vector<std::vector<UdpSocket>> sockets(world_size);
    std::vector<std::vector<std::optional<UdpSocket>>> groups(world_size);
    TransportOptions options{
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
      hosts_.push_back(std::make_unique<Transport>(std::move(sockets[rank]), options, std::move(groups[rank])));
    }
    stalls_.resize(world_size);
    failures_.resize(world_size);
    for (uint32_t rank = 0; rank < world_size; ++rank) sessions_.emplace_back([this, rank] { Relay(rank); });
  }

  ~Cluster() {
    for (auto& host : hosts_) host->Close();
    stopping_ = true;
    for (std::thread& session : sessions_) session.join();
  }

  Transport& host(size_t rank) { return *hosts_[rank]; }
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
      const std::optional<TransportEvent> event = hosts_[rank]->WaitEvent(0.2);
      if (!event.has_value()) continue;
      if (const auto* order = std::get_if<OrderMessage>(&*event)) {
        for (uint32_t other = 0; other < hosts_.size(); ++other) {
          if (other != rank) hosts_[other]->DeliverOrderMessage(order->bytes);
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
  std::vector<std::unique_ptr<Transport>> hosts_;
  std::mutex mutex_;
  std::vector<std::vector<Stalled>> stalls_;
  std::vector<std::vector<Failure>> failures_;
  std::atomic<int> groups_lost_ = 0;
  std::atomic<bool> stopping_ = false;
  std::vector<std::thread> sessions_;
};

std::vector<float> Ramp(size_t count, float factor) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = factor * static_cast<float>(i % 1000);
  return values;
}

// All ranks of the cluster sum `count` floats; each gives `factor` times the ramp.
void SumRamps(Cluster& cluster, uint32_t world_size, uint32_t execution, size_t count) {
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

TEST(Transport, group_resultsComeByMulticast) {
  if (!LoopbackCarriesMulticast()) GTEST_SKIP() << "no multicast on this machine's loopback interface";
  const Address group = LoopbackGroup();
  for (const uint32_t shards : {1u, 3u}) {
    Cluster cluster(3, 5, 30, shards, {group, group, group});
    for (uint32_t i = 0; i < 3; ++i) SumRamps(cluster, 3, i, 300'000);
    for (uint32_t shard = 0; shard < shards; ++shard) {
      const UdpSwitchStats stats = cluster.udp_switch(shard).stats();
      EXPECT_GT(stats.results_multicast, 100u);
      EXPECT_EQ(stats.results_multicast, stats.verdicts[static_cast<size_t>(Verdict::kComplete)]);
    }
    EXPECT_EQ(cluster.groups_lost(), 0);
  }
}

TEST(Transport, group_thatNoLongerReachesARank_isGivenUp) {
  if (!LoopbackCarriesMulticast()) GTEST_SKIP() << "no multicast on this machine's loopback interface";
  const Address group = LoopbackGroup();
  Cluster cluster(3, 5, 30, 1, {group, LoopbackGroup(), group});  // rank 1 hears another port
  SumRamps(cluster, 3, 0, 300'000);
  // The others as well, as nothing comes by multicast from then on.
  ASSERT_TRUE(Eventually([&] { return cluster.groups_lost() >= 1; }));
  const uint64_t before = cluster.udp_switch().stats().results_multicast;
  SumRamps(cluster, 3, 1, 300'000);
  EXPECT_EQ(cluster.udp_switch().stats().results_multicast, before);
}

TEST(Transport, start_sumsFloats) {
  constexpr size_t kCount = 300'000;  // several windows
  for (const uint32_t world_size : {2u, 4u}) {
    Cluster cluster(world_size);
    std::vector<std::unique_ptr<FloatCall>> calls;
    float factor = 0;
    for (uint32_t rank = 0; rank < world_size; ++rank) {
      factor += static_cast<float>(rank + 1);
      calls.push_back(std::make_unique<FloatCall>(7, 0, DType::kFloat32, Ramp(kCount, static_cast<float>(rank + 1))));
      calls.back()->Start(cluster.host(rank));
    }
    const std::vector<float> expected = Ramp(kCount, factor);
    for (uint32_t rank = 0; rank < world_size; ++rank) {
      ASSERT_TRUE(calls[rank]->Wait()) << "rank " << rank;
      ASSERT_FALSE(calls[rank]->failure().has_value()) << calls[rank]->failure()->message;
      // These small whole numbers fit a lane, so the sum is exact.
      ASSERT_EQ(calls[rank]->values(), expected) << "rank " << rank;
      ASSERT_TRUE(cluster.host(rank).Drain(20));
      ASSERT_EQ(cluster.host(rank).stats().sums_completed, 1u);
      ASSERT_EQ(cluster.host(rank).stats().tensor_bytes, kCount * 4);
      ASSERT_EQ(calls[rank]->times_done(), 1);
    }
  }
}

// What comes from a GPU wakes the transport of either rank; results of what is there come before.
TEST(Transport, ready_wakesTheTransport) {
  constexpr size_t kCount = 100'000, kFirst = 30'000;
  for (const uint32_t rank : {0u, 1u}) {
    SCOPED_TRACE(rank);
    Cluster cluster(2);
    FloatCall other(7, 0, DType::kFloat32, std::vector<float>(kCount, 1));
    other.Start(cluster.host(1 - rank));
    std::vector<float> values(kCount);
    std::fill_n(values.begin(), kFirst, 2.0f);
    std::atomic<uint64_t> written = 0;
    std::atomic<bool> done = false;
    const SumKey key{.site = 7};
    Transport& host = cluster.host(rank);
    host.Start({.key = key,
                .shape = std::make_shared<SumShape>(
                    SumShape{.site_name = "site 7", .dtype = DType::kFloat32, .leaf_elements = {kCount}}),
                .inputs = {values.data()},
                .outputs = {values.data()},
                .done = [&](const Failure* failure) { done = failure == nullptr; },
                .ready_elements = kFirst,
                .written = [&](uint64_t elements) { written = elements; }});
    ASSERT_TRUE(Eventually([&] { return written == 23'040; }));  // a segment
    EXPECT_EQ(values[23'039], 3);
    EXPECT_FALSE(done);
    std::fill(values.begin() + kFirst, values.end(), 2.0f);
    host.Ready(key, kCount);
    ASSERT_TRUE(Eventually([&] { return done.load(); }));
    EXPECT_EQ(values, std::vector<float>(kCount, 3));
    ASSERT_TRUE(other.Wait());
    EXPECT_EQ(other.values(), values);
    host.Ready(key, kCount);  // of a sum that is over
    SumRamps(cluster, 2, 1, 1000);
  }
}

TEST(Transport, deadline_ofThisHostsGpu) {
  Cluster cluster(2, 0.05, 0.4);
  FloatCall other(7, 0, DType::kFloat32, Ramp(50'000, 1));
  other.Start(cluster.host(1));
  std::vector<float> values(50'000);
  std::promise<std::string> message;
  cluster.host(0).Start({.key = {.site = 7},
                         .shape = std::make_shared<SumShape>(
                             SumShape{.site_name = "site 7", .dtype = DType::kFloat32, .leaf_elements = {50'000}}),
                         .inputs = {values.data()},
                         .outputs = {values.data()},
                         .done = [&](const Failure* failure) { message.set_value(failure ? failure->message : ""); },
                         .ready_elements = 30'000});
  EXPECT_NE(message.get_future().get().find("this host's GPU hasn't delivered"), std::string::npos);
  EXPECT_TRUE(cluster.stalls(0).back().stall.waits_for_gpu);
}

TEST(Transport, start_overSeveralSwitches) {
  constexpr size_t kCount = 300'000;
  Cluster cluster(2, 5, 30, /*shard_count=*/3);
  FloatCall one(7, 0, DType::kFloat32, Ramp(kCount, 1));
  FloatCall two(7, 0, DType::kFloat32, Ramp(kCount, 2));
  one.Start(cluster.host(0));
  two.Start(cluster.host(1));
  ASSERT_TRUE(one.Wait());
  ASSERT_TRUE(two.Wait());
  EXPECT_EQ(one.values(), Ramp(kCount, 3));
  EXPECT_EQ(two.values(), Ramp(kCount, 3));
  for (size_t shard : {0u, 1u, 2u}) {
    // A third of the 834 data chunks and the 14 of exponents.
    const auto& verdicts = cluster.udp_switch(shard).stats().verdicts;
    EXPECT_NEAR(static_cast<double>(verdicts[static_cast<size_t>(Verdict::kComplete)]), 848 / 3, 20);
  }
}

TEST(Transport, start_manySumsInAnyOrderOfIssue) {
  constexpr uint32_t kWorldSize = 3;
  constexpr uint32_t kSites = 40;
  Cluster cluster(kWorldSize);
  for (uint32_t execution = 0; execution < 5; ++execution) {
    std::vector<std::vector<std::unique_ptr<IntCall>>> calls(kWorldSize);
    std::vector<std::thread> programs;
    for (uint32_t rank = 0; rank < kWorldSize; ++rank) {
      for (uint32_t site = 0; site < kSites; ++site) {
        const std::vector<int32_t> values(1 + site * 97, static_cast<int32_t>((rank + 1) * 1000 + site));
        calls[rank].push_back(std::make_unique<IntCall>(100 + site, execution, DType::kInt32, values));
      }
      programs.emplace_back([&, rank] {
        std::vector<uint32_t> order(kSites);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), std::mt19937(execution * 10 + rank));
        for (const uint32_t site : order) calls[rank][site]->Start(cluster.host(rank));
      });
    }
    for (std::thread& program : programs) program.join();
    for (uint32_t rank = 0; rank < kWorldSize; ++rank) {
      for (uint32_t site = 0; site < kSites; ++site) {
        ASSERT_TRUE(calls[rank][site]->Wait()) << "rank " << rank << ", site " << site;
        ASSERT_FALSE(calls[rank][site]->failure().has_value()) << calls[rank][site]->failure()->message;
        const std::vector<int32_t> expected(1 + site * 97, static_cast<int32_t>(6000 + 3 * site));
        ASSERT_EQ(calls[rank][site]->values(), expected) << "rank " << rank << ", site " << site;
      }
    }
  }
}

TEST(Transport, deadline_namesWhatItWaitedFor) {
  Cluster cluster(2, /*warn_s=*/0.2, /*deadline_s=*/3.5);
  FloatCall call(7, 3, DType::kFloat32, Ramp(10, 1));
  call.Start(cluster.host(0));
  ASSERT_TRUE(Eventually([&] { return !cluster.stalls(0).empty(); }));
  const auto [stall, stalled_s] = cluster.stalls(0)[0];
  EXPECT_GE(stalled_s, 0.2);
  EXPECT_EQ(stall.site_name, "site 7");
  EXPECT_EQ(cluster.udp_switch().VersionOf(stall.slot, stall.version).bitmap, 1u);
  EXPECT_FALSE(cluster.host(0).Drain(0.01));
  cluster.host(0).NoteStall("Missing: rank 1.");

  ASSERT_TRUE(call.Wait());
  const Failure failure = call.failure().value();
  EXPECT_EQ(failure.kind, "DeadlineExceededError");
  for (const char* part : {"site 7", "execution 3", "3.5 s", "slot 0", "version 0", "sequence 0", "switch 0",
                           "rank 0 of 2", "epoch 2", "Missing: rank 1.", "deadline_s"}) {
    EXPECT_NE(failure.message.find(part), std::string::npos) << part << " isn't in: " << failure.message;
  }
  EXPECT_TRUE(cluster.host(0).Drain(20));
  EXPECT_EQ(cluster.host(0).failure()->kind, failure.kind);
  ASSERT_TRUE(Eventually([&] { return !cluster.failures(0).empty(); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // a second one would be seen
  EXPECT_EQ(cluster.failures(0).size(), 1u);

  FloatCall later(7, 4, DType::kFloat32, Ramp(10, 1));
  later.Start(cluster.host(0));
  EXPECT_EQ(later.times_done(), 1);  // at once
  EXPECT_EQ(later.failure()->message, failure.message);
}

TEST(Transport, deadline_waitsForRankZero) {
  Cluster cluster(2, 0.1, 0.4);
  FloatCall call(7, 0, DType::kFloat32, Ramp(10, 1));
  call.Start(cluster.host(1));
  ASSERT_TRUE(call.Wait());
  EXPECT_NE(call.failure()->message.find("rank 0 hasn't started this sum"), std::string::npos)
      << call.failure()->message;
}

TEST(Transport, deadline_ofADifferentProgram) {
  Cluster cluster(2, 0.1, 2);  // by then rank 0's order has come to rank 1
  FloatCall here(7, 0, DType::kFloat32, Ramp(10, 1));
  FloatCall there(8, 0, DType::kFloat32, Ramp(10, 1));
  here.Start(cluster.host(0));
  there.Start(cluster.host(1));
  ASSERT_TRUE(here.Wait());
  ASSERT_TRUE(there.Wait());
  EXPECT_NE(here.failure()->message.find("site 7"), std::string::npos) << here.failure()->message;
  EXPECT_NE(there.failure()->message.find("rank 0 comes to site 7 first"), std::string::npos)
      << there.failure()->message;
}

TEST(Transport, deadline_notWhileThereIsProgress) {
  Cluster cluster(2, 0.1, 2);
  std::vector<std::unique_ptr<IntCall>> calls;
  // Rank 0 starts all its sums now; rank 1 follows one at a time, together longer than the deadline.
  for (uint64_t site = 0; site < 8; ++site) {
    calls.push_back(std::make_unique<IntCall>(site, 0, DType::kInt32, std::vector<int32_t>(4, 1)));
    calls.back()->Start(cluster.host(0));
  }
  for (uint64_t site = 0; site < 8; ++site) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    IntCall call(site, 0, DType::kInt32, std::vector<int32_t>(4, 2));
    call.Start(cluster.host(1));
    ASSERT_TRUE(call.Wait());
    ASSERT_FALSE(call.failure().has_value()) << call.failure()->message;
  }
  for (auto& call : calls) {
    ASSERT_TRUE(call->Wait());
    EXPECT_EQ(call->values(), std::vector<int32_t>(4, 3));
  }
}

TEST(Transport, fail_firstFailureWins) {
  Cluster cluster(2);
  FloatCall call(7, 0, DType::kFloat32, Ramp(10, 1));
  call.Start(cluster.host(0));
  cluster.host(0).Fail({"HostLostError", "rank 1 is gone"});
  cluster.host(0).Fail({"SwitchLostError", "too late"});
  ASSERT_TRUE(call.Wait());
  EXPECT_EQ(call.failure()->kind, "HostLostError");
  EXPECT_EQ(cluster.host(0).failure()->message, "rank 1 is gone");
  EXPECT_TRUE(cluster.host(0).Drain(20));
  EXPECT_EQ(call.times_done(), 1);
}

// What a switch says at the join must not stop the process.
TEST(Transport, jobOutOfRange) {
  const auto make = [](auto&& change) {
    TransportOptions options{.job = {.world_size = 2, .shards = {{.job = 1, .epoch = 1}}, .slots_per_shard = 64}};
    change(options.job);
    Transport transport(One(UdpSocket::ConnectedTo("127.0.0.1", 9)), options);
  };
  EXPECT_NO_THROW(make([](JobConfig& job) { job.shards[0].slot_first = 65536 - 64; }));
  EXPECT_THROW(make([](JobConfig& job) { job.shards[0].slot_first = 65536 - 63; }), std::invalid_argument);
  EXPECT_THROW(make([](JobConfig& job) { job.shards[0].slot_first = 0xFFFFFFFF; }), std::invalid_argument);
  EXPECT_THROW(make([](JobConfig& job) { job.slots_per_shard = 0; }), std::invalid_argument);
  EXPECT_THROW(make([](JobConfig& job) { job.slots_per_shard = 65; }), std::invalid_argument);
  EXPECT_THROW(make([](JobConfig& job) { job.shards.clear(); }), std::invalid_argument);
  EXPECT_THROW(make([](JobConfig& job) { job.lanes_per_chunk = 2; }), std::invalid_argument);
  EXPECT_THROW(make([](JobConfig& job) { job.lanes_per_chunk = 361; }), std::invalid_argument);
  EXPECT_THROW(make([](JobConfig& job) { job.world_size = kMaxWorldSize + 1; }), std::invalid_argument);
  EXPECT_NO_THROW(make([](JobConfig& job) { job.world_size = kMaxWorldSize, job.rank = kMaxWorldSize - 1; }));
  EXPECT_THROW(make([](JobConfig& job) { job.shards[0].worker = 64; }), std::invalid_argument);
  EXPECT_THROW(make([](JobConfig& job) { job.rank = 2; }), std::invalid_argument);
}

TEST(Transport, announce_comesBeforeTheSumsOrder) {
  const TransportOptions options{
      .job = {.rank = 0, .world_size = 2, .shards = {{.job = 1, .epoch = 1}}, .slots_per_shard = kSlotCount}};
  FloatCall call(7, 0, DType::kFloat32, Ramp(10, 1));
  Transport transport(One(UdpSocket::ConnectedTo("127.0.0.1", 9)), options);
  transport.Announce({.name = "jit_step on 2 devices", .devices = "0,1", .fingerprint = "f", .identities = {"a", "a"}});
  call.Start(transport);
  const auto first = transport.WaitEvent(20), second = transport.WaitEvent(20);
  ASSERT_TRUE(first && second);
  const auto* program = std::get_if<ProgramInfo>(&*first);
  ASSERT_NE(program, nullptr);
  EXPECT_EQ(program->name, "jit_step on 2 devices");
  EXPECT_EQ(program->devices, "0,1");
  EXPECT_EQ(program->fingerprint, "f");
  EXPECT_EQ(program->identities, (std::vector<std::string>{"a", "a"}));
  EXPECT_TRUE(std::holds_alternative<OrderMessage>(*second));
  transport.Fail({"HostLostError", "rank 1"});
  transport.Announce({});
  EXPECT_TRUE(std::holds_alternative<Failure>(*transport.WaitEvent(20)));
  EXPECT_FALSE(transport.WaitEvent(0));
}

TEST(Transport, deliverOrderMessage_foreignDataFailsTheJob) {
  Cluster cluster(2);
  FloatCall call(7, 0, DType::kFloat32, Ramp(10, 1));
  call.Start(cluster.host(1));
  cluster.host(1).DeliverOrderMessage("no order message");
  ASSERT_TRUE(call.Wait());
  EXPECT_TRUE(call.failure().has_value());
  EXPECT_TRUE(cluster.host(1).failure().has_value());
}

TEST(Transport, close_failsPendingAndLaterSums) {
  Cluster cluster(2);
  FloatCall call(7, 0, DType::kFloat32, Ramp(10, 1));
  call.Start(cluster.host(0));
  cluster.host(0).Close();
  EXPECT_EQ(call.times_done(), 1);
  EXPECT_EQ(call.failure()->kind, "ClosedError");
  FloatCall later(7, 1, DType::kFloat32, Ramp(10, 1));
  later.Start(cluster.host(0));
  EXPECT_EQ(later.failure()->kind, "ClosedError");
  cluster.host(0).Close();
  EXPECT_TRUE(cluster.host(0).Drain(0));
  EXPECT_FALSE(cluster.host(0).failure().has_value());
  while (cluster.host(0).WaitEvent(0).has_value()) {
  }
  EXPECT_FALSE(cluster.host(0).WaitEvent(100).has_value());  // at once
}

// Who keeps it, as Python does until its garbage is collected, keeps no descriptors.
TEST(Transport, close_freesItsDescriptors) {
  const auto descriptors = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  Cluster cluster(2);
  const auto before = descriptors();
  cluster.host(0).Close();
  EXPECT_EQ(descriptors(), before - 2);  // its socket, and what wakes its thread
  cluster.host(0).Fail({"ClosedError", "late"});
  EXPECT_EQ(cluster.host(0).socket_stats().datagrams_unsent, 0u);
}

TEST(Transport, close_whileOthersStart) {
  for (int round = 0; round < 20; ++round) {
    Cluster cluster(2);
    std::vector<std::unique_ptr<IntCall>> calls;
    for (uint64_t site = 0; site < 400; ++site) {
      calls.push_back(std::make_unique<IntCall>(site, 0, DType::kInt32, std::vector<int32_t>(4, 2)));
    }
    std::thread program([&] {
      for (auto& call : calls) call->Start(cluster.host(0));
    });
    std::this_thread::sleep_for(std::chrono::microseconds(round * 10));
    cluster.host(0).Close();
    program.join();
    for (auto& call : calls) ASSERT_EQ(call->times_done(), 1);
  }
}

TEST(Transport, drain_nothingPending) {
  Cluster cluster(2);
  EXPECT_TRUE(cluster.host(0).Drain(0));
  EXPECT_EQ(cluster.host(1).world_size(), 2u);
}

}  // namespace
}  // namespace passing
