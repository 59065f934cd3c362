#include "host/packets/lane_masks.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "wire/header.h"
#include "wire/lanes.h"

namespace passing {
namespace {

constexpr LaneMasks::Key kKey{1, 2, 3};
using Lanes = std::vector<uint8_t>;
constexpr size_t kRoom = size_t{4} * wire::kMaxLanes;

Lanes Masked(uint32_t rank, uint32_t world_size, uint64_t position, const Lanes& lanes) {
  Lanes masked = lanes;
  masked.resize(kRoom);
  LaneMasks(kKey, rank, world_size).Mask(position, static_cast<uint32_t>(lanes.size() / 4), masked.data());
  masked.resize(lanes.size());
  return masked;
}

void Add(Lanes& sum, const Lanes& lanes) {
  for (size_t i = 0; i < lanes.size() / 4; ++i) {
    wire::StoreLane(sum.data(), i, wire::LoadLane(sum.data(), i) + wire::LoadLane(lanes.data(), i));
  }
}

TEST(LaneMasks, theSumOfAllRanksHasTheMaskThatEveryHostTakesOff) {
  std::mt19937_64 random(1);
  for (const uint32_t world_size : {1u, 2u, 3u, 8u, 1024u}) {
    for (const uint32_t count : {1u, 3u, 64u, 65u, 359u, wire::kMaxLanes}) {
      const uint64_t position = random();
      Lanes expected(size_t{4} * count), sum(expected.size());
      for (uint32_t rank = 0; rank < world_size; ++rank) {
        Lanes lanes(expected.size());
        for (uint8_t& byte : lanes) byte = static_cast<uint8_t>(random());
        Add(expected, lanes);
        Add(sum, Masked(rank, world_size, position, lanes));
      }
      for (const uint32_t rank : {0u, world_size - 1}) {
        Lanes unmasked(kRoom);
        LaneMasks(kKey, rank, world_size).Unmask(position, count, sum.data(), unmasked.data());
        unmasked.resize(sum.size());
        EXPECT_EQ(unmasked, expected) << world_size << " ranks, " << count << " lanes";
      }
    }
  }
}

// Neither positions that share their lower 32 bits, nor lanes, nor ranks share a mask. Single ones are the same by
// chance, of 26,784 some two with a probability of 8 %: so each is taken with the next one.
TEST(LaneMasks, noMaskComesTwice) {
  std::set<uint64_t> masks;
  size_t count = 0;
  for (const uint64_t position : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, uint64_t{1} << 63}) {
    for (const uint32_t rank : {0u, 1u, 2u}) {
      const Lanes mask = Masked(rank, 3, position, Lanes(size_t{4} * wire::kMaxLanes));
      for (uint32_t i = 0; i + 1 < wire::kMaxLanes; ++i, ++count) {
        masks.insert(uint64_t{wire::LoadLane(mask.data(), i)} << 32 | wire::LoadLane(mask.data(), i + 1));
      }
    }
  }
  EXPECT_EQ(masks.size(), count);
}

}  // namespace
}  // namespace passing
