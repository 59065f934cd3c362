#include "host/sharding.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

namespace passing {
namespace {

TEST(Sharding, oneShardIsOneSwitch) {
  const Sharding sharding(1, 64);
  EXPECT_EQ(sharding.window(), 64u);
  for (uint64_t position = 0; position < 300; ++position) {
    const ShardSlot expected{
        .shard = 0, .slot = static_cast<uint32_t>(position % 64), .version = static_cast<uint8_t>(position / 64 % 2)};
    ASSERT_EQ(sharding.At(position), expected) << position;
  }
}

TEST(Sharding, sumsGuessUnlessAShardCouldBeSkippedForEver) {
  EXPECT_EQ(Sharding(1, 4).window_of_guesses(), 4u);
  EXPECT_EQ(Sharding(2, 32).window_of_guesses(), 64u);
  EXPECT_EQ(Sharding(2, 16).window_of_guesses(), 0u);
}

// What the proofs in docs/protocol.md rest on: a (shard, slot, version) belongs to one position modulo twice the
// window, also where the sequence wraps, which twice a window need not divide.
TEST(Sharding, aSlotVersionIsThePositionModuloTwoWindows) {
  for (const uint32_t shard_count : {1u, 2u, 3u, 5u, 8u, 64u}) {
    for (const uint32_t slots_per_shard : {1u, 4u, 16u, 256u}) {
      const Sharding sharding(shard_count, slots_per_shard);
      const uint64_t period = 2 * uint64_t{sharding.window()};
      ASSERT_EQ(period, 2 * uint64_t{shard_count} * slots_per_shard);
      for (const uint64_t first : {uint64_t{0}, (uint64_t{1} << 32) - 7}) {
        std::map<std::tuple<uint32_t, uint32_t, uint8_t>, uint64_t> positions;
        for (uint64_t position = first; position < first + period; ++position) {
          const ShardSlot place = sharding.At(position);
          ASSERT_LT(place.shard, shard_count);
          ASSERT_LT(place.slot, slots_per_shard);
          ASSERT_LT(place.version, 2);
          ASSERT_EQ(place.shard, sharding.ShardOf(position));
          ASSERT_TRUE(positions.emplace(std::tuple(place.shard, place.slot, place.version), position).second);
          ASSERT_EQ(sharding.At(position + period), place);
          // A window further the same slot's other version follows.
          const ShardSlot next = sharding.At(position + sharding.window());
          ASSERT_EQ(next.shard, place.shard);
          ASSERT_EQ(next.slot, place.slot);
          ASSERT_NE(next.version, place.version);
        }
      }
    }
  }
}

}  // namespace
}  // namespace passing
