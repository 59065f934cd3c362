#include "client/sum_plan.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace passing {
namespace {

SumShape Shape(DType dtype, std::vector<uint64_t> leaves) {
  return {.site_name = "test", .dtype = dtype, .leaf_elements = std::move(leaves)};
}

TEST(SumPlan, oneGibibyteOfFloat32HasOnlyFullChunks) {
  const SumPlan plan(Shape(DType::kFloat32, {uint64_t{1} << 28}), 360, 256);
  EXPECT_EQ(plan.segment_count(), ((uint64_t{1} << 28) + 23039) / 23040);
  EXPECT_EQ(plan.segment(0).element_count, 23040u);
  EXPECT_EQ(plan.segment(0).block_count, 16u);
  EXPECT_EQ(plan.segment(0).exponent_chunks, 1u);
  EXPECT_EQ(plan.segment(0).data_chunks, 64u);
}

TEST(SumPlan, integersNeedNoExponents) {
  const SumPlan plan(Shape(DType::kInt64, {10'000}), 64, 256);
  EXPECT_EQ(plan.elements_per_chunk(), 21u);
  for (uint32_t i = 0; i < plan.segment_count(); ++i) EXPECT_EQ(plan.segment(i).exponent_chunks, 0u);
  EXPECT_EQ(plan.segment_count(), 2u);  // 23,040 / 3 = 7,680 elements a segment
}

TEST(SumPlan, aThousandScalarLeavesHaveABlockEach) {
  const SumPlan plan(Shape(DType::kFloat32, std::vector<uint64_t>(1000, 1)), 256, 256);
  ASSERT_EQ(plan.segment_count(), 1u);
  EXPECT_EQ(plan.segment(0).block_count, 1000u);
  EXPECT_EQ(plan.segment(0).exponent_chunks, 4u);
  EXPECT_EQ(plan.Block(17).leaf, 17u);
}

TEST(SumPlan, onlySmallSumsOfFewBlocksGuessTheirExponents) {
  const auto repeats = [](DType dtype, std::vector<uint64_t> leaves, uint32_t lanes_per_chunk, uint32_t slot_count) {
    return SumPlan(Shape(dtype, std::move(leaves)), lanes_per_chunk, slot_count).segment(0).repeat_chunks;
  };
  EXPECT_EQ(repeats(DType::kFloat32, {1}, 360, 256), 1u);
  EXPECT_EQ(repeats(DType::kFloat32, {1440}, 360, 256), 4u);
  EXPECT_EQ(repeats(DType::kFloat32, {1441}, 360, 256), 0u);
  EXPECT_EQ(repeats(DType::kInt32, {1}, 360, 256), 0u);
  EXPECT_EQ(repeats(DType::kFloat32, std::vector<uint64_t>(120, 1), 360, 256), 1u);
  EXPECT_EQ(repeats(DType::kFloat32, std::vector<uint64_t>(121, 1), 360, 256), 0u);  // two exponent chunks
  EXPECT_EQ(repeats(DType::kFloat32, {1440}, 360, 8), 0u);  // 1 + 2 x 4 chunks don't fit into the window
}

TEST(SumPlan, segmentsCoverEveryElementOnceInWholeBlocks) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<uint64_t> leaves;
    for (uint32_t i = 0; i <= random() % 20; ++i) leaves.push_back(1 + random() % (i % 3 == 0 ? 100'000 : 2000));
    const DType dtype = random() % 2 ? DType::kFloat32 : DType::kFloat64;
    const SumPlan plan(Shape(dtype, leaves), random() % 2 ? 64 : 360, 256);
    uint64_t element = 0;
    uint64_t block = 0;
    for (uint32_t i = 0; i < plan.segment_count(); ++i) {
      const Segment& segment = plan.segment(i);
      ASSERT_EQ(segment.first_element, element);
      ASSERT_EQ(segment.first_block, block);
      ASSERT_GT(segment.element_count, 0u);
      ASSERT_LE(segment.element_count * plan.lanes_per_element(), kSegmentLanes);
      uint64_t in_blocks = 0;
      for (uint32_t b = 0; b < segment.block_count; ++b) in_blocks += plan.Block(block + b).count;
      ASSERT_EQ(in_blocks, segment.element_count);
      // The runs of the segment are its blocks.
      uint32_t offset = 0;
      plan.ForEachRun(element, segment.element_count, [&](const ElementRun& run) {
        const ElementRun whole = plan.Block(run.block);
        ASSERT_EQ(run.offset, offset);
        ASSERT_EQ(run.leaf, whole.leaf);
        ASSERT_EQ(run.first, whole.first);
        ASSERT_EQ(run.count, whole.count);
        offset += run.count;
      });
      element += segment.element_count;
      block += segment.block_count;
    }
    ASSERT_EQ(element, std::accumulate(leaves.begin(), leaves.end(), uint64_t{0}));
  }
}

TEST(SumPlan, runsOfAChunkEndAtLeavesAndBlocks) {
  const SumPlan plan(Shape(DType::kFloat32, {1500, 10}), 360, 256);
  std::vector<std::tuple<uint32_t, uint64_t, uint32_t, uint64_t, uint32_t>> runs;
  plan.ForEachRun(1400, 105, [&](const ElementRun& run) {
    runs.emplace_back(run.leaf, run.first, run.count, run.block, run.offset);
  });
  const decltype(runs) expected = {{0, 1400, 40, 0, 0}, {0, 1440, 60, 1, 40}, {1, 0, 5, 2, 100}};
  EXPECT_EQ(runs, expected);
}

}  // namespace
}  // namespace passing
