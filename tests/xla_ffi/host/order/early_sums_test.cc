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

  SumPass& Issue(uint64_t site, Moves moves, bool early = true) {
    auto spec = std::make_shared<SumSpec>(
        SumSpec{.site_name = "x", .dtype = DType::kInt32, .leaf_elements = {9}, .moves = moves, .early = early});
    Sum sum{.key = {.site = site, .execution = 7, .step = 8}, .spec = std::move(spec), .inputs = {}, .outputs = {}};
    sum.own_rows = {true, false, false};
    SumPass& added = sums.Add(
        ElementPass::Of(std::move(sum), PlanLimits{.lanes_per_chunk = 256, .window = 1024}, rank, /*started_us=*/0));
    told += early_sums.OnIssued(added);
    return added;
  }
  bool Tell(const std::string& message) {
    return early_sums.OnTold({reinterpret_cast<const uint8_t*>(message.data()), message.size()});
  }

  const Rank rank;
  SumsInFlight sums{};
  EarlySums early_sums{sums, rank};
  std::string told{};  // by this rank
};

TEST(EarlySums, rankZeroWaitsForAllOthersOrForTheSumsBefore) {
  OfRank zero(0), one(1), two(2);
  SumPass& first = zero.Issue(1, Moves::kScatter);
  EXPECT_TRUE(first.is_held());
  zero.early_sums.Release();
  EXPECT_FALSE(first.is_held());
  SumPass& second = zero.Issue(2, Moves::kGather);
  zero.early_sums.Release();
  EXPECT_TRUE(second.is_held());

  for (OfRank* other : {&one, &two}) {
    other->Issue(1, Moves::kScatter);
    EXPECT_EQ(other->told, "");  // nothing goes the other way
    other->Issue(2, Moves::kGather);
    EXPECT_TRUE(second.is_held());
    EXPECT_TRUE(zero.Tell(other->told));
  }
  EXPECT_FALSE(second.is_held());

  SumPass& third = zero.Issue(3, Moves::kScatter);
  zero.Issue(9, Moves::kAll, /*early=*/false);  // for which nothing waits that came before it
  zero.sums.Take(first);
  zero.early_sums.Release();
  EXPECT_TRUE(third.is_held());
  zero.sums.Take(second);
  zero.early_sums.Release();
  EXPECT_FALSE(third.is_held());
}

TEST(EarlySums, othersMayComeFirst) {
  OfRank zero(0), one(1), two(2);
  for (OfRank* other : {&one, &two}) {
    other->Issue(2, Moves::kGather);
    other->Issue(1, Moves::kScatter);  // in another order
    EXPECT_TRUE(zero.Tell(other->told));
  }
  zero.Issue(9, Moves::kAll, /*early=*/false);
  EXPECT_FALSE(zero.Issue(1, Moves::kScatter).is_held());
  EXPECT_FALSE(zero.Issue(2, Moves::kGather).is_held());
  EXPECT_TRUE(zero.Issue(3, Moves::kGather).is_held());
  EXPECT_FALSE(zero.Issue(4, Moves::kGather, /*early=*/false).is_held());
}

TEST(EarlySums, whatMakesNoSenseIsRefused) {
  OfRank zero(0);
  for (const size_t bytes : {0, 1, 15, 17, 31}) EXPECT_FALSE(zero.Tell(std::string(bytes, 'x')));
}

TEST(EarlySums, namesThatNobodyIssuesFillNoMemory) {
  OfRank zero(0), one(1);
  one.Issue(1, Moves::kScatter);
  one.Issue(2, Moves::kGather);
  zero.Tell(one.told);
  for (size_t i = 0; i < EarlySums::kMaxKnown; ++i) {
    std::string name(16, '\xFF');
    name.replace(
        0, 4,
        {static_cast<char>(i >> 24), static_cast<char>(i >> 16), static_cast<char>(i >> 8), static_cast<char>(i)});
    ASSERT_TRUE(zero.Tell(name));
  }
  zero.Tell(one.told);  // the first time is forgotten
  zero.Issue(9, Moves::kAll, /*early=*/false);
  EXPECT_TRUE(zero.Issue(1, Moves::kScatter).is_held());
}

}  // namespace
}  // namespace passing
