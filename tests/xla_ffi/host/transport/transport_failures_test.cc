#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../tests/xla_ffi/host/support/loopback_cluster.h"
#include "../tests/xla_ffi/net/loopback_group.h"
#include "host/transport/transport.h"
#include "switch/udp_switch.h"

namespace passing {
namespace {

TEST(Transport, deadline_failsTheJobOnce) {
  LoopbackCluster cluster(2, /*warn_s=*/0.2, /*deadline_s=*/1);
  FloatCall call(7, 3, DType::kFloat32, Ramp(10, 1));
  call.Start(cluster.host(0));
  ASSERT_TRUE(Eventually([&] { return !cluster.stalls(0).empty(); }));
  const auto [stall, stalled_s] = cluster.stalls(0)[0];
  EXPECT_GE(stalled_s, 0.2);
  EXPECT_EQ(cluster.udp_switch().VersionOf(stall.slot, stall.version).bitmap, 1u);
  EXPECT_FALSE(cluster.host(0).Drain(0.01));
  cluster.host(0).NoteStall("Missing: rank 1.");

  ASSERT_TRUE(call.Wait());
  const Failure failure = call.failure().value();
  EXPECT_EQ(failure.kind, "DeadlineExceededError");
  EXPECT_NE(failure.message.find("Missing: rank 1."), std::string::npos) << failure.message;
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

TEST(Transport, fail_firstFailureWins) {
  LoopbackCluster cluster(2);
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

TEST(Transport, announce_comesBeforeTheSumsOrder) {
  const RankOptions options{
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
  LoopbackCluster cluster(2);
  FloatCall call(7, 0, DType::kFloat32, Ramp(10, 1));
  call.Start(cluster.host(1));
  cluster.host(1).DeliverOrderMessage("no order message");
  ASSERT_TRUE(call.Wait());
  EXPECT_TRUE(call.failure().has_value());
  EXPECT_TRUE(cluster.host(1).failure().has_value());
}

TEST(Transport, close_failsPendingAndLaterSums) {
  LoopbackCluster cluster(2);
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

// A closed transport that is kept, as by Python until its garbage is collected, keeps no descriptors.
TEST(Transport, close_freesItsDescriptors) {
  const auto descriptors = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  LoopbackCluster cluster(2);
  const auto before = descriptors();
  cluster.host(0).Close();
  EXPECT_EQ(descriptors(), before - 2);  // its socket, and what wakes its thread
  cluster.host(0).Fail({"ClosedError", "late"});
  EXPECT_EQ(cluster.host(0).socket_stats().datagrams_unsent, 0u);
}

TEST(Transport, close_whileOthersStart) {
  for (int round = 0; round < 20; ++round) {
    LoopbackCluster cluster(2);
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
  LoopbackCluster cluster(2);
  EXPECT_TRUE(cluster.host(0).Drain(0));
  EXPECT_EQ(cluster.host(1).world_size(), 2u);
}

}  // namespace
}  // namespace passing
