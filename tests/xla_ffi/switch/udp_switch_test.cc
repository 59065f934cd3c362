#include "switch/udp_switch.h"

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
#include "net/clock.h"
#include "net/socket_address.h"
#include "net/udp_driver.h"
#include "wire/lanes.h"

namespace passing {
namespace {

constexpr uint32_t kSlotCount = 64;

// One rank that sends the same lane in every packet. It stays where it is: the driver refers to the socket.
class Rank {
 public:
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  Rank(const char* host, uint16_t switch_port, uint16_t rank)
      : socket_(UdpSocket::ConnectedTo(host, switch_port)), driver_(socket_), rank_(rank) {}

  Address address(const char* host) const { return ResolveAddress(host, socket_.port()); }
  UdpSocket Join(const Address& group) const { return socket_.JoinGroup(group); }

  void Contribute(uint32_t sequence, int32_t lane, uint16_t lane_count = 360, uint16_t job = 1) {
    const wire::Header header{.job = job,
                              .epoch = 1,
                              .worker = rank_,
                              .slot = static_cast<uint16_t>(sequence % kSlotCount),
                              .sequence = sequence,
                              .version = static_cast<uint8_t>(sequence / kSlotCount % 2),
                              .element_count = lane_count};
    uint8_t* packet = driver_.Reserve();
    wire::Encode(header, packet);
    for (uint16_t i = 0; i < lane_count; ++i) {
      wire::StoreLane(packet + wire::kHeaderBytes, i, static_cast<uint32_t>(lane));
    }
    driver_.Commit(wire::kHeaderBytes + size_t{4} * lane_count);
  }
  void Flush() { driver_.Flush(); }

  // Receives up to `count` results; the lanes must all be `lane`.
  size_t Expect(size_t count, int32_t lane, int timeout_ms = 20'000) {
    return ExpectOn(socket_, count, lane, timeout_ms);
  }

  static size_t ExpectOn(UdpSocket& socket, size_t count, int32_t lane, int timeout_ms = 20'000) {
    size_t results = 0;
    while (results < count) {
      pollfd readable{.fd = socket.fd(), .events = POLLIN, .revents = 0};
      if (poll(&readable, 1, timeout_ms) <= 0) break;
      socket.Receive([&](std::span<const uint8_t> packet, const Address&) {
        wire::Header header;
        ASSERT_EQ(wire::Decode(packet, header), wire::DecodeError::kNone);
        ASSERT_EQ(header.type, wire::PacketType::kResult);
        for (size_t i = 0; i < header.element_count; ++i) {
          ASSERT_EQ(wire::LoadLane(&packet[wire::kHeaderBytes], i), static_cast<uint32_t>(lane));
        }
        ++results;
      });
    }
    return results;
  }

 private:
  UdpSocket socket_;
  UdpDriver driver_;
  uint16_t rank_;
};

uint64_t Count(const UdpSwitch& udp_switch, Verdict verdict) {
  return udp_switch.stats().verdicts[static_cast<size_t>(verdict)];
}

// How often it came to this verdict, once it did at all.
uint64_t AwaitCount(const UdpSwitch& udp_switch, Verdict verdict) {
  const int64_t deadline_us = MonotonicUs() + 20'000'000;
  while (Count(udp_switch, verdict) == 0 && MonotonicUs() < deadline_us) poll(nullptr, 0, 1);
  return Count(udp_switch, verdict);
}

JobSlots MakeJob(const char* host, const std::deque<Rank>& ranks) {
  JobSlots job{.job = 1, .epoch = 1, .slot_first = 0, .slot_count = kSlotCount, .addresses = {}};
  for (const Rank& rank : ranks) job.addresses.push_back(rank.address(host));
  return job;
}

class UdpSwitchOn : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(UdpSwitchOn, sumsForAllRanks) {
  const auto [listen, host] = GetParam();
  UdpSwitch udp_switch(listen, 0, 256);
  std::deque<Rank> ranks;
  for (uint16_t i = 0; i < 5; ++i) ranks.emplace_back(host, udp_switch.port(), i);
  udp_switch.AddJob(MakeJob(host, ranks));
  for (int i = 0; i < 5; ++i) {
    for (uint32_t sequence = 0; sequence < kSlotCount; ++sequence) ranks[i].Contribute(sequence, i + 1);
    ranks[i].Flush();
  }
  for (Rank& rank : ranks) EXPECT_EQ(rank.Expect(kSlotCount, 15), kSlotCount);

  // Who asks again gets the result alone.
  ranks[3].Contribute(7, 4);
  ranks[3].Flush();
  EXPECT_EQ(ranks[3].Expect(1, 15), 1u);
  EXPECT_EQ(ranks[2].Expect(1, 15, 50), 0u);

  const UdpSwitchStats stats = udp_switch.stats();
  EXPECT_EQ(stats.packets_received, 5 * kSlotCount + 1);
  EXPECT_EQ(stats.packets_sent, 5 * kSlotCount + 1);
  EXPECT_EQ(stats.bytes_sent, (5 * kSlotCount + 1) * (wire::kHeaderBytes + 4 * wire::kMaxLanes));
  EXPECT_EQ(stats.verdicts[static_cast<size_t>(Verdict::kComplete)], kSlotCount);
  EXPECT_EQ(stats.verdicts[static_cast<size_t>(Verdict::kResend)], 1u);
}

TEST(UdpSwitch, aFloodOfOneJobLeavesAnotherItsSums) {
  UdpSwitch udp_switch("127.0.0.1", 0, 2 * kSlotCount);
  std::deque<Rank> loud, quiet;
  for (uint16_t i = 0; i < 2; ++i) {
    loud.emplace_back("127.0.0.1", udp_switch.port(), i);
    quiet.emplace_back("127.0.0.1", udp_switch.port(), i);
  }
  udp_switch.AddJob(MakeJob("127.0.0.1", quiet));
  JobSlots other = MakeJob("127.0.0.1", loud);
  other.job = 2;
  other.slot_first = kSlotCount;
  udp_switch.AddJob(other);
  std::atomic<bool> stop = false;
  std::thread flood([&] {
    while (!stop) {
      for (int i = 0; i < 1000; ++i) loud[0].Contribute(kSlotCount, 1, 360, 2);
      loud[0].Flush();
    }
  });
  for (uint32_t round = 0; round < 50; ++round) {
    for (Rank& rank : quiet) {
      for (uint32_t i = 0; i < kSlotCount; ++i) rank.Contribute(round * kSlotCount + i, 3);
      rank.Flush();
    }
    for (Rank& rank : quiet) ASSERT_EQ(rank.Expect(kSlotCount, 6), kSlotCount) << round;
  }
  stop = true;
  flood.join();
  EXPECT_EQ(udp_switch.Overflows().at(1), 0u);
}

INSTANTIATE_TEST_SUITE_P(Hosts, UdpSwitchOn,
                         testing::Values(std::pair("127.0.0.1", "127.0.0.1"), std::pair("::1", "::1"),
                                         std::pair("::", "127.0.0.1"), std::pair("0.0.0.0", "127.0.0.1")),
                         [](const auto& info) { return "Case" + std::to_string(info.index); });

TEST(UdpSwitch, group_resultsAreSentOnceUntilItStops) {
  if (!LoopbackCarriesMulticast()) GTEST_SKIP() << "no multicast on this machine's loopback interface";
  UdpSwitch udp_switch("0.0.0.0", 0, 256);
  const MulticastGroup group = {.group = LoopbackGroup(), .from = ResolveAddress("127.0.0.1", 0)};
  std::deque<Rank> ranks;
  std::vector<UdpSocket> joined;
  for (uint16_t i = 0; i < 3; ++i) {
    ranks.emplace_back("127.0.0.1", udp_switch.port(), i);
    joined.push_back(ranks.back().Join(group.group));
  }
  udp_switch.AddJob(MakeJob("127.0.0.1", ranks), group);
  const auto contribute = [&](uint32_t first) {
    for (Rank& rank : ranks) {
      for (uint32_t sequence = first; sequence < first + kSlotCount; ++sequence) rank.Contribute(sequence, 5);
      rank.Flush();
    }
  };
  contribute(0);
  for (UdpSocket& socket : joined) EXPECT_EQ(Rank::ExpectOn(socket, kSlotCount, 15), kSlotCount);
  UdpSwitchStats stats = udp_switch.stats();
  EXPECT_EQ(stats.packets_sent, kSlotCount);
  EXPECT_EQ(stats.results_multicast, kSlotCount);

  // Who asks again gets the result alone.
  ranks[1].Contribute(9, 5);
  ranks[1].Flush();
  EXPECT_EQ(ranks[1].Expect(1, 15), 1u);

  udp_switch.StopMulticast(1);
  contribute(kSlotCount);
  for (Rank& rank : ranks) EXPECT_EQ(rank.Expect(kSlotCount, 15), kSlotCount);
  for (UdpSocket& socket : joined) EXPECT_EQ(Rank::ExpectOn(socket, 1, 15, 0), 0u);
  stats = udp_switch.stats();
  EXPECT_EQ(stats.packets_sent, 4 * kSlotCount + 1);
  EXPECT_EQ(stats.results_multicast, kSlotCount);
  udp_switch.StopMulticast(2);  // no such job: nothing happens
}

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

TEST(UdpSwitch, group_fromAnAddressThatIsNotOurs_eachRankIsSentItsOwn) {
  UdpSwitch udp_switch("127.0.0.1", 0, 256);
  const MulticastGroup group = {.group = LoopbackGroup(), .from = ResolveAddress("198.51.100.1", 0)};
  EXPECT_THROW(udp_switch.Probe(group, {.job = 1, .epoch = 1, .nonce = 5}, 360), std::system_error);
  std::deque<Rank> ranks;
  for (uint16_t i = 0; i < 2; ++i) ranks.emplace_back("127.0.0.1", udp_switch.port(), i);
  udp_switch.AddJob(MakeJob("127.0.0.1", ranks), group);
  for (Rank& rank : ranks) {
    rank.Contribute(0, 4);
    rank.Flush();
  }
  for (Rank& rank : ranks) EXPECT_EQ(rank.Expect(1, 8), 1u);
  EXPECT_EQ(udp_switch.stats().results_multicast, 0u);
}

TEST(UdpSwitch, probe_reachesWhoHasJoined) {
  if (!LoopbackCarriesMulticast()) GTEST_SKIP() << "no multicast on this machine's loopback interface";
  UdpSwitch udp_switch("::", 0, 256);
  const MulticastGroup group = {.group = LoopbackGroup(), .from = ResolveAddress("127.0.0.1", 0)};
  const wire::ProbeName name = {.job = 5, .epoch = 6, .nonce = 0x87654321};
  UdpSocket host = UdpSocket::ConnectedTo("127.0.0.1", udp_switch.port()).JoinGroup(group.group);
  wire::ProbeListener listener(name);
  udp_switch.Probe(group, name, wire::kMaxLanes);
  const int64_t deadline_us = MonotonicUs() + 20'000'000;
  while (!listener.heard_all() && MonotonicUs() < deadline_us) {
    host.Receive([&](std::span<const uint8_t> packet, const Address&) { listener.OnPacket(packet); });
  }
  EXPECT_TRUE(listener.heard_all());
}

TEST(UdpSwitch, state_tellsWhoIsMissing) {
  UdpSwitch udp_switch("127.0.0.1", 0, 256);
  std::deque<Rank> ranks;
  for (uint16_t i = 0; i < 3; ++i) ranks.emplace_back("127.0.0.1", udp_switch.port(), i);
  udp_switch.AddJob(MakeJob("127.0.0.1", ranks));
  ranks[2].Contribute(5, 1);
  ranks[2].Flush();
  const int64_t deadline_us = MonotonicUs() + 20'000'000;
  while (udp_switch.VersionOf(5, 0).empty && MonotonicUs() < deadline_us) poll(nullptr, 0, 1);
  EXPECT_EQ(udp_switch.VersionOf(5, 0).bitmap, 0b100u);
  EXPECT_EQ(udp_switch.VersionOf(5, 0).sequence, 5u);
}

TEST(UdpSwitch, removeJob_packetsAreForeignFromThenOn) {
  UdpSwitch udp_switch("127.0.0.1", 0, 256);
  std::deque<Rank> ranks;
  ranks.emplace_back("127.0.0.1", udp_switch.port(), 0);
  udp_switch.AddJob(MakeJob("127.0.0.1", ranks));
  ranks[0].Contribute(0, 9);
  ranks[0].Flush();
  EXPECT_EQ(ranks[0].Expect(1, 9), 1u);
  udp_switch.RemoveJob(1);
  ranks[0].Contribute(0, 9);
  ranks[0].Flush();
  EXPECT_EQ(AwaitCount(udp_switch, Verdict::kForeignJob), 1u);
  EXPECT_EQ(ranks[0].Expect(1, 9, 50), 0u);
}

TEST(UdpSwitch, close_twiceAndWhileItWorks) {
  UdpSwitch udp_switch("127.0.0.1", 0, 256);
  std::deque<Rank> ranks;
  ranks.emplace_back("127.0.0.1", udp_switch.port(), 0);
  udp_switch.AddJob(MakeJob("127.0.0.1", ranks));
  for (uint32_t sequence = 0; sequence < 1000; ++sequence) ranks[0].Contribute(sequence, 1);
  ranks[0].Flush();
  udp_switch.Close();
  udp_switch.Close();
  udp_switch.RemoveJob(1);
  EXPECT_LE(udp_switch.stats().packets_sent, 1000u);
}

TEST(UdpSwitch, throwsWhenThePortIsTaken) {
  UdpSwitch udp_switch("127.0.0.1", 0, 16);
  EXPECT_THROW(UdpSwitch("127.0.0.1", udp_switch.port(), 16), std::system_error);
}

// Not a benchmark: one thread plays both ranks, window by window. Printed to notice a fall by a factor.
TEST(UdpSwitch, rateOfTwoRanks) {
  UdpSwitch udp_switch("127.0.0.1", 0, 256);
  std::deque<Rank> ranks;
  for (uint16_t i = 0; i < 2; ++i) ranks.emplace_back("127.0.0.1", udp_switch.port(), i);
  udp_switch.AddJob(MakeJob("127.0.0.1", ranks));
  constexpr uint32_t kRounds = 500;
  const int64_t start_us = MonotonicUs();
  for (uint32_t round = 0; round < kRounds; ++round) {
    for (Rank& rank : ranks) {
      for (uint32_t i = 0; i < kSlotCount; ++i) rank.Contribute(round * kSlotCount + i, 21);
      rank.Flush();
    }
    for (Rank& rank : ranks) ASSERT_EQ(rank.Expect(kSlotCount, 42), kSlotCount) << "round " << round;
  }
  const double seconds = static_cast<double>(MonotonicUs() - start_us) / 1e6;
  std::printf("%.0f packets/s into the switch, and as many out of it\n", 2.0 * kRounds * kSlotCount / seconds);
}

}  // namespace
}  // namespace passing
