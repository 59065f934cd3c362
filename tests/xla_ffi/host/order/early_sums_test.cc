#include "host/order/early_sums.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "host/sums/sum_passes.h"

namespace passing {
namespace {

// A rank with its sums.
struct OfRank {
  explicit OfRank(uint32_t rank, uint32_t world_size = 3) : rank{.rank = rank, .world_size = world_size} {}

  SumPass& Issue(uint64_t site, bool early = true) {
    auto spec = std::make_shared<SumSpec>(
        SumSpec{.site_name = "x", .dtype = DType::kInt32, .leaf_elements = {9}, .early = early});
    Sum sum{.key = {.site = site, .execution = 7, .step = 8}, .spec = std::move(spec), .inputs = {}, .outputs = {}};
    SumPass& added = sums.Add(
        ElementPass::Of(std::move(sum), PlanLimits{.lanes_per_chunk = 256, .window = 1024}, rank, /*started_us=*/0));
    told = early_sums.OnIssued(added);
    return added;
  }
  bool Tell(const std::string& message) {
    return early_sums.OnTold({reinterpret_cast<const uint8_t*>(message.data()), message.size()});
  }

  const Rank rank;
  SumsInFlight sums{};
  EarlySums early_sums{sums, rank};
  std::string told{};  // last
};

TEST(EarlySums, rankZeroWaitsForAllOthers) {
  OfRank zero(0), one(1), two(2);
  EXPECT_FALSE(zero.Issue(1, /*early=*/false).is_held());
  SumPass& early = zero.Issue(2);
  EXPECT_TRUE(early.is_held());
  EXPECT_EQ(zero.sums.ShortestToPlace()->key().site, 1u);
  one.Issue(1, /*early=*/false);
  EXPECT_EQ(one.told, "");
  for (OfRank* other : {&one, &two}) {
    EXPECT_TRUE(early.is_held());
    other->Issue(2);
    EXPECT_TRUE(zero.Tell(other->told));
  }
  EXPECT_FALSE(early.is_held());
  zero.sums.Take(*zero.sums.ShortestToPlace());
  EXPECT_EQ(zero.sums.ShortestToPlace(), &early);
}

TEST(EarlySums, othersMayComeFirst) {
  OfRank zero(0), one(1), two(2);
  for (OfRank* other : {&one, &two}) {
    for (const uint64_t site : {2, 1}) {
      other->Issue(site);
      EXPECT_TRUE(zero.Tell(other->told));
    }
  }
  EXPECT_FALSE(zero.Issue(1).is_held());
  EXPECT_FALSE(zero.Issue(2).is_held());
  EXPECT_TRUE(zero.Issue(3).is_held());
}

TEST(EarlySums, whatMakesNoSenseIsRefused) {
  for (const size_t bytes : {0, 1, 15, 17, 31}) EXPECT_FALSE(OfRank(0).Tell(std::string(bytes, 'x')));
  OfRank zero(0);
  EXPECT_TRUE(zero.Tell(std::string(32, 'x')));   // by both others
  EXPECT_FALSE(zero.Tell(std::string(16, 'x')));  // by whom?
}

TEST(EarlySums, namesThatNobodyIssuesFillNoMemory) {
  OfRank zero(0);
  std::string name(16, 'x');
  for (size_t i = 0; i < EarlySums::kMaxAhead; ++i) {
    name[0] = static_cast<char>(i >> 8), name[1] = static_cast<char>(i);
    ASSERT_TRUE(zero.Tell(name));
  }
  EXPECT_FALSE(zero.Tell(std::string(16, 'y')));
}

}  // namespace
}  // namespace passing
