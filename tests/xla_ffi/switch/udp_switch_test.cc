#include "switch/udp_switch.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <deque>
#include <system_error>
#include <thread>

#include "../tests/xla_ffi/net/loopback_group.h"
#include "../tests/xla_ffi/switch/loopback_rank.h"
#include "net/clock.h"
#include "net/socket_address.h"
#include "net/udp_driver.h"
#include "wire/lanes.h"

namespace passing {
namespace {

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

  // A rank that asks again gets the result alone.
  ranks[3].Contribute(7, 4);
  ranks[3].Flush();
  EXPECT_EQ(ranks[3].Expect(1, 15), 1u);
  EXPECT_EQ(ranks[2].Expect(1, 15, 50), 0u);

  const UdpSwitchStats stats = udp_switch.stats();
  EXPECT_EQ(stats.packets_received, 5 * kSlotCount + 1);
  EXPECT_EQ(stats.packets_sent, 5 * kSlotCount + 1);
  EXPECT_EQ(stats.bytes_sent, (5 * kSlotCount + 1) * (wire::kHeaderBytes + 4 * wire::kLanesAtMtu1500));
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

}  // namespace
}  // namespace passing
