#include "host/sums/sums_in_flight.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "host/sums/sum_passes.h"

namespace passing {
namespace {

constexpr PlanLimits kLimits{.lanes_per_chunk = 256, .window = 1024};

std::unique_ptr<SumPass> MakeSum(uint64_t site, uint32_t segments, uint32_t execution = 0, int64_t started_us = 0) {
  const uint64_t elements = uint64_t{segments} * kSegmentLanes;
  auto shape =
      std::make_shared<SumSpec>(SumSpec{.site_name = "x", .dtype = DType::kInt32, .leaf_elements = {elements}});
  Sum sum{.key = {.site = site, .execution = execution}, .spec = std::move(shape), .inputs = {}, .outputs = {}};
  auto made = std::make_unique<ElementPass>(std::move(sum), kLimits, Rank{.world_size = 2}, started_us);
  EXPECT_EQ(made->plan().segment_count(), segments);
  return made;
}

TEST(SumsInFlight, placesOnlyWhatIsReady) {
  SumsInFlight sums;
  auto made = MakeSum(1, 2);
  Sum sum{.key = {.site = 2}, .spec = std::make_shared<SumSpec>(made->spec()), .inputs = {}, .outputs = {}};
  sum.pieces.emplace().ready_elements = kSegmentLanes - 1;
  SumPass& late = sums.Add(ElementPass::Of(std::move(sum), kLimits, Rank{.world_size = 2}, 0));
  EXPECT_EQ(sums.ShortestToPlace(), nullptr);
  sums.OnReady(late, kSegmentLanes);
  EXPECT_EQ(sums.ShortestToPlace(), &late);
  sums.OnReady(late, kSegmentLanes + 1);
  sums.CountPlaced(late);
  EXPECT_EQ(sums.ShortestToPlace(), nullptr);
  SumPass& other = sums.Add(std::move(made));
  EXPECT_EQ(sums.ShortestToPlace(), &other);
  sums.CountVoid(late);
  sums.CountPlaced(late);
  sums.OnReady(late, 2 * kSegmentLanes);
  EXPECT_EQ(sums.ShortestToPlace(), &late);
  sums.CountPlaced(late);
  EXPECT_EQ(sums.Take(late).get(), &late);
  EXPECT_EQ(sums.ShortestToPlace(), &other);
}

TEST(SumsInFlight, findsASumByAnyOfItsSegments) {
  SumsInFlight sums;
  EXPECT_EQ(sums.Find({.site = 1}), nullptr);
  SumPass& a = sums.Add(MakeSum(1, 3));
  SumPass& b = sums.Add(MakeSum(1, 1, /*execution=*/1));
  EXPECT_EQ(sums.Find(a.IdOf(0)), &a);
  EXPECT_EQ(sums.Find(a.IdOf(2)), &a);
  EXPECT_EQ(sums.Find(b.IdOf(0)), &b);
  EXPECT_EQ(sums.Find({.site = 1, .execution = 2}), nullptr);
  EXPECT_EQ(sums.Find({.site = 1, .step = 1}), nullptr);
  EXPECT_EQ(sums.Find({.site = 1, .pass = 1}), nullptr);
  EXPECT_EQ(sums.Take(a).get(), &a);
  EXPECT_EQ(sums.Find({.site = 1}), nullptr);
  EXPECT_EQ(sums.TakeFirst().get(), &b);
  EXPECT_TRUE(sums.empty());
  EXPECT_EQ(sums.TakeFirst(), nullptr);
}

TEST(SumsInFlight, oldestIsByTheTimeOfItsStart) {
  SumsInFlight sums;
  EXPECT_EQ(sums.Oldest(), nullptr);
  sums.Add(MakeSum(1, 1, 0, /*started_us=*/20));
  const SumPass& second_pass = sums.Add(MakeSum(2, 1, 0, /*started_us=*/10));  // keeps the time of the first
  EXPECT_EQ(sums.Oldest(), &second_pass);
}

// The names come as hashes do, or differ in a few bits; what is asked for is what a scan of all sums finds.
TEST(SumsInFlight, asAScanForEverySeed) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    SumsInFlight sums;
    std::vector<SumPass*> all;  // in the order in which they were added
    const auto pick = [&] { return random() % all.size(); };
    for (uint32_t i = 0; i < 300; ++i) {
      const uint64_t act = random() % 6;
      if (all.empty() || act == 0) {
        const uint64_t site = seed % 2 == 0 ? random() : 1 + i % 3;
        all.push_back(&sums.Add(MakeSum(site, 1 + static_cast<uint32_t>(random() % 5), /*execution=*/i)));
      } else if (act == 1) {
        const size_t at = pick();
        EXPECT_EQ(sums.Take(*all[at]).get(), all[at]);
        all.erase(all.begin() + static_cast<ptrdiff_t>(at));
      } else if (act == 2) {
        SumPass& sum = *all[pick()];
        if (sum.next_segment() > 0) sums.CountVoid(sum);
      } else {
        SumPass& sum = *all[pick()];
        if (sum.segments_left() > 0) sums.CountPlaced(sum);
      }
      SumPass* shortest = nullptr;
      for (SumPass* sum : all) {
        EXPECT_EQ(sums.Find(sum->IdOf(3)), sum);
        if (sum->segments_left() == 0) continue;
        if (shortest == nullptr || sum->segments_left() < shortest->segments_left()) shortest = sum;
      }
      ASSERT_EQ(sums.ShortestToPlace(), shortest);
      EXPECT_EQ(sums.empty(), all.empty());
    }
  }
}

}  // namespace
}  // namespace passing
