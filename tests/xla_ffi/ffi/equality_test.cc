#include "ffi/equality.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace passing {
namespace {

using Rank = std::vector<uint64_t>;  // the digests of its leaves

// All devices find this out if they are those of ranks 0, 1 and so on, one each, or as `ranks` says.
std::optional<Failure> Found(const Equality& equality, const std::vector<Rank>& devices,
                             std::vector<uint32_t> ranks = {}) {
  std::vector<int32_t> maxima(equality.lane_count(), INT32_MIN);
  for (uint32_t i = 0; i < devices.size(); ++i) {
    const auto lanes = equality.Lanes(devices[i], ranks.empty() ? i : ranks[i]);
    for (size_t j = 0; j < lanes.size(); ++j) maxima[j] = std::max(maxima[j], lanes[j]);
  }
  return equality.Difference(maxima);
}

TEST(Equality, EqualDigestsOfAnyValueAreNoDifference) {
  const Equality equality("here", {"['w']", "['b']"}, 8);
  for (const uint64_t digest : {0ull, ~0ull, 1ull << 63, 1ull << 31, 0x8000000080000000ull, 0x7fffffff7fffffffull}) {
    EXPECT_FALSE(Found(equality, {{digest, 5}, {digest, 5}, {digest, 5}})) << digest;
  }
}

TEST(Equality, ADifferenceInAnyBitIsSeen) {
  const Equality equality("here", {"['w']"}, 2);
  for (int bit = 0; bit < 64; ++bit) {
    for (const uint64_t digest : {0ull, ~0ull, 0x123456789abcdef0ull}) {
      EXPECT_TRUE(Found(equality, {{digest}, {digest ^ 1ull << bit}})) << bit;
    }
  }
}

TEST(Equality, NamesLeavesAndRanks) {
  const Equality equality("train.py:4:5 in step", {"['w'] float32[3]", "['b'] float32[1]"}, 8);
  const auto found = Found(equality, {{1, 2}, {1, 2}, {1, 3}, {1, 2}});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kind, "ProgramMismatchError");
  EXPECT_EQ(found->message.find("train.py:4:5 in step: "), 0u);
  EXPECT_NE(found->message.find("different parameters, which the program takes for equal on all: ['b'] float32[1]. "
                                "Here rank 2 has others than ranks 0, 1, 3, so"),
            std::string::npos)
      << found->message;
}

TEST(Equality, NamesSeveralGroups) {
  const Equality equality("here", {"x"}, 8);
  EXPECT_NE(Found(equality, {{1}, {2}})->message.find("Here rank 1 has others than rank 0, so"), std::string::npos);
  const auto three = Found(equality, {{3}, {2}, {2}, {9}})->message;
  EXPECT_NE(three.find("Here rank 0 has others than ranks 1, 2, rank 3 has yet others, so"), std::string::npos)
      << three;
}

TEST(Equality, NamesARankWhoseDevicesDiffer) {
  const Equality equality("here", {"x"}, 8);
  const auto found = Found(equality, {{1}, {1}, {1}, {2}}, {0, 0, 1, 1})->message;
  EXPECT_NE(found.find("Here the devices of rank 1 have different ones among themselves, so"), std::string::npos)
      << found;
}

TEST(Equality, NamesOnlySomeOfMany) {
  const Equality equality("here", std::vector<std::string>(9, "leaf"), 64);
  std::vector<Rank> ranks(64, Rank(9, 7));
  for (size_t rank = 32; rank < 64; ++rank) ranks[rank] = Rank(9, 10 + rank);
  const auto found = Found(equality, ranks)->message;
  EXPECT_NE(found.find("leaf, leaf, leaf, leaf and 5 more"), std::string::npos) << found;
  EXPECT_NE(found.find("ranks 0, 1, 2, 3, 4, 5, 6, 7 and 24 more"), std::string::npos) << found;
  EXPECT_NE(found.find(", and so on, so"), std::string::npos) << found;
}

TEST(Equality, IsDoneOnceForEachGroupAndSession) {
  Equality equality("here", {"x"}, 2);
  EXPECT_FALSE(equality.IsDone(0, 1));
  equality.Done(0, 1);
  EXPECT_TRUE(equality.IsDone(0, 1));
  EXPECT_FALSE(equality.IsDone(1, 1));
  EXPECT_FALSE(equality.IsDone(0, 2));
}

uint64_t DigestOf(const std::vector<float>& values) {
  return passing::DigestOf(values.data(), values.size() * sizeof(float));
}

TEST(Digest, DependsOnEveryBitAndOnTheSize) {
  std::mt19937 random(1);
  std::vector<uint8_t> bytes(77);
  for (auto& byte : bytes) byte = static_cast<uint8_t>(random());
  std::set<uint64_t> seen;
  for (size_t size = 0; size <= bytes.size(); ++size) seen.insert(passing::DigestOf(bytes.data(), size));
  EXPECT_EQ(seen.size(), bytes.size() + 1);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto other = bytes;
    other[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_TRUE(seen.insert(passing::DigestOf(other.data(), other.size())).second) << bit;
  }
}

TEST(Digest, FlippedSignsDoNotCancel) {
  const std::vector<float> zeros(64, 0.0f);
  std::set<uint64_t> seen{DigestOf(zeros)};
  for (uint32_t signs = 1; signs < 1 << 16; ++signs) {
    auto other = zeros;
    for (uint32_t i = 0; i < 16; ++i) {
      if (signs >> i & 1) other[i / 2 * 8 + i % 2] = -0.0f;  // all in one chain
    }
    seen.insert(DigestOf(other));
  }
  EXPECT_EQ(seen.size(), 1u << 16);
}

TEST(Digest, DependsOnTheOrder) {
  std::vector<float> values(64);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const uint64_t before = DigestOf(values);
  for (size_t i = 0; i + 8 < values.size(); ++i) {
    auto other = values;
    std::swap(other[i], other[i + 8]);  // the next word of the same chain
    EXPECT_NE(DigestOf(other), before) << i;
  }
}

}  // namespace
}  // namespace passing
