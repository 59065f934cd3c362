#include "host/window/sharding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>
#include <vector>

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

// Each shard has some of the 256 positions that a rank has in flight (congestion_window.h): an idle port would hold up
// the sum.
TEST(Sharding, eachShardHasSomeOfWhatIsInFlight) {
  constexpr uint32_t kInFlight = 256;
  for (uint32_t shard_count = 1; shard_count <= 64; ++shard_count) {
    SCOPED_TRACE(shard_count);
    const Sharding sharding(shard_count, std::bit_floor(4096 / shard_count));
    EXPECT_GE(sharding.run(), 2u);
    for (uint64_t low = 0; low < uint64_t{shard_count} * sharding.run(); ++low) {
      std::vector<uint32_t> in_flight(shard_count);
      for (uint64_t position = low; position < low + kInFlight; ++position) ++in_flight[sharding.ShardOf(position)];
      ASSERT_GE(*std::ranges::min_element(in_flight), sharding.run()) << low;
    }
  }
  EXPECT_EQ(Sharding(8, 128).run(), 32u);      // whose packets make half a super-packet
  EXPECT_EQ(Sharding(8, 16).run(), 16u);       // no longer than the shard has slots
  EXPECT_EQ(Sharding(8, 16, 2232).run(), 4u);  // half a super-packet of longer ones
  EXPECT_EQ(Sharding(16, 16, 2232).run(), 1u);
}

// The repeats of one that guessed right, and the data of the next one that guessed wrong.
TEST(Sharding, twoGuessesDontSkipAWholeTurnOfAShard) {
  EXPECT_EQ(Sharding(1, 4).window_of_guesses(), 4u);
  for (const uint32_t shard_count : {2u, 3u, 16u, 32u, 64u}) {
    for (const uint32_t slots_per_shard : {1u, 2u, 4u, 8u, 64u}) {
      const Sharding sharding(shard_count, slots_per_shard);
      for (uint32_t data_chunks = 1; 1 + 2 * data_chunks <= sharding.window_of_guesses(); ++data_chunks) {
        EXPECT_LT(2 * data_chunks, sharding.run());
      }
    }
  }
  EXPECT_GE(Sharding(16, 64).window_of_guesses(), 3u);  // a kilobyte takes one round trip
}

// The proofs in docs/internals/protocol.md rest on this: a (shard, slot, version) belongs to one position modulo twice
// the window, also where the sequence wraps, which twice a window need not divide.
TEST(Sharding, aSlotVersionIsThePositionModuloTwoWindows) {
  for (const uint32_t shard_count : {1u, 2u, 3u, 5u, 8u, 16u, 64u}) {
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
