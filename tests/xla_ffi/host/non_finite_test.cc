#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "../tests/xla_ffi/host/support/cluster.h"

namespace passing {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

// Three ranks sum leaves of 100 and 5,000 float32, one execution after the other.
class NonFiniteOfRanks : public ::testing::Test {
 protected:
  using Values = std::vector<std::vector<float>>;  // by leaf

  static Values Ones() { return {std::vector<float>(100, 1.0f), std::vector<float>(5000, 1.0f)}; }

  // Runs a sum of these; returns the results of rank 0.
  Values SumUp(std::vector<Values> of_ranks) {
    const auto spec = std::make_shared<SumSpec>(SumSpec{.site_name = "here", .leaf_elements = {100, 5000}});
    uint32_t done = 0;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      Sum sum{.key = {.site = 1, .execution = executions_}, .spec = spec, .inputs = {}, .outputs = {}};
      for (std::vector<float>& leaf : of_ranks[rank]) {
        sum.inputs.push_back(leaf.data());
        sum.outputs.push_back(leaf.data());
      }
      sum.done = [&done](const Failure* failure) { done += failure == nullptr; };
      cluster_.Start(rank, std::move(sum));
    }
    ++executions_;
    EXPECT_TRUE(cluster_.Run(600'000'000)) << cluster_.Stalls();
    EXPECT_EQ(done, 3u);
    return of_ranks[0];
  }

  Cluster cluster_{1, {.world_size = 3, .faults = {.loss = 0.02}, .check_nans = true, .plain = true}};
  uint32_t executions_ = 0;
};

TEST_F(NonFiniteOfRanks, theRankThatBringsItSaysWhere) {
  std::vector<Values> values(3, Ones());
  SumUp(values);
  values[1][1][4321] = kNaN;
  EXPECT_TRUE(std::isnan(SumUp(values)[1][4321]));
  ASSERT_EQ(cluster_.non_finite(1).size(), 1u);
  const NonFinite& found = cluster_.non_finite(1)[0];
  EXPECT_EQ(found.leaf, 1u);
  EXPECT_EQ(found.element, 4321u);
  EXPECT_EQ(found.what, "NaN");
  EXPECT_EQ(found.key, (SumKey{.site = 1, .execution = 1}));
  EXPECT_EQ(found.spec->site_name, "here");
}

TEST_F(NonFiniteOfRanks, whoseNaNComesFromAResultSaysNothing) {
  std::vector<Values> values(3, Ones());
  values[2][1][7] = -kInf;
  const Values results = SumUp(values);
  EXPECT_EQ(results[1][7], -kInf);
  SumUp(std::vector<Values>(3, results));
  EXPECT_TRUE(cluster_.non_finite(0).empty());
  EXPECT_TRUE(cluster_.non_finite(1).empty());
  ASSERT_EQ(cluster_.non_finite(2).size(), 1u);
  EXPECT_EQ(cluster_.non_finite(2)[0].what, "-inf");
}

// Where one rank alone has anything but zeros the bits are moved, and no flag tells of them.
TEST_F(NonFiniteOfRanks, movedBitsAreLookedAtAsWell) {
  std::vector<Values> values(3, Values{std::vector<float>(100), std::vector<float>(5000)});
  values[0][0][42] = kInf;
  const Values results = SumUp(values);
  EXPECT_EQ(results[0][42], kInf);
  EXPECT_EQ(cluster_.rank(0).stats().flagged_chunks, 0u);
  SumUp(std::vector<Values>(3, results));
  ASSERT_EQ(cluster_.non_finite(0).size(), 1u);
  EXPECT_EQ(cluster_.non_finite(0)[0].leaf, 0u);
  EXPECT_EQ(cluster_.non_finite(0)[0].element, 42u);
  EXPECT_EQ(cluster_.non_finite(0)[0].what, "inf");
  EXPECT_TRUE(cluster_.non_finite(1).empty());
  EXPECT_TRUE(cluster_.non_finite(2).empty());
}

TEST(NonFinite, nobodyIsToldUnlessAsked) {
  Cluster cluster(1, {.world_size = 2, .faults = {}, .plain = true});
  const auto spec = std::make_shared<SumSpec>(SumSpec{.site_name = "here", .leaf_elements = {1}});
  std::vector<float> values{kNaN, 1.0f};
  for (uint32_t rank = 0; rank < 2; ++rank) {
    float* const value = &values[rank];
    cluster.Start(rank, {.key = {.site = 1}, .spec = spec, .inputs = {value}, .outputs = {value}, .done = [](auto) {}});
  }
  ASSERT_TRUE(cluster.Run(600'000'000));
  EXPECT_TRUE(std::isnan(values[1]));
  EXPECT_TRUE(cluster.non_finite(0).empty());
}

}  // namespace
}  // namespace passing
