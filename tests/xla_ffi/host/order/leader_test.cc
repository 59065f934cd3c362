#include "host/order/leader.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "host/sums/sum_passes.h"

namespace passing {
namespace {

// Rank 0's order and sums: sums of int32, whose segments all have as many chunks.
class LeaderTest : public testing::Test {
 protected:
  SumPass& Issue(uint64_t site, uint32_t segments, uint32_t execution = 0, uint64_t ready = UINT64_MAX,
                 Moves moves = Moves::kAll) {
    auto shape = std::make_shared<SumSpec>(SumSpec{.site_name = "x",
                                                   .dtype = DType::kInt32,
                                                   .leaf_elements = {uint64_t{segments} * kSegmentLanes},
                                                   .moves = moves});
    Sum sum{.key = {.site = site, .execution = execution}, .spec = std::move(shape), .inputs = {}, .outputs = {}};
    sum.pieces.emplace().ready_elements = ready;
    return sums_.Add(ElementPass::Of(std::move(sum), PlanLimits{.lanes_per_chunk = 256, .window = 1024},
                                     Rank{.world_size = 2}, /*started_us=*/0));
  }
  void Place(SumPass& sum) {
    std::string announcement;
    order_.Append(sum.IdOf(sum.next_segment()), 90, sum.plan().segment_count(), "x", announcement,
                  Leader::TakesTurns(order_, sums_, sum));
    announced_ += !announcement.empty();
    sums_.CountPlaced(sum);
  }
  // Until there is nothing to place; returns the sites.
  std::string PlaceAll(int64_t now_us = 0) {
    std::string sites;
    while (SumPass* sum = leader_.Next(order_, sums_, now_us)) {
      sites += std::to_string(sum->key().site);
      Place(*sum);
    }
    return sites;
  }

  int announced_ = 0;
  Order order_{/*window=*/1024};
  SumsInFlight sums_;
  Leader leader_;
};

TEST_F(LeaderTest, withoutHistoryTheShortestSumIsFirst) {
  EXPECT_EQ(leader_.Next(order_, sums_, 0), nullptr);
  Issue(1, 3);
  Issue(2, 1);
  Issue(3, 1);
  EXPECT_EQ(PlaceAll(), "23111");
  EXPECT_EQ(leader_.next_timer_us(), INT64_MAX);
}

TEST_F(LeaderTest, historyWinsOverTheShortest) {
  for (uint32_t execution = 0; execution < 2; ++execution) {  // 1 2 1 2
    Place(Issue(1, 2, execution));
    Place(Issue(2, 1, execution));
    SumPass* rest = sums_.ShortestToPlace();
    Place(*rest);
  }
  Issue(2, 1, 2);
  Issue(1, 2, 2);
  EXPECT_EQ(PlaceAll(), "121");
}

// One sends the most, the other receives the most: at once they fill the links in both directions.
TEST_F(LeaderTest, aScatterAndAGatherTakeTurns) {
  for (const uint32_t execution : {0, 1, 2}) {
    SumPass& large = Issue(1, 12, execution, UINT64_MAX, Moves::kScatter);
    for (int i = 0; i < 3; ++i) Place(large);
    Issue(2, 12, execution);  // needs both directions, and isn't shorter
    Issue(3, 6, execution, UINT64_MAX, Moves::kGather);
    Issue(4, 3, execution, UINT64_MAX, Moves::kGather);  // it isn't worth it
    announced_ = 0;
    EXPECT_EQ(PlaceAll(),
              "313131313131"
              "111"
              "444"
              "222222222222")
        << execution;
    EXPECT_EQ(announced_, execution < 1 ? 3 : 0);
  }
}

// It waits for the predicted sum, but not for ever, and begins to wait anew after each place.
TEST_F(LeaderTest, deviatesAfterAGrace) {
  for (uint32_t execution = 0; execution < 2; ++execution) {
    for (const uint64_t site : {1, 2}) Place(Issue(site, 1, execution));
  }
  SumPass& other = Issue(3, 1);
  EXPECT_EQ(leader_.Next(order_, sums_, 1000), nullptr);
  EXPECT_EQ(leader_.next_timer_us(), 1500);
  EXPECT_EQ(leader_.Next(order_, sums_, 1499), nullptr);
  EXPECT_EQ(leader_.next_timer_us(), 1500);
  EXPECT_EQ(leader_.Next(order_, sums_, 1500), &other);
  EXPECT_EQ(leader_.next_timer_us(), INT64_MAX);

  EXPECT_EQ(leader_.Next(order_, sums_, 2000), nullptr);
  SumPass& predicted = Issue(1, 1, 2);
  EXPECT_EQ(leader_.Next(order_, sums_, 2001), &predicted);
  EXPECT_EQ(leader_.next_timer_us(), INT64_MAX);
}

// A program that sums small arrays one after the other holds up no large sum of another one for long.
TEST_F(LeaderTest, waitsFewTimesInARow) {
  for (uint32_t execution = 0; execution < 2; ++execution) Place(Issue(1, 1, execution));
  SumPass& large = Issue(2, 20);
  int64_t now_us = 1000;
  for (uint32_t execution = 2; execution < 6; ++execution) {
    EXPECT_EQ(leader_.Next(order_, sums_, now_us), nullptr);
    SumPass& predicted = Issue(1, 1, execution);
    EXPECT_EQ(leader_.Next(order_, sums_, now_us += 100), &predicted);
    Place(predicted);
    sums_.Take(predicted);
  }
  EXPECT_EQ(leader_.Next(order_, sums_, now_us), &large);
  Place(large);
  EXPECT_EQ(leader_.Next(order_, sums_, now_us), &large);  // which goes on
}

TEST_F(LeaderTest, waitsForNothingWithoutRoom) {
  for (uint32_t execution = 0; execution < 2; ++execution) Place(Issue(1, 1, execution));
  Issue(2, 1);
  EXPECT_EQ(leader_.Next(order_, sums_, 1000), nullptr);
  leader_.StopWaiting();
  EXPECT_EQ(leader_.next_timer_us(), INT64_MAX);
  EXPECT_EQ(leader_.Next(order_, sums_, 2000), nullptr);
  EXPECT_EQ(leader_.next_timer_us(), 2500);
}

// A segment whose elements aren't there gets no place, whatever the history says; others go first, after the grace.
TEST_F(LeaderTest, placesWhatIsThere) {
  SumPass& late = Issue(1, 3, 0, kSegmentLanes + 1);
  EXPECT_EQ(PlaceAll(), "1");
  sums_.OnReady(late, 2 * kSegmentLanes - 1);
  EXPECT_EQ(PlaceAll(), "");
  EXPECT_EQ(leader_.next_timer_us(), INT64_MAX);  // nothing to do before more comes
  Issue(2, 1);
  EXPECT_EQ(PlaceAll(1000), "");  // it was to be 1
  EXPECT_EQ(PlaceAll(1499), "");
  EXPECT_EQ(PlaceAll(1500), "2");
  sums_.OnReady(late, 3 * kSegmentLanes);
  EXPECT_EQ(PlaceAll(1500), "11");
}

// Behind a large sum that history continues, a sum of one segment waits for none, others for four for each of their
// own.
TEST_F(LeaderTest, aSumOfOneSegmentGoesAhead) {
  SumPass& large = Issue(1, 20);
  for (int i = 0; i < 2; ++i) Place(large);
  Issue(2, 1);
  EXPECT_EQ(PlaceAll(), "2111111111111111111");
}
TEST_F(LeaderTest, patienceGrowsWithASum) {
  SumPass& large = Issue(1, 20);
  for (int i = 0; i < 2; ++i) Place(large);
  Issue(2, 2);
  EXPECT_EQ(PlaceAll(), "11111111221111111111");
}

// If little is left of the large sum, the small one waits for all of it.
TEST_F(LeaderTest, patienceLastsWhileLittleIsLeft) {
  SumPass& large = Issue(1, 6);
  for (int i = 0; i < 3; ++i) Place(large);
  Issue(2, 1);
  EXPECT_EQ(PlaceAll(), "1112");
}

}  // namespace
}  // namespace passing
