#include "host/sums/segment_exponents.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "wire/lanes.h"

namespace passing {
namespace {

// Two guessed data chunks, the exponents behind them, and two places for the data of a wrong guess.
constexpr Segment kGuessing{
    .cell_count = 500, .block_count = 2, .exponent_chunks = 1, .data_chunks = 2, .repeat_chunks = 2, .exponents_at = 2};
constexpr uint32_t kFirstData = 0, kExponents = 2, kRepeatedData = 3;
constexpr ChunkRange kBlocks{.first = 0, .count = 2};

std::vector<int32_t> Lanes(const SegmentExponents& exponents, const ChunkRange& blocks, size_t count) {
  std::vector<uint8_t> bytes(4 * count);
  exponents.Write(blocks, bytes.data());
  std::vector<int32_t> lanes;
  for (size_t i = 0; i < count; ++i) lanes.push_back(static_cast<int32_t>(wire::LoadLane(bytes.data(), i)));
  return lanes;
}

void Take(SegmentExponents& exponents, const ChunkRange& blocks, const std::vector<int32_t>& lanes) {
  std::vector<uint8_t> bytes(4 * lanes.size());
  for (size_t i = 0; i < lanes.size(); ++i) wire::StoreLane(bytes.data(), i, static_cast<uint32_t>(lanes[i]));
  exponents.Take(blocks, bytes.data());
}

std::vector<int32_t> Copy(std::span<const int32_t> exponents) { return {exponents.begin(), exponents.end()}; }

TEST(SegmentExponents, integersHaveNone) {
  const SegmentExponents exponents({.cell_count = 10, .data_chunks = 1}, {}, {});
  EXPECT_TRUE(exponents.known());
  EXPECT_TRUE(exponents.of_job().empty());
}

TEST(SegmentExponents, aLargeSegmentWaitsForAllOfItsExponentChunks) {
  const Segment segment{.cell_count = 9000, .block_count = 3, .exponent_chunks = 2, .data_chunks = 5};
  SegmentExponents exponents(segment, {1, 2, 3}, /*last=*/std::vector<int32_t>{9, 9, 9});
  EXPECT_EQ(Lanes(exponents, {.first = 0, .count = 2}, 2), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(Lanes(exponents, {.first = 2, .count = 1}, 1), (std::vector<int32_t>{3}));
  Take(exponents, {.first = 2, .count = 1}, {-5});
  EXPECT_FALSE(exponents.known());
  Take(exponents, {.first = 0, .count = 2}, {7, 8});
  EXPECT_TRUE(exponents.known());
  EXPECT_EQ(Copy(exponents.of_job()), (std::vector<int32_t>{7, 8, -5}));
  EXPECT_FALSE(exponents.guessed_right());
  for (uint32_t chunk = 0; chunk < segment.chunk_count(); ++chunk) EXPECT_TRUE(exponents.Needs(segment, chunk));
}

// The guess is what the site had last, and no less than this host needs.
TEST(SegmentExponents, theGuess) {
  const SegmentExponents exponents(kGuessing, {3, -8}, std::vector<int32_t>{5, -9});
  EXPECT_EQ(Lanes(exponents, kBlocks, 6), (std::vector<int32_t>{3, 5, -5, -8, -8, 8}));
  EXPECT_EQ(Copy(exponents.Sending(kGuessing, kFirstData)), (std::vector<int32_t>{5, -8}));
  EXPECT_EQ(Copy(exponents.Sending(kGuessing, kRepeatedData)), (std::vector<int32_t>{3, -8}));
  // A site of another size, or an unknown one, tells nothing.
  for (const std::vector<int32_t>& last : {std::vector<int32_t>{5}, std::vector<int32_t>{}}) {
    const SegmentExponents own(kGuessing, {3, -8}, last);
    EXPECT_EQ(Copy(own.Sending(kGuessing, kFirstData)), (std::vector<int32_t>{3, -8}));
  }
}

TEST(SegmentExponents, aRightGuessMakesTheFirstDataCount) {
  SegmentExponents exponents(kGuessing, {3, kNoExponent}, std::vector<int32_t>{5, kNoExponent});
  const uint8_t lanes[] = {1, 2, 3, 4};
  exponents.Keep(1, /*flags=*/8, lanes);
  Take(exponents, kBlocks, {5, 5, -5, kNoExponent, kNoExponent, -kNoExponent});
  EXPECT_TRUE(exponents.known());
  EXPECT_TRUE(exponents.guessed_right());
  EXPECT_EQ(Copy(exponents.of_job()), (std::vector<int32_t>{5, kNoExponent}));
  EXPECT_TRUE(exponents.Needs(kGuessing, kFirstData));
  EXPECT_TRUE(exponents.Needs(kGuessing, kExponents));
  EXPECT_FALSE(exponents.Needs(kGuessing, kRepeatedData));
  const auto kept = exponents.TakeKept();
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].chunk, 1u);
  EXPECT_EQ(kept[0].flags, 8);
  EXPECT_EQ(kept[0].lanes, (std::vector<uint8_t>{1, 2, 3, 4}));
  EXPECT_TRUE(exponents.TakeKept().empty());
}

TEST(SegmentExponents, aWrongGuess) {
  const struct {
    const char* what;
    std::vector<int32_t> result;
  } cases[] = {
      {"this rank and others guessed too little", {6, 5, -5, -8, -8, 8}},
      {"all ranks guessed too much", {4, 5, -5, -8, -8, 8}},
      {"another rank guessed more", {5, 6, -5, -8, -8, 8}},
      {"another rank guessed less", {5, 5, -4, -8, -8, 8}},
      {"of the last block", {5, 5, -5, -7, -8, 8}},
      {"of a number without a negative", {INT32_MIN, 5, -5, -8, -8, 8}},
  };
  for (const auto& [what, result] : cases) {
    SCOPED_TRACE(what);
    SegmentExponents exponents(kGuessing, {5, -8}, {});
    exponents.Keep(0, 0, std::vector<uint8_t>(4));
    Take(exponents, kBlocks, result);
    EXPECT_TRUE(exponents.known());
    EXPECT_FALSE(exponents.guessed_right());
    EXPECT_EQ(Copy(exponents.Sending(kGuessing, kRepeatedData)), (std::vector<int32_t>{result[0], result[3]}));
    EXPECT_FALSE(exponents.Needs(kGuessing, kFirstData));
    EXPECT_TRUE(exponents.Needs(kGuessing, kExponents));
    EXPECT_TRUE(exponents.Needs(kGuessing, kRepeatedData));
    EXPECT_TRUE(exponents.TakeKept().empty());
  }
}

TEST(LastExponents, beyondItsBoundAllSitesAreForgotten) {
  LastExponents last;
  EXPECT_TRUE(last.Of(1).empty());
  for (uint64_t site = 1; site <= LastExponents::kMaxSites; ++site) last.Remember(site, std::vector<int32_t>{7, 8});
  EXPECT_EQ(Copy(last.Of(1)), (std::vector<int32_t>{7, 8}));
  last.Remember(0, std::vector<int32_t>{9});
  EXPECT_TRUE(last.Of(1).empty());
  EXPECT_EQ(Copy(last.Of(0)), (std::vector<int32_t>{9}));
  last.Remember(0, std::vector<int32_t>{});
  EXPECT_TRUE(last.Of(0).empty());
}

}  // namespace
}  // namespace passing
