#include "ffi/local_collective.h"

#include <gtest/gtest.h>

#include <climits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace passing {
namespace {

// More elements than are joined at a time, and a scalar, on three devices.
class LocalCollectiveTest : public testing::Test {
 protected:
  static constexpr uint32_t kDevices = 3;
  static constexpr size_t kElements = 5000;

  // In place; `done` is called before this returns.
  void Run(Op op) {
    auto shape = std::make_shared<SumSpec>(SumSpec{.site_name = "site",
                                                   .dtype = DType::kInt32,
                                                   .leaf_elements = {kElements, 1},
                                                   .local_member_count = kDevices,
                                                   .op = op});
    Sum sum{.key = {}, .spec = shape, .inputs = {}, .outputs = {}};
    for (auto& device : devices_) {
      for (auto& leaf : device) sum.inputs.push_back(leaf.data()), sum.outputs.push_back(leaf.data());
    }
    int done_count = 0;
    sum.done = [&](const Failure* failure) {
      ++done_count;
      if (failure) failure_ = *failure;
    };
    collective_.Start(std::move(sum));
    EXPECT_EQ(done_count, 1);
  }
  // Device k has the elements -i + 1000 k, and INT_MIN or k.
  void SetUp() override {
    for (uint32_t k = 0; k < kDevices; ++k) {
      std::vector<int32_t> elements(kElements);
      for (size_t i = 0; i < kElements; ++i) elements[i] = static_cast<int32_t>(1000 * k) - static_cast<int32_t>(i);
      devices_.push_back({elements, {k == 1 ? INT_MIN : static_cast<int32_t>(k)}});
    }
  }

  LocalCollective collective_;
  std::vector<std::vector<std::vector<int32_t>>> devices_;  // by device and leaf
  std::optional<Failure> failure_;
};

TEST_F(LocalCollectiveTest, sums) {
  Run(Op::kSum);
  for (const auto& leaves : devices_) {
    for (size_t i = 0; i < kElements; ++i) ASSERT_EQ(leaves[0][i], 3000 - 3 * static_cast<int32_t>(i));
    EXPECT_EQ(leaves[1][0], INT_MIN + 2);
  }
  EXPECT_EQ(collective_.stats().sums_completed, 1u);
  EXPECT_EQ(collective_.stats().tensor_bytes, 4 * (kElements + 1));
}

TEST_F(LocalCollectiveTest, maxima) {
  Run(Op::kMax);
  for (const auto& leaves : devices_) {
    for (size_t i = 0; i < kElements; ++i) ASSERT_EQ(leaves[0][i], 2000 - static_cast<int32_t>(i));
    EXPECT_EQ(leaves[1][0], 2);
  }
}

// In any parts, across the end of a leaf; then a sum that a failure ends in the midst.
TEST_F(LocalCollectiveTest, sumsWhatIsThere) {
  const auto shape = std::make_shared<SumSpec>(SumSpec{
      .site_name = "site", .dtype = DType::kInt32, .leaf_elements = {kElements, 1}, .local_member_count = kDevices});
  for (const bool fails : {false, true}) {
    SumKey key{.site = fails};
    Sum sum{.key = key, .spec = shape, .inputs = {}, .outputs = {}};
    std::vector<std::vector<std::vector<int32_t>>> devices = devices_;
    for (auto& device : devices) {
      for (auto& leaf : device) sum.inputs.push_back(leaf.data()), sum.outputs.push_back(leaf.data());
    }
    int done_count = 0;
    std::vector<uint64_t> written;
    sum.done = [&](const Failure* failure) {
      ++done_count;
      if (failure) failure_ = *failure;
    };
    sum.pieces = {.ready_elements = 1, .written = [&](uint64_t elements) { written.push_back(elements); }};
    collective_.Start(std::move(sum));
    collective_.Ready({.site = 5}, kElements);
    collective_.Ready(key, 3000);
    EXPECT_EQ(devices[0][0][2999], 3000 - 3 * 2999);
    EXPECT_EQ(devices[0][0][3000], -3000);
    EXPECT_EQ(done_count, 0);
    if (fails) {
      collective_.Fail({"SessionError", "first"});
      EXPECT_EQ(done_count, 1);
      EXPECT_EQ(failure_->message, "first");
    }
    collective_.Ready(key, kElements + 1);
    EXPECT_EQ(done_count, 1);
    EXPECT_EQ(failure_.has_value(), fails);
    EXPECT_EQ(written, fails ? std::vector<uint64_t>({1, 3000}) : std::vector<uint64_t>({1, 3000, kElements + 1}));
    if (fails) continue;
    for (const auto& leaves : devices) {
      for (size_t i = 0; i < kElements; ++i) ASSERT_EQ(leaves[0][i], 3000 - 3 * static_cast<int32_t>(i));
      EXPECT_EQ(leaves[1][0], INT_MIN + 2);
    }
  }
}

// Devices bring, or take, rows of their own, which stand in the order of `rows`.
TEST_F(LocalCollectiveTest, rows) {
  for (const Moves moves : {Moves::kGather, Moves::kScatter}) {
    const auto shape = std::make_shared<SumSpec>(
        SumSpec{.site_name = "site", .dtype = DType::kInt32, .leaf_elements = {6, 3}, .moves = moves});
    const std::vector<int32_t> longest = {10, 11, 12, 13, 14, 15};
    std::vector<std::vector<int32_t>> inputs, outputs;
    Sum sum{.key = {}, .spec = shape, .inputs = {}, .outputs = {}, .own_rows = {true, true, true}, .rows = {2, 0, 1}};
    for (int32_t device = 0; device < 3; ++device) {
      for (const size_t row : {2, 1}) {
        const size_t given = moves == Moves::kGather ? row : 3 * row, taken = moves == Moves::kGather ? 3 * row : row;
        inputs.emplace_back(longest.begin(), longest.begin() + static_cast<ptrdiff_t>(given));
        for (int32_t& element : inputs.back()) element += 100 * device;
        outputs.emplace_back(taken, -1);
      }
    }
    for (const auto& input : inputs) sum.inputs.push_back(input.data());
    for (auto& output : outputs) sum.outputs.push_back(output.data());
    bool is_done = false;
    sum.done = [&](const Failure* failure) { is_done = failure == nullptr; };
    collective_.Start(std::move(sum));
    EXPECT_TRUE(is_done);
    using Leaf = std::vector<int32_t>;
    if (moves == Moves::kGather) {
      for (const size_t device : {0, 1, 2}) {
        EXPECT_EQ(outputs[2 * device], (Leaf{110, 111, 210, 211, 10, 11}));
        EXPECT_EQ(outputs[2 * device + 1], (Leaf{110, 210, 10}));
      }
    } else {
      EXPECT_EQ(outputs, (std::vector<Leaf>{{342, 345}, {336}, {330, 333}, {330}, {336, 339}, {333}}));
    }
  }
}

TEST_F(LocalCollectiveTest, failsWhatComesAfterAFailure) {
  const auto before = devices_;
  collective_.Fail({"SessionError", "first"});
  collective_.Fail({"SessionError", "second"});
  Run(Op::kSum);
  ASSERT_TRUE(failure_);
  EXPECT_EQ(failure_->message, "first");
  EXPECT_EQ(devices_, before);
  EXPECT_EQ(collective_.stats().sums_started, 1u);
  EXPECT_EQ(collective_.stats().sums_completed, 0u);
}

}  // namespace
}  // namespace passing
