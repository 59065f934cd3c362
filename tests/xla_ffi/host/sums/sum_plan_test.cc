#include "host/sums/sum_plan.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace passing {
namespace {

SumSpec Shape(DType dtype, std::vector<uint64_t> leaves) {
  return {.site_name = "test", .dtype = dtype, .leaf_elements = std::move(leaves)};
}

TEST(SumPlan, oneGibibyteOfFloat32HasOnlyFullChunks) {
  const SumPlan plan(Shape(DType::kFloat32, {uint64_t{1} << 28}), {.lanes_per_chunk = 360, .window = 256},
                     /*world_size=*/2);
  EXPECT_EQ(plan.segment_count(), ((uint64_t{1} << 28) + 23039) / 23040);
  EXPECT_EQ(plan.segment(0).cell_count, 23040u);
  EXPECT_EQ(plan.segment(0).block_count, 90u);
  EXPECT_EQ(plan.segment(0).exponent_chunks, 1u);
  EXPECT_EQ(plan.segment(0).data_chunks, 64u);
}

// As of packets with three lanes of a check, one of masks, or both.
TEST(SumPlan, chunksOfOtherLengthsAreFullToo) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt32}) {
    for (const uint32_t lanes : {357u, 359u, 253u, 61u}) {
      const SumPlan plan(Shape(dtype, {uint64_t{1} << 24}), {.lanes_per_chunk = lanes, .window = 256},
                         /*world_size=*/2);
      const uint32_t full = plan.DataRange(plan.segment(0), plan.segment(0).exponent_chunks).count;
      EXPECT_LE(plan.LanesOf(full), lanes);
      EXPECT_GE(plan.LanesOf(full), lanes - 3);
      for (uint32_t segment = 0; segment + 1 < plan.segment_count(); ++segment) {
        EXPECT_EQ(plan.segment(segment).cell_count % full, 0u) << lanes << " lanes, segment " << segment;
        EXPECT_LE(plan.LanesOf(plan.segment(segment).cell_count), kSegmentLanes);
        EXPECT_GE(plan.LanesOf(plan.segment(segment).cell_count), kSegmentLanes / 2);
      }
    }
  }
}

TEST(SumPlan, twoBFloat16ShareALane) {
  const SumPlan plan(Shape(DType::kBFloat16, {uint64_t{1} << 28}), {.lanes_per_chunk = 360, .window = 256},
                     /*world_size=*/2);
  EXPECT_EQ(plan.segment_count(), ((uint64_t{1} << 28) + 46079) / 46080);
  EXPECT_EQ(plan.segment(0).cell_count, 46080u);
  EXPECT_EQ(plan.segment(0).block_count, 180u);
  EXPECT_EQ(plan.segment(0).exponent_chunks, 1u);
  EXPECT_EQ(plan.segment(0).data_chunks, 64u);
  EXPECT_EQ(plan.DataRange(plan.segment(0), 1).count, 720u);
  EXPECT_EQ(plan.LanesOf(720), 360u);
}

// A leaf of odd size has its last lane for itself, so that its bits don't depend on the leaves beside it.
TEST(SumPlan, noLaneBelongsToTwoLeaves) {
  const SumPlan plan(Shape(DType::kBFloat16, {3, 1, 1441, 2}), {.lanes_per_chunk = 3, .window = 256}, /*world_size=*/2);
  ASSERT_EQ(plan.segment_count(), 1u);
  EXPECT_EQ(plan.segment(0).cell_count, 4u + 2u + 1442u + 2u);
  EXPECT_EQ(plan.segment(0).block_count, 2u + 1u + 91u + 1u);
  EXPECT_EQ(plan.Block(1).count, 1u);
  std::vector<std::tuple<uint32_t, uint64_t, uint32_t, uint64_t, uint32_t>> runs;
  plan.ForEachRun(
      0, 10, [&](const ElementRun& run) { runs.emplace_back(run.leaf, run.first, run.count, run.block, run.offset); });
  const decltype(runs) expected = {{0, 0, 2, 0, 0}, {0, 2, 1, 1, 2}, {1, 0, 1, 2, 4}, {2, 0, 4, 3, 6}};
  EXPECT_EQ(runs, expected);
}

// As where the classes of a narrow wire's elements travel, one a lane, in chunks that end within a leaf's padding.
TEST(SumPlan, paddingHasNoElements) {
  SumSpec shape = Shape(DType::kFloat32, {1, 9, 1000});
  shape.wire_dtype = WireDtype::kInt4;
  const SumPlan plan(shape, {.lanes_per_chunk = 3, .window = 256}, /*world_size=*/2);
  for (uint64_t first = 0; first < 24; ++first) {
    for (uint64_t end = first + 1; end <= 24; ++end) {
      uint64_t count = 0;
      plan.ForEachRun(first, end - first, [&](const ElementRun& run) {
        count += run.count;
        EXPECT_LE(run.count, run.leaf == 0 ? 1u : 9u) << first << ' ' << end;
      });
      EXPECT_EQ(count, plan.ElementsBefore(end) - plan.ElementsBefore(first)) << first << ' ' << end;
    }
  }
}

TEST(SumPlan, elementsBeforeACell) {
  const SumPlan pairs(Shape(DType::kBFloat16, {3, 1, 1441, 2}), {.lanes_per_chunk = 3, .window = 256},
                      /*world_size=*/2);
  const std::vector<std::pair<uint64_t, uint64_t>> expected = {{0, 0}, {2, 2},       {3, 3},       {4, 3},      {5, 4},
                                                               {6, 4}, {1446, 1444}, {1448, 1445}, {1450, 1447}};
  for (const auto& [cell, elements] : expected) EXPECT_EQ(pairs.ElementsBefore(cell), elements) << cell;
  const SumPlan plan(Shape(DType::kFloat32, {10, 20}), {.lanes_per_chunk = 360, .window = 256}, /*world_size=*/2);
  for (uint64_t cell = 0; cell <= 30; ++cell) EXPECT_EQ(plan.ElementsBefore(cell), cell);
}

TEST(SumPlan, integersNeedNoExponents) {
  const SumPlan plan(Shape(DType::kInt64, {10'000}), {.lanes_per_chunk = 64, .window = 256}, /*world_size=*/2);
  EXPECT_EQ(plan.DataRange(plan.segment(0), 0).count, 21u);
  for (uint32_t i = 0; i < plan.segment_count(); ++i) EXPECT_EQ(plan.segment(i).exponent_chunks, 0u);
  EXPECT_EQ(plan.segment_count(), 2u);  // 23,040 / 3 = 7,680 elements a segment
}

// Maxima are cut as sums are, and need no exponents to be compared.
TEST(SumPlan, maximaAreOfInt32Alone) {
  SumSpec shape = Shape(DType::kInt32, {50'000, 1});
  const SumPlan sums(shape, {.lanes_per_chunk = 360, .window = 256}, /*world_size=*/2);
  shape.op = Op::kMax;
  const SumPlan maxima(shape, {.lanes_per_chunk = 360, .window = 256}, /*world_size=*/2);
  ASSERT_EQ(maxima.segment_count(), sums.segment_count());
  for (uint32_t i = 0; i < maxima.segment_count(); ++i) {
    EXPECT_EQ(maxima.segment(i).data_chunks, sums.segment(i).data_chunks);
    EXPECT_EQ(maxima.segment(i).chunk_count(), maxima.segment(i).data_chunks);
  }
  for (const DType dtype : {DType::kUint32, DType::kInt8, DType::kInt64, DType::kFloat32}) {
    shape.dtype = dtype;
    EXPECT_DEATH(SumPlan(shape, {.lanes_per_chunk = 360, .window = 256}, /*world_size=*/2), "kInt32")
        << static_cast<int>(dtype);
  }
}

TEST(SumPlan, aThousandScalarLeavesHaveABlockEach) {
  const SumPlan plan(Shape(DType::kFloat32, std::vector<uint64_t>(1000, 1)), {.lanes_per_chunk = 256, .window = 256},
                     /*world_size=*/2);
  ASSERT_EQ(plan.segment_count(), 1u);
  EXPECT_EQ(plan.segment(0).block_count, 1000u);
  EXPECT_EQ(plan.segment(0).exponent_chunks, 8u);
  EXPECT_EQ(plan.Block(17).leaf, 17u);
}

TEST(SumPlan, onlySmallSumsOfFewBlocksGuessTheirExponents) {
  const auto repeats = [](DType dtype, std::vector<uint64_t> leaves, uint32_t lanes_per_chunk, uint32_t slot_count) {
    return SumPlan(Shape(dtype, std::move(leaves)), {.lanes_per_chunk = lanes_per_chunk, .window = slot_count},
                   /*world_size=*/2)
        .segment(0)
        .repeat_chunks;
  };
  EXPECT_EQ(repeats(DType::kFloat32, {1}, 360, 256), 1u);
  EXPECT_EQ(repeats(DType::kFloat32, {720}, 360, 256), 4u);
  EXPECT_EQ(repeats(DType::kFloat32, {721}, 360, 256), 0u);
  EXPECT_EQ(repeats(DType::kBFloat16, {720}, 360, 256), 4u);
  EXPECT_EQ(repeats(DType::kFloat64, {480}, 360, 256), 4u);
  EXPECT_EQ(repeats(DType::kFloat64, {481}, 360, 256), 0u);
  EXPECT_EQ(repeats(DType::kInt32, {1}, 360, 256), 0u);
  EXPECT_EQ(repeats(DType::kFloat32, std::vector<uint64_t>(178, 1), 360, 256), 1u);
  EXPECT_EQ(repeats(DType::kFloat32, std::vector<uint64_t>(179, 1), 360, 256), 0u);  // two exponent chunks
  EXPECT_EQ(repeats(DType::kFloat32, {720}, 360, 8), 0u);  // 1 + 2 x 4 chunks don't fit into the window
}

// Their bits don't depend on packets: those that guess and those that can't are cut into the same blocks and lanes.
TEST(SumPlan, smallSumsArePreciseWhateverTheirPackets) {
  for (const auto& [elements, precise] : {std::pair{720u, true}, {721u, false}}) {
    for (const uint32_t lanes : {8u, 64u, 360u}) {
      for (const WireDtype wire_dtype : {WireDtype::kFull, WireDtype::kInt8}) {
        SumSpec shape = Shape(DType::kFloat32, {elements});
        shape.wire_dtype = wire_dtype;
        const SumPlan plan(shape, {.lanes_per_chunk = lanes, .window = 256}, /*world_size=*/2);
        EXPECT_EQ(plan.format().precise, precise);
        EXPECT_EQ(plan.format().is_narrow(), !precise && wire_dtype == WireDtype::kInt8);
        EXPECT_EQ(plan.BlockElementsOf(0), plan.format().is_narrow() ? kMaxBlockElements : 8u);
      }
    }
  }
}

// The longer packet goes first, so that the kernel takes both in one send; every chunk still has one meaning.
TEST(SumPlan, guessedDataStandsOnOneSideOfItsExponents) {
  const Segment scalar =
      SumPlan(Shape(DType::kFloat32, {1}), {.lanes_per_chunk = 360, .window = 256}, /*world_size=*/2).segment(0);
  EXPECT_TRUE(scalar.CarriesExponents(0));
  EXPECT_TRUE(scalar.CarriesGuessedData(1));
  EXPECT_FALSE(scalar.CarriesGuessedData(2));

  const Segment kilobyte =
      SumPlan(Shape(DType::kFloat32, {300}), {.lanes_per_chunk = 360, .window = 256}, /*world_size=*/2).segment(0);
  ASSERT_EQ(kilobyte.chunk_count(), 5u);
  EXPECT_TRUE(kilobyte.CarriesExponents(2));
  const uint32_t data[] = {0, 1, 0, 1};
  const uint32_t chunks[] = {0, 1, 3, 4};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(kilobyte.CarriesGuessedData(chunks[i]), i < 2);
    EXPECT_EQ(kilobyte.DataChunk(chunks[i]), data[i]);
  }
}

TEST(SumPlan, segmentsCoverEveryElementOnceInWholeBlocks) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<uint64_t> leaves;
    for (uint32_t i = 0; i <= random() % 20; ++i) leaves.push_back(1 + random() % (i % 3 == 0 ? 100'000 : 2000));
    const DType dtypes[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16};
    const WireDtype wires[] = {WireDtype::kFull, WireDtype::kInt16, WireDtype::kInt8, WireDtype::kInt4};
    SumSpec shape = Shape(dtypes[random() % 3], leaves);
    if (MayBeNarrow(shape.dtype)) shape.wire_dtype = wires[random() % 4];
    const uint32_t lanes_per_chunk[] = {3, 7, 64, 360, 2229, 2232};
    const SumPlan plan(shape, {.lanes_per_chunk = lanes_per_chunk[random() % 6], .window = 256}, /*world_size=*/2);
    const uint64_t together = LaneGroupOf(plan.format()).elements;
    const auto cells = [&](uint64_t elements) { return (elements + together - 1) / together * together; };
    uint64_t cell = 0;
    uint64_t block = 0;
    for (uint32_t i = 0; i < plan.segment_count(); ++i) {
      const Segment& segment = plan.segment(i);
      ASSERT_EQ(segment.first_cell, cell);
      ASSERT_EQ(segment.first_block, block);
      ASSERT_GT(segment.cell_count, 0u);
      ASSERT_LE(plan.LanesOf(segment.cell_count), kSegmentLanes);
      uint64_t in_blocks = 0;
      for (uint32_t b = 0; b < segment.block_count; ++b) in_blocks += cells(plan.Block(block + b).count);
      ASSERT_EQ(in_blocks, segment.cell_count);
      // The runs of the segment are its blocks.
      uint32_t offset = 0;
      plan.ForEachRun(cell, segment.cell_count, [&](const ElementRun& run) {
        const ElementRun whole = plan.Block(run.block);
        ASSERT_EQ(run.offset, offset);
        ASSERT_EQ(run.leaf, whole.leaf);
        ASSERT_EQ(run.first, whole.first);
        ASSERT_EQ(run.count, whole.count);
        offset += static_cast<uint32_t>(cells(run.count));
      });
      // Its chunks cover its elements once, each lane whole.
      uint64_t elements = 0, in_chunks = 0;
      for (uint32_t chunk = 0; chunk < segment.data_chunks; ++chunk) {
        const ChunkRange range = plan.DataRange(segment, segment.exponent_chunks + chunk);
        ASSERT_EQ(range.first, cell + in_chunks);
        ASSERT_EQ(cells(range.count), range.count);
        uint32_t lane = 0;
        plan.ForEachRun(range.first, range.count, [&](const ElementRun& run) {
          ASSERT_GT(run.count, 0u);
          ASSERT_EQ(plan.LanesOf(run.offset), lane);
          lane += static_cast<uint32_t>(LaneCount(plan.format(), run.count));
          elements += run.count;
        });
        ASSERT_EQ(lane, plan.LanesOf(range.count));
        in_chunks += range.count;
      }
      uint64_t expected = 0;
      for (uint32_t b = 0; b < segment.block_count; ++b) expected += plan.Block(block + b).count;
      ASSERT_EQ(elements, expected);
      cell += segment.cell_count;
      block += segment.block_count;
    }
    ASSERT_EQ(cell, std::accumulate(leaves.begin(), leaves.end(), uint64_t{0},
                                    [&](uint64_t sum, uint64_t leaf) { return sum + cells(leaf); }));
  }
}

// Also of sums that are checked or masked, which have less room in a packet: a shorter one ends a super-packet.
TEST(SumPlan, longChunksOfFloatsAreFull) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const uint32_t lanes : {2179u, 2229u, 2231u, 2232u}) {
      const SumPlan plan(Shape(dtype, {uint64_t{1} << 28}), {.lanes_per_chunk = lanes, .window = 128},
                         /*world_size=*/2);
      const Segment& segment = plan.segment(0);
      EXPECT_EQ(segment.exponent_chunks, 1u);
      EXPECT_EQ(segment.data_chunks, 10u);
      for (uint32_t chunk = 1; chunk <= 10; ++chunk) {
        EXPECT_EQ(plan.LanesOf(plan.DataRange(segment, chunk).count), 2176u) << lanes;
      }
    }
  }
  const SumPlan integers(Shape(DType::kInt32, {1 << 20}), {.lanes_per_chunk = 2232, .window = 128}, /*world_size=*/2);
  EXPECT_EQ(integers.segment(0).cell_count, 10 * 2232u);
}

TEST(SumPlan, hostsPartsTakeTurns) {
  for (const DType dtype : {DType::kFloat32, DType::kInt32}) {
    SumSpec shape = Shape(dtype, {8 * 23040, 4});
    shape.moves = Moves::kScatter;
    const SumPlan plan(shape, {.lanes_per_chunk = 360, .window = 256}, /*world_size=*/4);
    ASSERT_EQ(plan.segment_count(), 9u);
    for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(plan.segment(i).first_cell, (i % 4 * 2 + i / 4) * 23040u) << i;
  }
}

TEST(SumPlan, runsOfAChunkEndAtLeavesAndBlocks) {
  const SumPlan plan(Shape(DType::kFloat32, {1500, 10}), {.lanes_per_chunk = 360, .window = 256}, /*world_size=*/2);
  std::vector<std::tuple<uint32_t, uint64_t, uint32_t, uint64_t, uint32_t>> runs;
  plan.ForEachRun(1474, 28, [&](const ElementRun& run) {
    runs.emplace_back(run.leaf, run.first, run.count, run.block, run.offset);
  });
  const decltype(runs) expected = {{0, 1474, 14, 92, 0}, {0, 1488, 12, 93, 14}, {1, 0, 1, 94, 26}, {1, 1, 1, 95, 27}};
  EXPECT_EQ(runs, expected);
}

}  // namespace
}  // namespace passing
