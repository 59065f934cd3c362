// The slot pool beside a plain model of it, and beside packets that claim anything.
#include "../tests/xla_ffi/switch/slot_pool_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "../tests/xla_ffi/switch/slot_packets.h"
#include "switch/slot_pool.h"

namespace passing {
namespace {

TEST(SlotPool, onPacket_agreesWithModel) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const uint32_t workers = 1 + random() % (seed % 3 == 0 ? 64 : 4);
    SlotPool pool(8);
    SlotPoolModel model(8);
    const auto base = static_cast<uint32_t>(random());  // often close to the wrap
    JobSlots job = MakeJob(3, workers, 4, 4);
    if (seed % 5 == 0) job.first_position = base, job.reach = 2;
    pool.AddJob(job);
    ASSERT_TRUE(model.AddJob(job));
    for (int i = 0; i < 400; ++i) {
      const auto worker = static_cast<uint16_t>(random() % workers);
      Lanes lanes(1 + (random() % 8 == 0), 0);
      for (int32_t& lane : lanes) lane = static_cast<int32_t>(random());
      Packet packet = From(worker, lanes);
      packet.header.slot = static_cast<uint16_t>(4 + random() % 2);
      packet.header.version = random() % 2;
      packet.header.flags = random() % 4 ? 0 : random() % 8;
      if (seed % 2) packet.header.lane_format = LaneFormat::kMaxInt32;
      packet.header.sequence = base + static_cast<uint32_t>(i / 50) + static_cast<uint32_t>(random() % 8 == 0) -
                               static_cast<uint32_t>(random() % 8 == 0);
      const SlotPoolModel::Answer expected = model.OnPacket(packet, Bytes(packet), AddressOf(3, worker));
      const Action action = pool.OnPacket(Bytes(packet), AddressOf(3, worker));
      ASSERT_STREQ(Name(action.verdict), Name(expected.verdict)) << "seed " << seed << ", packet " << i;
      ASSERT_TRUE(std::ranges::equal(action.packet, expected.packet)) << "seed " << seed << ", packet " << i;
    }
  }
}

// Whatever a packet claims, nothing outside the job's slots changes.
TEST(SlotPool, onPacket_randomHeadersStayInThePartition) {
  std::mt19937 random(11);
  SlotPool pool(16);
  pool.AddJob(MakeJob(3, 2, 8, 4));
  for (int i = 0; i < 100'000; ++i) {
    std::vector<uint8_t> packet(wire::kHeaderBytes + 4);
    Packet valid = From(static_cast<uint16_t>(random() % 2), {1});
    valid.header.slot = static_cast<uint16_t>(random() % 20);
    packet = Bytes(valid);
    packet[random() % packet.size()] = static_cast<uint8_t>(random());
    pool.OnPacket(packet, AddressOf(3, static_cast<uint16_t>(random() % 2)));
  }
  for (uint32_t slot = 0; slot < 16; ++slot) {
    if (slot >= 8 && slot < 12) continue;
    EXPECT_TRUE(pool.VersionOf(slot, 0).empty && pool.VersionOf(slot, 1).empty) << slot;
  }
  EXPECT_GT(pool.Count(Verdict::kForeignSource), 0u);
  EXPECT_GT(pool.Count(Verdict::kForeignSlot), 0u);
}

}  // namespace
}  // namespace passing
