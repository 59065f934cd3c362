#include "ffi/flat_collective.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace passing {
namespace {

// Keeps the sums it is given.
struct HeldRank : Collective {
  uint32_t world_size() const override { return 6; }
  void Start(Sum sum) override { sums.push_back(std::move(sum)); }
  void Ready(const SumKey& key, uint64_t elements) override { ready.emplace_back(key.site, elements); }
  void Fail(const Failure& failure) override { failed = failure.kind; }
  std::vector<Sum> sums;
  std::vector<std::pair<uint64_t, uint64_t>> ready;
  std::string failed;
};

class FlatCollectiveTest : public testing::Test {
 protected:
  FlatCollectiveTest() : flat_({ranks_.begin(), ranks_.end()}) {
    sum_.spec = std::make_shared<SumSpec>(
        SumSpec{.site_name = "site", .dtype = DType::kFloat32, .leaf_elements = {3, 5}, .local_member_count = 2});
    sum_.key = {.site = 1, .execution = 2, .step = 3};
    for (float& value : values_) sum_.inputs.push_back(&value), sum_.outputs.push_back(&value);
    sum_.done = [this](const Failure* failure) {
      ++done_count_;
      if (failure) failure_ = *failure;
    };
  }

  const std::vector<std::shared_ptr<HeldRank>> ranks_{std::make_shared<HeldRank>(), std::make_shared<HeldRank>()};
  FlatCollective flat_;
  float values_[4] = {};  // of (device, leaf)
  Sum sum_;
  int done_count_ = 0;
  std::optional<Failure> failure_;
};

TEST_F(FlatCollectiveTest, worldSizeCountsDevices) { EXPECT_EQ(flat_.world_size(), 6U); }

TEST_F(FlatCollectiveTest, eachDeviceIsARank) {
  const Sum expected = sum_;
  sum_.caller_waits = true;
  flat_.Start(std::move(sum_));
  for (size_t device = 0; device < 2; ++device) {
    ASSERT_EQ(ranks_[device]->sums.size(), 1U);
    const Sum& one = ranks_[device]->sums[0];
    EXPECT_FALSE(one.caller_waits);  // or the first rank would wait for the others, which start later
    EXPECT_EQ(one.key, expected.key);
    EXPECT_EQ(one.device_count(), 1U);
    EXPECT_EQ(one.spec->leaf_elements, expected.spec->leaf_elements);
    EXPECT_EQ(one.inputs, (std::vector<const void*>{&values_[2 * device], &values_[2 * device + 1]}));
    EXPECT_EQ(one.outputs, (std::vector<void*>{&values_[2 * device], &values_[2 * device + 1]}));
  }
}

TEST_F(FlatCollectiveTest, allRanksHearWhatIsReady) {
  sum_.pieces = {.ready_elements = 2, .written = [](uint64_t) {}};
  flat_.Start(std::move(sum_));
  flat_.Ready({.site = 1}, 8);
  flat_.Fail({"AcceleratorError", "broken"});
  for (const auto& rank : ranks_) {
    EXPECT_EQ(rank->sums[0].pieces->ready_elements, 2U);
    EXPECT_EQ(rank->sums[0].pieces->written, nullptr);  // each has the results of one device
    EXPECT_EQ(rank->ready, (std::vector<std::pair<uint64_t, uint64_t>>{{1, 8}}));
    EXPECT_EQ(rank->failed, "AcceleratorError");
  }
}

TEST_F(FlatCollectiveTest, doneWhenAllRanksAre) {
  flat_.Start(std::move(sum_));
  ranks_[1]->sums[0].done(nullptr);
  EXPECT_EQ(done_count_, 0);
  ranks_[0]->sums[0].done(nullptr);
  EXPECT_EQ(done_count_, 1);
  EXPECT_FALSE(failure_);
}

TEST_F(FlatCollectiveTest, firstFailureWins) {
  flat_.Start(std::move(sum_));
  const Failure first{"HostLostError", "first"}, second{"SwitchLostError", "second"};
  ranks_[1]->sums[0].done(&first);
  EXPECT_EQ(done_count_, 0);  // the other rank may still write its buffers
  ranks_[0]->sums[0].done(&second);
  EXPECT_EQ(done_count_, 1);
  ASSERT_TRUE(failure_);
  EXPECT_EQ(failure_->message, "first");
}

}  // namespace
}  // namespace passing
