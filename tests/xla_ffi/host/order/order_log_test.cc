#include "host/order/order_log.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "host/sums/sum_passes.h"

namespace passing {
namespace {

constexpr PlanLimits kLimits{.lanes_per_chunk = 256, .window = 1024};
constexpr uint32_t kChunks = 90;  // of each segment

class OrderLogTest : public testing::Test {
 protected:
  // A sum of int32, whose segments all have kChunks.
  SumPass& Issue(uint64_t site, uint32_t segments) {
    auto shape = std::make_shared<SumSpec>(
        SumSpec{.site_name = "x", .dtype = DType::kInt32, .leaf_elements = {uint64_t{segments} * kSegmentLanes}});
    Sum sum{.key = {.site = site}, .spec = std::move(shape), .inputs = {}, .outputs = {}};
    log_.Issue(std::make_unique<ElementPass>(std::move(sum), kLimits, Rank{.world_size = 2}, /*started_us=*/0));
    return *log_.sums().Find({.site = site});
  }
  // Returns the index of the entry.
  uint64_t Append(uint64_t site, uint32_t segment, uint32_t chunk_count = kChunks) {
    log_.Append({.id = {.site = site, .segment = segment},
                 .chunk_count = chunk_count,
                 .index = next_index_,
                 .first_position = next_position_},
                /*digest=*/0);
    next_position_ += chunk_count;
    return next_index_++;
  }
  const SumPass* SumOf(uint64_t index) { return log_.WithIndex(index).sum; }
  std::unique_ptr<SumPass> Finish(uint64_t index) {
    PlacedSegment& placed = log_.WithIndex(index);
    placed.chunks_done = placed.entry.chunk_count;
    return log_.Finish(placed);
  }

  LastExponents last_exponents_;
  OrderLog log_{last_exponents_, Rank{.world_size = 2}};
  uint64_t next_index_ = 7;  // the log of a host that has sums behind it
  uint64_t next_position_ = 1000;
};

TEST_F(OrderLogTest, aLineAndItsSumMeetWhicheverComesFirst) {
  const SumPass& a = Issue(1, 2);
  const uint64_t a0 = Append(1, 0), b0 = Append(2, 0), b1 = Append(2, 1), a1 = Append(1, 1);
  EXPECT_EQ(SumOf(a0), &a);
  EXPECT_EQ(SumOf(a1), &a);
  EXPECT_EQ(SumOf(b0), nullptr);
  EXPECT_EQ(log_.to_send(), (std::set<uint64_t>{a0, a1}));
  const SumPass& b = Issue(2, 3);
  EXPECT_EQ(SumOf(b0), &b);
  EXPECT_EQ(SumOf(b1), &b);
  EXPECT_EQ(b.next_segment(), 2u);
  EXPECT_EQ(log_.to_send(), (std::set<uint64_t>{a0, b0, b1, a1}));
  EXPECT_EQ(log_.FirstOf(a), &log_.WithIndex(a0));
  EXPECT_EQ(log_.FirstOf(b), &log_.WithIndex(b0));
}

TEST_F(OrderLogTest, everyPositionHasItsLine) {
  const uint64_t first = Append(1, 0, 3), second = Append(2, 0, 5);
  next_position_ += 40;  // rank 0 deviated
  const uint64_t third = Append(3, 0, 1);
  EXPECT_EQ(log_.At(1000).entry.index, first);
  EXPECT_EQ(log_.At(1002).entry.index, first);
  EXPECT_EQ(log_.At(1003).entry.index, second);
  EXPECT_EQ(log_.At(1007).ChunkAt(1007), 4u);
  EXPECT_EQ(log_.At(1048).entry.index, third);
  log_.PopFront();
  EXPECT_EQ(log_.front().entry.index, second);
  EXPECT_EQ(log_.WithIndex(third).PositionOf(0), 1048u);
}

TEST_F(OrderLogTest, linesArePreparedWhenTheirElementsCome) {
  auto shape = std::make_shared<SumSpec>(
      SumSpec{.site_name = "x", .dtype = DType::kInt32, .leaf_elements = {2 * uint64_t{kSegmentLanes}}});
  Sum sum{.key = {.site = 1}, .spec = std::move(shape), .inputs = {}, .outputs = {}};
  sum.pieces.emplace().ready_elements = kSegmentLanes;
  log_.Issue(ElementPass::Of(std::move(sum), kLimits, Rank{.world_size = 2}, /*started_us=*/0));
  Issue(2, 1);
  const uint64_t first = Append(1, 0), late = Append(1, 1), other = Append(2, 0);
  EXPECT_TRUE(log_.Prepare(log_.WithIndex(first)));
  EXPECT_FALSE(log_.Prepare(log_.WithIndex(late)));
  EXPECT_TRUE(log_.Prepare(log_.WithIndex(other)));
  EXPECT_FALSE(log_.WaitsForElements(first));
  EXPECT_TRUE(log_.WaitsForElements(late));
  EXPECT_TRUE(log_.WaitsForElements(other));  // because segments are sent in order
  EXPECT_FALSE(log_.OnReady({.site = 3}, 7));
  EXPECT_TRUE(log_.OnReady({.site = 1}, 2 * uint64_t{kSegmentLanes}));
  EXPECT_TRUE(log_.Prepare(log_.WithIndex(late)));
  EXPECT_FALSE(log_.WaitsForElements(other));
}

// An entry from a wrong guess, a forged message or a hash collision must not touch the sum.
TEST_F(OrderLogTest, aLineThatDoesNotFitTheSumStaysEmpty) {
  const SumPass& sum = Issue(1, 2);
  const uint64_t too_early = Append(1, 1), too_short = Append(1, 0, kChunks - 1);
  EXPECT_EQ(SumOf(too_early), nullptr);
  EXPECT_EQ(SumOf(too_short), nullptr);
  EXPECT_EQ(sum.next_segment(), 0u);
  Append(1, 0);
  Append(1, 1);
  EXPECT_EQ(SumOf(Append(1, 2)), nullptr);  // it has no such segment
  EXPECT_EQ(sum.segments_left(), 0u);
  EXPECT_EQ(log_.to_send().size(), 2u);
}

TEST_F(OrderLogTest, droppedLinesGiveTheirSegmentsBack) {
  const SumPass& a = Issue(1, 3);
  const uint64_t a0 = Append(1, 0), a1 = Append(1, 1);
  Append(2, 0);
  EXPECT_TRUE(log_.Reaches(a1 + 1));
  EXPECT_FALSE(log_.Reaches(a1 + 2));
  EXPECT_EQ(log_.DropFrom(a1), 1000 + kChunks);
  EXPECT_FALSE(log_.Reaches(a1));
  EXPECT_EQ(a.next_segment(), 1u);
  EXPECT_EQ(log_.to_send(), std::set<uint64_t>{a0});

  next_index_ = a1;
  const SumPass& b = Issue(2, 1);  // its entry is gone
  EXPECT_EQ(b.next_segment(), 0u);
  EXPECT_EQ(SumOf(Append(2, 0)), &b);
  EXPECT_EQ(SumOf(Append(1, 1)), &a);
}

TEST_F(OrderLogTest, linesWithResultsCanNotBeDropped) {
  Issue(1, 2);
  const uint64_t a0 = Append(1, 0), a1 = Append(1, 1);
  log_.WithIndex(a1).chunks_done = 1;
  EXPECT_EQ(log_.DropFrom(a0), std::nullopt);
}

// The first of two entries for one segment counts, also after the second was dropped.
TEST_F(OrderLogTest, ofTwoLinesForOneSegmentTheFirstCounts) {
  const uint64_t first = Append(1, 0), second = Append(1, 0);
  EXPECT_EQ(log_.DropFrom(second), 1000 + kChunks);
  const SumPass& sum = Issue(1, 1);
  EXPECT_EQ(SumOf(first), &sum);
}

TEST_F(OrderLogTest, aSumEndsWithTheLastOfItsLines) {
  const SumPass& sum = Issue(1, 2);
  const uint64_t first = Append(1, 0), last = Append(1, 1);
  EXPECT_EQ(Finish(last), nullptr);
  EXPECT_EQ(SumOf(last), nullptr);
  EXPECT_EQ(log_.to_send(), std::set<uint64_t>{first});
  EXPECT_EQ(log_.sums().Find({.site = 1}), &sum);
  EXPECT_EQ(Finish(first).get(), &sum);
  EXPECT_TRUE(log_.sums().empty());
  EXPECT_TRUE(log_.to_send().empty());
}

TEST_F(OrderLogTest, smallSumsGuessTheExponentsThatTheirSiteHadLast) {
  last_exponents_.Remember({.site = 4}, std::vector<int32_t>{5});
  auto shape = std::make_shared<SumSpec>(SumSpec{.site_name = "x", .dtype = DType::kFloat32, .leaf_elements = {1}});
  const struct {
    uint64_t site;
    float element;
    int32_t sent_at;
  } cases[] = {{4, 1, 5 + LastExponents::kGuessRoom},
               {6, 1, LastExponents::kFirstGuess},  // nothing is known of this site
               {7, 1000, 10}};                      // too large for that guess: its own exponent
  for (const auto& [site, element, sent_at] : cases) {
    float data = element;
    Sum sum{.key = {.site = site}, .spec = shape, .inputs = {&data}, .outputs = {&data}};
    log_.Issue(std::make_unique<ElementPass>(std::move(sum), kLimits, Rank{.world_size = 2}, 0));
    const SumPass* issued = log_.sums().Find({.site = site});
    const Segment& segment = issued->plan().segment(0);
    ASSERT_TRUE(segment.guesses());
    const PlacedSegment& placed = log_.WithIndex(Append(site, 0, segment.chunk_count()));
    ASSERT_EQ(placed.sum, issued);
    for (uint32_t chunk = 0; chunk < segment.chunk_count(); ++chunk) {
      if (!segment.CarriesGuessedData(chunk)) continue;
      EXPECT_EQ(placed.exponents.Sending(segment, chunk).front(), sent_at);
    }
  }
}

}  // namespace
}  // namespace passing
