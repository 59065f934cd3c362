#include "host/sums/segment_exponents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "wire/lanes.h"

namespace passing {
namespace {

// Two guessed data chunks, the exponents behind them, and two places for the data of a wrong guess.
constexpr Segment kGuessing{.cell_count = 300,
                            .block_count = 2,
                            .exponent_chunks = 1,
                            .per_block = kNumbersPerBlock,
                            .moves_bits = true,
                            .data_chunks = 2,
                            .repeat_chunks = 2,
                            .exponents_at = 2};
constexpr uint32_t kFirstData = 0, kExponents = 2, kRepeatedData = 3;
constexpr ChunkRange kBlocks{.first = 0, .count = 2};
constexpr int32_t kLeast = -(1 << 21), kGreatest = -kLeast - 1;
constexpr uint32_t kRank = 1, kRanks = 4;

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
  const SegmentExponents exponents({.cell_count = 10, .data_chunks = 1}, {}, kRank, kRanks);
  EXPECT_TRUE(exponents.known());
  EXPECT_TRUE(exponents.of_data().empty());
}

TEST(SegmentExponents, aLargeSegmentWaitsForAllOfItsExponentChunks) {
  const Segment segment{.cell_count = 9000,
                        .block_count = 3,
                        .exponent_chunks = 2,
                        .per_block = kNumbersPerBlock,
                        .moves_bits = true,
                        .data_chunks = 5};
  SegmentExponents exponents(segment, {1, -2, kNoExponent}, kRank, kRanks);
  EXPECT_EQ(exponents.NumberCount({.first = 0, .count = 2}), 4u);
  EXPECT_EQ(Lanes(exponents, {.first = 0, .count = 2}, 4), (std::vector<int32_t>{5, -5, -7, 7}));
  EXPECT_EQ(Lanes(exponents, {.first = 2, .count = 1}, 2), (std::vector<int32_t>{kLeast, kLeast}));
  Take(exponents, {.first = 2, .count = 1}, {kLeast, kLeast});
  EXPECT_FALSE(exponents.known());
  Take(exponents, {.first = 0, .count = 2}, {4 * 7 + 3, -5, -7, 7});
  EXPECT_TRUE(exponents.known());
  // Another rank has 7 in the first block, nobody else has anything in the second, nobody at all in the third.
  EXPECT_EQ(Copy(exponents.of_data()), (std::vector<int32_t>{7, kMovedBits, kNoExponent}));
  EXPECT_FALSE(exponents.guessed_right());
  for (uint32_t chunk = 0; chunk < segment.chunk_count(); ++chunk) EXPECT_TRUE(exponents.Needs(segment, chunk));
}

// Also where the exponents are equal, and for each pair of ranks that have something.
TEST(SegmentExponents, onlyARankThatIsAloneMovesBits) {
  const Segment segment{.cell_count = 256,
                        .block_count = 1,
                        .exponent_chunks = 1,
                        .per_block = kNumbersPerBlock,
                        .moves_bits = true,
                        .data_chunks = 1};
  const int32_t all[] = {kNoExponent, kMinExponent, -1, 0, 5, kMaxExponent};
  for (const uint32_t ranks : {1u, 2u, 3u, kMaxWorldSize}) {
    for (const uint32_t other : {0u, 1u, ranks - 1}) {
      for (const int32_t a : all) {
        for (const int32_t b : all) {
          if (other >= ranks) continue;
          const uint32_t rank = ranks / 2;
          SegmentExponents mine(segment, {a}, rank, ranks), others(segment, {b}, other, ranks);
          std::vector<int32_t> most = Lanes(mine, {0, 1}, 2);
          const std::vector<int32_t> theirs = Lanes(others, {0, 1}, 2);
          for (size_t i = 0; i < 2 && other != rank; ++i) most[i] = std::max(most[i], theirs[i]);
          Take(mine, {0, 1}, most);
          const bool i_have = a != kNoExponent, they_have = b != kNoExponent && other != rank;
          const int32_t expected = i_have && they_have   ? std::max(a, b)
                                   : i_have || they_have ? kMovedBits
                                                         : kNoExponent;
          ASSERT_EQ(mine.of_data()[0], expected) << ranks << ' ' << other << ' ' << a << ' ' << b;
        }
      }
    }
  }
}

TEST(SegmentExponents, theScalesOfANarrowWireHaveOneNumber) {
  const Segment segment{.cell_count = 9000, .block_count = 2, .exponent_chunks = 1, .per_block = 1, .data_chunks = 5};
  SegmentExponents exponents(segment, {0x3F8, kNoExponent}, kRank, kRanks);
  EXPECT_EQ(Lanes(exponents, kBlocks, 2), (std::vector<int32_t>{0x3F8, kLeast}));
  Take(exponents, kBlocks, {0x3F9, kLeast});
  EXPECT_EQ(Copy(exponents.of_data()), (std::vector<int32_t>{0x3F9, kNoExponent}));
}

TEST(SegmentExponents, theGuess) {
  SegmentExponents exponents(kGuessing, {3, -8}, kRank, kRanks);
  EXPECT_EQ(exponents.NumberCount(kBlocks), 8u);
  // Not exact at what the site had last, so this host's own exponents will do.
  EXPECT_EQ(Lanes(exponents, kBlocks, 8),
            (std::vector<int32_t>{13, -13, -31, 31, kGreatest, kGreatest, kGreatest, kGreatest}));
  EXPECT_EQ(Copy(exponents.Sending(kGuessing, kFirstData)), (std::vector<int32_t>{3, -8}));
  exponents.MakeGuess({.execution = 17, .step = 2, .exponents = {11, 0}});
  EXPECT_EQ(Lanes(exponents, kBlocks, 8), (std::vector<int32_t>{13, -13, -31, 31, 17, -17, 2, -2}));
  EXPECT_EQ(Copy(exponents.Sending(kGuessing, kFirstData)), (std::vector<int32_t>{11, 0}));
  EXPECT_EQ(Copy(exponents.Sending(kGuessing, kRepeatedData)), (std::vector<int32_t>{3, -8}));
}

TEST(SegmentExponents, aRightGuessMakesTheFirstDataCount) {
  SegmentExponents exponents(kGuessing, {3, kNoExponent}, kRank, kRanks);
  exponents.MakeGuess({.execution = 17, .step = 2, .exponents = {11, 8}});
  const uint8_t lanes[] = {1, 2, 3, 4};
  exponents.Keep(1, /*flags=*/8, lanes);
  Take(exponents, kBlocks, {22, -13, -40, 40, 17, -17, 2, -2});
  EXPECT_TRUE(exponents.known());
  EXPECT_TRUE(exponents.guessed_right());
  EXPECT_EQ(Copy(exponents.of_data()), (std::vector<int32_t>{11, 8}));
  EXPECT_EQ(Copy(exponents.of_job()), (std::vector<int32_t>{5, -10}));  // what the next sum guesses from
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
    bool exact;
    std::vector<int32_t> names;
  } cases[] = {
      {"this rank isn't exact", false, {kGreatest, kGreatest, kGreatest, kGreatest}},
      {"another rank isn't exact", true, {kGreatest, kGreatest, kGreatest, kGreatest}},
      {"another rank guessed from a later execution", true, {18, -17, 2, -2}},
      {"another rank guessed from an earlier one", true, {17, -16, 2, -2}},
      {"another rank guessed from another step", true, {17, -17, 3, -2}},
      {"another rank knows nothing of the site", true, {17, 1, 2, 1}},
      {"of a number without a negative", true, {INT32_MIN, -17, 2, -2}},
  };
  for (const auto& [what, exact, names] : cases) {
    SCOPED_TRACE(what);
    SegmentExponents exponents(kGuessing, {5, -8}, kRank, kRanks);
    if (exact) exponents.MakeGuess({.execution = 17, .step = 2, .exponents = {11, 0}});
    exponents.Keep(0, 0, std::vector<uint8_t>(4));
    std::vector<int32_t> result{24, -21, -31, 31};
    result.insert(result.end(), names.begin(), names.end());
    Take(exponents, kBlocks, result);
    EXPECT_TRUE(exponents.known());
    EXPECT_FALSE(exponents.guessed_right());
    EXPECT_EQ(Copy(exponents.Sending(kGuessing, kRepeatedData)), (std::vector<int32_t>{6, kMovedBits}));
    EXPECT_EQ(Copy(exponents.of_data()), (std::vector<int32_t>{6, kMovedBits}));
    EXPECT_FALSE(exponents.Needs(kGuessing, kFirstData));
    EXPECT_TRUE(exponents.Needs(kGuessing, kExponents));
    EXPECT_TRUE(exponents.Needs(kGuessing, kRepeatedData));
    EXPECT_TRUE(exponents.TakeKept().empty());
  }
}

TEST(LastExponents, theGuessIsFromTheLastSumOfThatSize) {
  LastExponents last;
  const Guess unknown = last.Of(4, 2);
  EXPECT_EQ(unknown.execution, -1);
  EXPECT_EQ(unknown.exponents, (std::vector<int32_t>(2, LastExponents::kFirstGuess)));
  last.Remember({.site = 4, .execution = (1 << 20) + 7, .step = 9}, std::vector<int32_t>{3, kNoExponent, 1024});
  const Guess guess = last.Of(4, 3);
  EXPECT_EQ(guess.execution, 7);
  EXPECT_EQ(guess.step, 9);
  EXPECT_EQ(guess.exponents,
            (std::vector<int32_t>{3 + LastExponents::kGuessRoom, LastExponents::kFirstGuess, kMaxExponent}));
  EXPECT_EQ(last.Of(4, 2).execution, -1);
}

TEST(LastExponents, beyondItsBoundAllSitesAreForgotten) {
  LastExponents last;
  for (uint64_t site = 1; site <= LastExponents::kMaxSites; ++site) {
    last.Remember({.site = site, .execution = 5}, std::vector<int32_t>{7, 8});
  }
  EXPECT_EQ(last.Of(1, 2).execution, 5);
  last.Remember({.site = 0, .execution = 5}, std::vector<int32_t>{9});
  EXPECT_EQ(last.Of(1, 2).execution, -1);
  EXPECT_EQ(last.Of(0, 1).execution, 5);
}

}  // namespace
}  // namespace passing
