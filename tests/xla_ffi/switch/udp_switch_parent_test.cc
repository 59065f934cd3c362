#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <deque>
#include <system_error>
#include <thread>

#include "../tests/xla_ffi/net/loopback_group.h"
#include "../tests/xla_ffi/switch/loopback_rank.h"
#include "net/clock.h"
#include "net/socket_address.h"
#include "net/udp_driver.h"
#include "switch/udp_switch.h"
#include "wire/lanes.h"

namespace passing {
namespace {

// Two switches with two ranks each, below a third one.
class Tree {
 public:
  // `upper`: each lower switch's way up joins it.
  explicit Tree(const std::optional<MulticastGroup>& upper = std::nullopt) {
    JobSlots top{.job = 9, .epoch = 4, .slot_first = 128, .slot_count = kSlotCount, .addresses = {}};
    for (uint16_t worker = 0; worker < 2; ++worker) {
      Uplink uplink{.socket = UdpSocket::ConnectedTo("127.0.0.1", root.port())};
      top.addresses.push_back(ResolveAddress("127.0.0.1", uplink.socket.port()));
      if (upper) uplink.group = uplink.socket.JoinGroup(upper->group);
      UdpSwitch& lower = lowers.emplace_back("127.0.0.1", 0, kSlotCount);
      std::deque<Rank>& below = ranks.emplace_back();
      for (uint16_t i = 0; i < 2; ++i) below.emplace_back("127.0.0.1", lower.port(), i);
      JobSlots job = MakeJob("127.0.0.1", below);
      job.parent = {.job = 9, .epoch = 4, .slot_first = 128, .worker = worker, .address = {}};
      lower.AddJob(job, std::nullopt, std::move(uplink));
    }
    root.AddJob(top, upper);
  }

  // Rank r of n contributes r + 1 to each.
  void Contribute(size_t lower, size_t rank, uint32_t first, uint32_t count) {
    for (uint32_t sequence = first; sequence < first + count; ++sequence) {
      ranks[lower][rank].Contribute(sequence, static_cast<int32_t>(2 * lower + rank + 1));
    }
    ranks[lower][rank].Flush();
  }
  void ContributeAll(uint32_t first) {
    for (size_t lower : {0, 1}) {
      for (size_t rank : {0, 1}) Contribute(lower, rank, first, kSlotCount);
    }
  }
  void ExpectAll() {
    for (std::deque<Rank>& below : ranks) {
      for (Rank& rank : below) EXPECT_EQ(rank.Expect(kSlotCount, 1 + 2 + 3 + 4), kSlotCount);
    }
  }

  UdpSwitch root{"127.0.0.1", 0, 256};
  std::deque<UdpSwitch> lowers;
  std::deque<std::deque<Rank>> ranks;
};

TEST(UdpSwitch, parent_sumsOverTwoLevels) {
  Tree tree;
  for (uint32_t round = 0; round < 4; ++round) {
    tree.ContributeAll(round * kSlotCount);
    tree.ExpectAll();
  }
  for (const UdpSwitch& lower : tree.lowers) {
    EXPECT_EQ(Count(lower, Verdict::kForwarded), 4 * kSlotCount);
    EXPECT_EQ(Count(lower, Verdict::kAnswered), 4 * kSlotCount);
    EXPECT_EQ(lower.stats().packets_sent, 3 * 4 * kSlotCount);  // up, and down to two ranks
  }
  EXPECT_EQ(Count(tree.root, Verdict::kComplete), 4 * kSlotCount);
  EXPECT_EQ(tree.root.stats().packets_sent, 2 * 4 * kSlotCount);
}

TEST(UdpSwitch, parent_whoAsksAgainMovesTheSumOn) {
  Tree tree;
  for (size_t rank : {0, 1}) tree.Contribute(0, rank, 7, 1);
  tree.Contribute(0, 1, 7, 1);
  tree.Contribute(1, 0, 7, 1);
  EXPECT_EQ(AwaitCount(tree.root, Verdict::kDuplicate), 1u);
  EXPECT_EQ(Count(tree.lowers[0], Verdict::kForwardedAgain), 1u);
  EXPECT_EQ(tree.ranks[0][1].Expect(1, 10, 100), 0u);
  tree.Contribute(1, 1, 7, 1);
  EXPECT_EQ(tree.ranks[0][1].Expect(1, 10), 1u);
  tree.Contribute(0, 1, 7, 1);
  EXPECT_EQ(tree.ranks[0][1].Expect(1, 10), 1u);
  EXPECT_EQ(Count(tree.lowers[0], Verdict::kResend), 1u);
}

TEST(UdpSwitch, parent_resultsComeByItsGroup) {
  if (!LoopbackCarriesMulticast()) GTEST_SKIP() << "no multicast on this machine's loopback interface";
  Tree tree(MulticastGroup{.group = LoopbackGroup(), .from = ResolveAddress("127.0.0.1", 0)});
  tree.ContributeAll(0);
  tree.ExpectAll();
  EXPECT_EQ(tree.root.stats().results_multicast, kSlotCount);
  EXPECT_EQ(tree.root.stats().packets_sent, kSlotCount);
}

TEST(UdpSwitch, parent_groupThatIsHeardNoLonger) {
  if (!LoopbackCarriesMulticast()) GTEST_SKIP() << "no multicast on this machine's loopback interface";
  Tree tree(MulticastGroup{.group = LoopbackGroup(), .from = ResolveAddress("127.0.0.1", 0)});
  tree.root.StopMulticast(9);  // as a network does that forgot who has joined: results come another way
  for (uint32_t round = 0; round < 64 / kSlotCount; ++round) {
    EXPECT_TRUE(tree.lowers[0].HearsParentsGroup(1));
    tree.ContributeAll(round * kSlotCount);
    tree.ExpectAll();
  }
  for (const UdpSwitch& lower : tree.lowers) {
    EXPECT_FALSE(lower.HearsParentsGroup(1));
    EXPECT_TRUE(lower.HearsParentsGroup(2));  // no such job
  }
}

TEST(UdpSwitch, parent_jobsComeAndGo) {
  Tree tree;
  UdpSwitch& lower = tree.lowers[0];
  JobSlots job = MakeJob("127.0.0.1", tree.ranks[0]);
  job.parent = {.job = 9, .epoch = 4, .slot_first = 128, .worker = 0, .address = {}};
  EXPECT_THROW(lower.AddJob(job), std::invalid_argument);  // a parent, and no way there
  Uplink uplink{.socket = UdpSocket::ConnectedTo("127.0.0.1", tree.root.port())};
  job.parent.reset();
  EXPECT_THROW(lower.AddJob(job, std::nullopt, std::move(uplink)), std::invalid_argument);
  tree.ContributeAll(0);
  tree.ExpectAll();

  lower.AddJob(job);  // now it is a job of its own
  for (size_t rank : {0, 1}) tree.Contribute(0, rank, 0, kSlotCount);
  for (Rank& rank : tree.ranks[0]) EXPECT_EQ(rank.Expect(kSlotCount, 1 + 2), kSlotCount);
  lower.RemoveJob(1);
  tree.lowers[1].RemoveJob(1);
  tree.ContributeAll(kSlotCount);
  EXPECT_EQ(tree.ranks[0][0].Expect(1, 10, 50), 0u);
}

// As when the system has no memory for another descriptor to wait for.
TEST(UdpSwitch, addJob_uplinkThatCannotBeListenedToLeavesNothingBehind) {
  UdpSwitch udp_switch("127.0.0.1", 0, 256);
  std::deque<Rank> ranks;
  for (uint16_t i = 0; i < 2; ++i) ranks.emplace_back("127.0.0.1", udp_switch.port(), i);
  const JobSlots alone = MakeJob("127.0.0.1", ranks);
  JobSlots below = alone;
  below.parent = {.job = 9, .epoch = 4, .slot_first = 128, .worker = 0, .address = {}};
  const auto uplink = [&](bool fails) {
    Uplink made{.socket = UdpSocket::ConnectedTo("127.0.0.1", udp_switch.port()),
                .group = UdpSocket::BoundTo("127.0.0.1", 0)};
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);  // which epoll refuses
    EXPECT_GE(null, 0);
    if (fails) {
      EXPECT_GE(dup2(null, made.group->fd()), 0);
    }
    close(null);
    return made;
  };
  EXPECT_THROW(udp_switch.AddJob(below, std::nullopt, uplink(/*fails=*/true)), std::system_error);
  ranks[0].Contribute(0, 9);
  ranks[0].Flush();
  EXPECT_EQ(AwaitCount(udp_switch, Verdict::kForeignJob), 1u);
  JobSlots other = alone;  // the slots are free, too
  other.job = 2;
  udp_switch.AddJob(other);
  udp_switch.RemoveJob(2);

  // A job that was here goes on when its next epoch fails, for this reason or another.
  udp_switch.AddJob(alone);
  EXPECT_THROW(udp_switch.AddJob(below, std::nullopt, uplink(/*fails=*/true)), std::system_error);
  below.slot_count = 3;
  EXPECT_THROW(udp_switch.AddJob(below, std::nullopt, uplink(/*fails=*/false)), std::invalid_argument);
  for (Rank& rank : ranks) {
    rank.Contribute(0, 4);
    rank.Flush();
  }
  for (Rank& rank : ranks) EXPECT_EQ(rank.Expect(1, 8), 1u);
}

}  // namespace
}  // namespace passing
