#include "host/stripes.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

namespace passing {
namespace {

TEST(Stripes, oneShardIsOneSwitch) {
  const Stripes stripes(1, 64);
  EXPECT_EQ(stripes.window(), 64u);
  for (uint64_t position = 0; position < 300; ++position) {
    const Stripe expected{
        .shard = 0, .slot = static_cast<uint32_t>(position % 64), .version = static_cast<uint8_t>(position / 64 % 2)};
    ASSERT_EQ(stripes.At(position), expected) << position;
  }
}

// What the proofs in docs/protocol.md rest on: a (shard, slot, version) belongs to one position modulo twice the
// window, also where the sequence wraps, which twice a window need not divide.
TEST(Stripes, aSlotVersionIsThePositionModuloTwoWindows) {
  for (const uint32_t shard_count : {1u, 2u, 3u, 5u, 8u, 64u}) {
    for (const uint32_t slots_per_shard : {1u, 4u, 16u, 256u}) {
      const Stripes stripes(shard_count, slots_per_shard);
      const uint64_t period = 2 * uint64_t{stripes.window()};
      ASSERT_EQ(period, 2 * uint64_t{shard_count} * slots_per_shard);
      for (const uint64_t first : {uint64_t{0}, (uint64_t{1} << 32) - 7}) {
        std::map<std::tuple<uint32_t, uint32_t, uint8_t>, uint64_t> positions;
        for (uint64_t position = first; position < first + period; ++position) {
          const Stripe stripe = stripes.At(position);
          ASSERT_LT(stripe.shard, shard_count);
          ASSERT_LT(stripe.slot, slots_per_shard);
          ASSERT_LT(stripe.version, 2);
          ASSERT_EQ(stripe.shard, stripes.ShardOf(position));
          ASSERT_TRUE(positions.emplace(std::tuple(stripe.shard, stripe.slot, stripe.version), position).second);
          ASSERT_EQ(stripes.At(position + period), stripe);
          // A window further the same slot's other version follows.
          const Stripe next = stripes.At(position + stripes.window());
          ASSERT_EQ(next.shard, stripe.shard);
          ASSERT_EQ(next.slot, stripe.slot);
          ASSERT_NE(next.version, stripe.version);
        }
      }
    }
  }
}

}  // namespace
}  // namespace passing
