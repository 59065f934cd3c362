#include "host/packets/sum_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "host/numbers/fixed_point.h"
#include "wire/lanes.h"

namespace passing {
namespace {

constexpr SumCheck::Key kKey{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

using Lanes = std::vector<uint8_t>;  // as in a packet: data, then those of the check

class Ranks {
 public:
  Ranks(uint32_t world_size, uint32_t lane_count, SumCheck::Chunk chunk, uint64_t seed)
      : chunk_(chunk), lane_count_(lane_count), random_(seed) {
    for (uint32_t rank = 0; rank < world_size; ++rank) checks_.emplace_back(kKey, rank, world_size);
    for (uint32_t rank = 0; rank < world_size; ++rank) flags_.push_back(random_() % 8 == 0 ? random_() % 8 : 0);
  }

  uint8_t flags() const {
    uint8_t all = 0;
    for (const uint8_t flags : flags_) all |= flags;
    return all;
  }
  const SumCheck& check(uint32_t rank = 0) const { return checks_[rank]; }

  // Floats: no sum of all ranks' lanes leaves an int32.
  Lanes Contribution(uint32_t rank) {
    Lanes lanes(4 * (lane_count_ + SumCheck::kLanes));
    const auto bound = static_cast<uint32_t>((uint64_t{1} << 31) / checks_.size());
    for (uint32_t i = 0; i < lane_count_; ++i) {
      const auto word = static_cast<uint32_t>(random_());
      const bool extreme = random_() % 16 == 0;
      const uint32_t below = extreme ? (word & 1 ? bound - 1 : 1 - bound) : word % bound - bound / 2;
      wire::StoreLane(lanes.data(), i, chunk_.may_wrap ? word : below);
    }
    checks_[rank].Write(chunk_, flags_[rank], lane_count_, lanes.data());
    return lanes;
  }
  static void Add(Lanes& sum, const Lanes& lanes) {
    for (size_t i = 0; i < lanes.size() / 4; ++i) {
      wire::StoreLane(sum.data(), i, wire::LoadLane(sum.data(), i) + wire::LoadLane(lanes.data(), i));
    }
  }
  Lanes Sum() {
    Lanes sum(4 * (lane_count_ + SumCheck::kLanes));
    for (uint32_t rank = 0; rank < checks_.size(); ++rank) Add(sum, Contribution(rank));
    return sum;
  }
  bool Holds(const Lanes& lanes) const { return checks_[0].Holds(chunk_, flags(), lane_count_, lanes.data()); }

 private:
  const SumCheck::Chunk chunk_;
  const uint32_t lane_count_;
  std::mt19937_64 random_;
  std::vector<SumCheck> checks_;
  std::vector<uint8_t> flags_;
};

const SumCheck::Chunk kFloats{.position = 77, .digest = 5, .may_wrap = false};
const SumCheck::Chunk kIntegers{.position = 77, .digest = 0, .may_wrap = true};

TEST(SumCheck, holdsForTheSumOfAllRanks) {
  for (const SumCheck::Chunk& chunk : {kFloats, kIntegers}) {
    for (const uint32_t world_size : {1u, 2u, 3u, 64u, 1024u}) {
      for (const uint32_t lanes : {1u, 2u, 61u, wire::kMaxLanes - SumCheck::kLanes}) {
        Ranks ranks(world_size, lanes, chunk, world_size * lanes);
        EXPECT_TRUE(ranks.Holds(ranks.Sum())) << world_size << " ranks, " << lanes << " lanes";
      }
    }
  }
}

TEST(SumCheck, anyAlteredLaneIsSeen) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 20'000; ++trial) {
    Ranks ranks(3, 20, kFloats, static_cast<uint64_t>(trial) % 10);
    Lanes sum = ranks.Sum();
    const size_t at = random() % (sum.size() / 4);
    const uint32_t change = random() % 2 == 0 ? 1u << random() % 32 : static_cast<uint32_t>(random()) | 1;
    wire::StoreLane(sum.data(), at, wire::LoadLane(sum.data(), at) + change);
    ASSERT_FALSE(ranks.Holds(sum)) << "lane " << at << " plus " << change;
  }
}

// Only the sum of both codes' lanes tells the code, and 2^44 is 17 there.
TEST(SumCheck, aCodeIsOneNumberModuloThePrime) {
  Ranks ranks(3, 20, kFloats, 1);
  const Lanes sum = ranks.Sum();
  const auto with = [&](uint32_t high, uint32_t low) {
    Lanes changed = sum;
    wire::StoreLane(changed.data(), 21, wire::LoadLane(sum.data(), 21) + high);
    wire::StoreLane(changed.data(), 22, wire::LoadLane(sum.data(), 22) + low);
    return ranks.Holds(changed);
  };
  EXPECT_TRUE(with(1u << 22, uint32_t{0} - 17));
  EXPECT_FALSE(with(1u << 22, 0));
  EXPECT_FALSE(with(1, 0));
  EXPECT_FALSE(with(0, 17));
}

// A flip of bit 31 passes with a probability of 1/4, of bit 30 with 1/16 and so on: 1/3 for the 32 bits together.
TEST(SumCheck, whatIsWrongInIntegersIsSeenMostly) {
  std::mt19937_64 random(1);
  int passed = 0;
  constexpr int kTrials = 20'000;
  for (int trial = 0; trial < kTrials; ++trial) {
    Ranks ranks(2, 20, kIntegers, static_cast<uint64_t>(trial) % 10);
    Lanes sum = ranks.Sum();
    const size_t at = random() % 20;
    wire::StoreLane(sum.data(), at, wire::LoadLane(sum.data(), at) ^ 1u << random() % 32);
    passed += ranks.Holds(sum);
  }
  EXPECT_LT(passed, kTrials / 32);
}

TEST(SumCheck, aRankThatIsMissingOrTwice) {
  for (const SumCheck::Chunk& chunk : {kFloats, kIntegers}) {
    Ranks ranks(3, 10, chunk, 5);
    const Lanes lanes[] = {ranks.Contribution(0), ranks.Contribution(1), ranks.Contribution(2)};
    for (const std::vector<int>& added : std::vector<std::vector<int>>{{0, 1}, {0, 1, 1}, {0, 0, 0}, {0, 1, 2, 2}}) {
      Lanes sum(lanes[0].size());
      for (const int rank : added) Ranks::Add(sum, lanes[rank]);
      EXPECT_FALSE(ranks.Holds(sum));
    }
    Lanes sum(lanes[0].size());
    for (const int rank : {2, 0, 1}) Ranks::Add(sum, lanes[rank]);
    EXPECT_TRUE(ranks.Holds(sum));
  }
}

TEST(SumCheck, anotherPositionDigestKeyOrFlags) {
  Ranks ranks(2, 10, kFloats, 5);
  const Lanes sum = ranks.Sum();
  const SumCheck& check = ranks.check();
  const auto holds = [&](const SumCheck& by, SumCheck::Chunk chunk, uint8_t flags) {
    return by.Holds(chunk, flags, 10, sum.data());
  };
  EXPECT_TRUE(holds(check, kFloats, ranks.flags()));
  EXPECT_TRUE(holds(ranks.check(1), kFloats, ranks.flags()));
  SumCheck::Chunk other = kFloats;
  other.position += uint64_t{1} << 32;
  EXPECT_FALSE(holds(check, other, ranks.flags()));
  other = kFloats;
  ++other.digest;
  EXPECT_FALSE(holds(check, other, ranks.flags()));
  for (uint8_t flags = 0; flags < 8; ++flags) EXPECT_EQ(holds(check, kFloats, flags), flags == ranks.flags());
  SumCheck::Key key = kKey;
  key[15] ^= 1;
  EXPECT_FALSE(holds(SumCheck(key, 0, 2), kFloats, ranks.flags()));
}

// The numbers that are added to codes are made for several positions at once. Whatever came before, a code is the same.
TEST(SumCheck, theOrderOfPositionsDoesNotMatter) {
  std::mt19937_64 random(1);
  const SumCheck often(kKey, 0, 2);
  const Lanes data(4 * (10 + SumCheck::kLanes), 1);
  std::set<Lanes> all;
  std::set<std::pair<uint64_t, uint64_t>> chunks;
  uint64_t position = 100;
  for (int trial = 0; trial < 2'000; ++trial) {
    position += random() % 4 == 0 ? random() % 20 - 10 : 1;
    const SumCheck::Chunk chunk{.position = position, .digest = random() % 16 == 0 ? 1u : 2u, .may_wrap = false};
    Lanes lanes = data, expected = data;
    often.Write(chunk, 0, 10, lanes.data());
    SumCheck(kKey, 0, 2).Write(chunk, 0, 10, expected.data());
    ASSERT_EQ(lanes, expected) << "position " << position;
    all.insert(lanes);
    chunks.insert({chunk.position, chunk.digest});
    Lanes sum = lanes, other = data;
    SumCheck(kKey, 1, 2).Write(chunk, 0, 10, other.data());
    Ranks::Add(sum, other);
    ASSERT_TRUE(often.Holds(chunk, 0, 10, sum.data())) << "position " << position;
  }
  EXPECT_EQ(all.size(), chunks.size());
}

TEST(SumCheck, digestsOfExponents) {
  const SumCheck check(kKey, 0, 2);
  EXPECT_EQ(check.DigestOf(7, {}), 7u);
  std::set<uint64_t> digests;
  std::vector<int32_t> exponents;
  for (int count = 1; count <= 400; ++count) {  // several hashes, one of the other
    exponents.push_back(0);
    digests.insert(check.DigestOf(7, exponents));
    EXPECT_NE(check.DigestOf(7, exponents), check.DigestOf(8, exponents));
    for (const size_t at : {size_t{0}, exponents.size() / 2, exponents.size() - 1}) {
      std::vector<int32_t> changed = exponents;
      changed[at] = 1 + static_cast<int32_t>(at);
      EXPECT_NE(check.DigestOf(7, changed), check.DigestOf(7, exponents));
      EXPECT_NE(check.DigestOf(7, changed), SumCheck(SumCheck::Key{}, 0, 2).DigestOf(7, changed));
    }
  }
  EXPECT_EQ(digests.size(), exponents.size());
}

TEST(SumCheck, digestsOfSegments) {
  const SumCheck check(kKey, 0, 2);
  const SegmentId id{.site = 1, .execution = 2, .step = 3, .segment = 4, .pass = 0};
  std::set<uint64_t> digests{check.DigestOf(id, 9), check.DigestOf(id, 10)};
  for (const auto field : {&SegmentId::execution, &SegmentId::step, &SegmentId::segment, &SegmentId::pass}) {
    SegmentId other = id;
    ++(other.*field);
    digests.insert(check.DigestOf(other, 9));
  }
  digests.insert(check.DigestOf({.site = 2, .execution = 2, .step = 3, .segment = 4}, 9));
  EXPECT_EQ(digests.size(), 7u);
}

TEST(SumCheck, numbersOfExponentChunks) {
  const SumCheck one(kKey, 0, 2), other(kKey, 1, 2);
  std::mt19937_64 random(1);
  constexpr int32_t kLimit = 1 << (SumCheck::kNumberBits - 1);
  int32_t below[SumCheck::kNumberLanes];  // sealed, they are in the same order
  std::fill(std::begin(below), std::end(below), std::numeric_limits<int32_t>::min());
  for (const int32_t number : {-kLimit, -1'100'000, -1, 0, 1, 1'050'000, kLimit - 1}) {
    Lanes sealed(4 * SumCheck::kNumberLanes), again(sealed);
    one.SealNumber(kFloats, 3, number, sealed.data());
    other.SealNumber(kFloats, 3, number, again.data());
    EXPECT_EQ(again, sealed);
    EXPECT_EQ(other.OpenNumber(kFloats, 3, sealed.data()), number);
    EXPECT_FALSE(other.OpenNumber({.position = 78, .digest = 5, .may_wrap = false}, 3, sealed.data()));
    EXPECT_FALSE(other.OpenNumber({.position = 77, .digest = 6, .may_wrap = false}, 3, sealed.data()));
    EXPECT_FALSE(other.OpenNumber(kFloats, 2, sealed.data()));
    for (size_t bit = 0; bit < 8 * sealed.size(); ++bit) {
      Lanes changed = sealed;
      changed[bit / 8] ^= 1 << bit % 8;
      EXPECT_FALSE(other.OpenNumber(kFloats, 3, changed.data())) << bit;
    }
    for (uint32_t lane = 0; lane < SumCheck::kNumberLanes; ++lane) {
      const auto at = static_cast<int32_t>(wire::LoadLane(sealed.data(), lane));
      EXPECT_LE(below[lane], at);
      below[lane] = at;
    }
  }
  for (int trial = 0; trial < 1000; ++trial) {
    const uint64_t any = random();
    EXPECT_FALSE(one.OpenNumber(kFloats, 3, reinterpret_cast<const uint8_t*>(&any)));
  }
}

}  // namespace
}  // namespace passing
