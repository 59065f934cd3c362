#include "host/packets/lane_product.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "wire/lanes.h"

namespace passing {
namespace {

constexpr int32_t kMostFactor = (1 << (kFactorBits - 1)) - 1, kLeastFactor = -kMostFactor - 1;

// Adds up to the same as one product after the other, by each way, for any number of lanes, at any address.
TEST(LaneProduct, isExact) {
  std::mt19937_64 random(1);
  for (const bool extreme : {false, true}) {
    std::array<int32_t, kMaxProductLanes + kFactorsBehind> factors;
    std::vector<uint8_t> bytes(4 * kMaxProductLanes + 1);
    uint8_t* const lanes = &bytes[1];
    for (int32_t& factor : factors) {
      factor = extreme ? kLeastFactor : static_cast<int32_t>(random()) >> (32 - kFactorBits);
    }
    for (uint32_t i = 0; i < kMaxProductLanes; ++i) {
      wire::StoreLane(lanes, i, extreme ? 1u << 31 : static_cast<uint32_t>(random()));
    }
    __int128 sum = 0;
    for (uint32_t count = 0; count <= kMaxProductLanes; ++count) {
      for (const LaneProduct product : AllLaneProducts()) {
        __int128 total = 0;
        for (const int64_t part : product(lanes, count, factors.data())) total += part;
        EXPECT_TRUE(total == sum) << count << (extreme ? " extreme lanes" : " lanes");
      }
      if (count < kMaxProductLanes) {
        sum += static_cast<__int128>(static_cast<int32_t>(wire::LoadLane(lanes, count))) * factors[count];
      }
    }
  }
}

}  // namespace
}  // namespace passing
