#include "host/packets/chunk_packets.h"

#include <gtest/gtest.h>

#include <iterator>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "host/numbers/fixed_point.h"
#include "host/sums/sum_passes.h"
#include "wire/lanes.h"

namespace passing {
namespace {

// Two switches, of which the second one takes only whole packets.
const JobConfig kJob{.rank = 1,
                     .world_size = 2,
                     .shards = {{.job = 3, .epoch = 7, .slot_first = 0, .worker = 1},
                                {.job = 9, .epoch = 2, .slot_first = 128, .worker = 4, .whole_lanes = 100}},
                     .slots_per_shard = 64,
                     .lanes_per_chunk = 64};

// A sum of one small leaf and its only segment.
template <typename T>
struct SmallSum {
  std::vector<T> elements;
  ElementPass sum;
  PlacedSegment placed;

  SmallSum(DType dtype, std::vector<T> values, uint64_t first_position, Op op = Op::kSum)
      : elements(std::move(values)),
        sum({.key = {},
             .spec = std::make_shared<SumSpec>(
                 SumSpec{.site_name = "x", .dtype = dtype, .leaf_elements = {elements.size()}, .op = op}),
             .inputs = {elements.data()},
             .outputs = {elements.data()}},
            {.lanes_per_chunk = kJob.lanes_per_chunk, .window = 128}, Rank{.world_size = kJob.world_size},
            /*started_us=*/0) {
    const Segment& segment = sum.plan().segment(0);
    placed.entry = {
        .id = {}, .chunk_count = segment.chunk_count(), .segment_count = 1, .first_position = first_position};
    placed.sum = &sum;
    placed.exponents = SegmentExponents(segment, sum.Exponents(segment), kJob.rank, kJob.world_size);
  }
  uint32_t exponent_chunk() const { return placed.segment().exponents_at; }
  uint32_t data_chunk() const {  // the first
    return exponent_chunk() == 0 ? 1 : 0;
  }
};

wire::Header ResultOf(wire::Header header) {
  header.type = wire::PacketType::kResult;
  header.worker = wire::kEveryWorker;
  return header;
}

// A run of 32 positions goes to one switch, the next to the other.
TEST(ChunkPackets, aPacketGoesToTheSlotOfItsPosition) {
  const ChunkPackets packets(kJob);
  struct Row {
    uint64_t position;
    uint16_t job, epoch, worker, slot;
    uint8_t version;
    uint32_t sequence;
  };
  const Row rows[] = {
      {0, 3, 7, 1, 0, 0, 0},       {31, 3, 7, 1, 31, 0, 31},    {32, 9, 2, 4, 128, 0, 32},
      {64, 3, 7, 1, 32, 0, 64},    {127, 9, 2, 4, 191, 0, 127}, {128, 3, 7, 1, 0, 1, 128},
      {160, 9, 2, 4, 128, 1, 160}, {256, 3, 7, 1, 0, 0, 256},   {(uint64_t{5} << 32) + 33, 9, 2, 4, 129, 0, 33}};
  for (const Row& row : rows) {
    const SmallSum<int32_t> sum(DType::kInt32, {1, 2, 3}, row.position);
    const wire::Header header = packets.HeaderOf(packets.At(sum.placed, 0));
    EXPECT_EQ(header.type, wire::PacketType::kContribution);
    EXPECT_EQ(header.flags, 0);
    EXPECT_EQ(header.job, row.job) << row.position;
    EXPECT_EQ(header.epoch, row.epoch) << row.position;
    EXPECT_EQ(header.worker, row.worker) << row.position;
    EXPECT_EQ(header.slot, row.slot) << row.position;
    EXPECT_EQ(header.version, row.version) << row.position;
    EXPECT_EQ(header.sequence, row.sequence) << row.position;
    EXPECT_EQ(header.element_count, row.job == 9 ? 100 : 3) << row.position;
  }
}

TEST(ChunkPackets, exponentsAndMaximaAreMaximised) {
  const ChunkPackets packets(kJob);
  const SmallSum<float> floats(DType::kFloat32, {1, 2, 3}, 0);
  EXPECT_EQ(packets.HeaderOf(packets.At(floats.placed, floats.exponent_chunk())).lane_format,
            wire::LaneFormat::kMaxInt32);
  EXPECT_EQ(packets.HeaderOf(packets.At(floats.placed, floats.exponent_chunk())).element_count,
            3 * kNumbersPerBlock + kGuessNumbers);
  EXPECT_EQ(packets.HeaderOf(packets.At(floats.placed, floats.data_chunk())).lane_format, wire::LaneFormat::kSumInt32);
  EXPECT_EQ(packets.HeaderOf(packets.At(floats.placed, floats.data_chunk())).element_count, 3 * 2);
  const SmallSum<int32_t> maxima(DType::kInt32, {1}, 0, Op::kMax);
  EXPECT_EQ(packets.HeaderOf(packets.At(maxima.placed, 0)).lane_format, wire::LaneFormat::kMaxInt32);
}

TEST(ChunkPackets, writesTheExponentsOfTheBlocks) {
  const ChunkPackets packets(kJob);
  const SmallSum<float> sum(DType::kFloat32, {1, 6, -3}, 0);
  std::vector<uint8_t> packet(wire::kMaxPacketBytes);
  packets.Write(packets.At(sum.placed, sum.exponent_chunk()), packet.data());
  const uint8_t* lanes = &packet[wire::kHeaderBytes];
  const int32_t expected[] = {2 * 1 + 1, -3, 2 * 3 + 1, -7, 2 * 2 + 1, -5};  // 1 < 2^1, 6 < 2^3, |-3| < 2^2; of rank 1
  for (size_t i = 0; i < std::size(expected); ++i) {
    EXPECT_EQ(static_cast<int32_t>(wire::LoadLane(lanes, i)), expected[i]) << i;
  }
}

TEST(ChunkPackets, onlyTheDataOfFloatsMayBeFlagged) {
  const ChunkPackets packets(kJob);
  const auto may_be_flagged = [&](const PlacedSegment& placed, uint32_t chunk) {
    wire::Header result = ResultOf(packets.HeaderOf(packets.At(placed, chunk)));
    result.flags = wire::kFlagNaN;
    return packets.IsResult(result, packets.At(placed, chunk));
  };
  const SmallSum<float> floats(DType::kFloat32, {1, 2, 3}, 0);
  EXPECT_TRUE(may_be_flagged(floats.placed, floats.data_chunk()));
  EXPECT_FALSE(may_be_flagged(floats.placed, floats.exponent_chunk()));
  const SmallSum<int32_t> integers(DType::kInt32, {1, 2, 3}, 0);
  EXPECT_FALSE(may_be_flagged(integers.placed, 0));
}

// The counters of a second pass are integers, but they don't wrap as a sum of integers does, whose highest bits are
// checked badly (sum_check.h).
TEST(ChunkPackets, anyAlteredBitOfAClassIsSeen) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (uint8_t number = 0; number < 100; ++number) {
    const JobConfig job{.rank = 0,
                        .world_size = 1,
                        .shards = {{.job = 3, .epoch = 7}},
                        .slots_per_shard = 64,
                        .lanes_per_chunk = 64,
                        .check_key = SumCheck::Key{number}};
    const ChunkPackets packets(job);
    std::vector<float> elements{1, -kInf, 3, kInf};
    Sum sum{.key = {},
            .spec = std::make_shared<SumSpec>(
                SumSpec{.site_name = "x", .dtype = DType::kFloat32, .leaf_elements = {elements.size()}}),
            .inputs = {elements.data()},
            .outputs = {elements.data()}};
    auto first = std::make_unique<ElementPass>(std::move(sum), packets.limits(), Rank{}, /*started_us=*/0);
    const Segment& segment = first->plan().segment(0);
    const uint32_t data_chunk = segment.exponents_at == 0 ? 1 : 0;
    std::vector<uint8_t> lanes(4 * job.lanes_per_chunk);
    const uint8_t flags = first->Encode(segment, data_chunk, first->Exponents(segment), lanes.data());
    first->Decode(segment, data_chunk, first->Exponents(segment), lanes.data(), flags);
    const auto second = first->NextPass(packets.limits());
    ASSERT_NE(second, nullptr);
    PlacedSegment placed;
    placed.entry = {.id = {}, .chunk_count = 1, .segment_count = 1, .first_position = 5};
    placed.sum = second.get();
    std::vector<uint8_t> packet(wire::kMaxPacketBytes);
    packets.Write(packets.At(placed, 0), packet.data());
    uint8_t* classes = &packet[wire::kHeaderBytes];
    ASSERT_EQ(wire::LoadLane(classes, 1), 1u);  // -inf
    ASSERT_TRUE(packets.IsSum(packets.At(placed, 0), 0, classes));
    for (uint32_t bit = 0; bit < 32; ++bit) {
      wire::StoreLane(classes, 0, 1u << bit);
      EXPECT_FALSE(packets.IsSum(packets.At(placed, 0), 0, classes)) << "key " << int{number} << ", bit " << bit;
    }
  }
}

// Where lanes are masked, each rank has a lane of its own for an element of a maximum, so it can't wrap.
TEST(ChunkPackets, anyAlteredBitOfAMaskedMaximumIsSeen) {
  for (uint8_t number = 0; number < 20; ++number) {
    JobConfig job = kJob;
    job.shards.pop_back();
    job.check_key = SumCheck::Key{number};
    job.mask_key = LaneMasks::Key{number};
    job.rank = 0;
    job.world_size = 1;
    const ChunkPackets packets(job);
    std::vector<int32_t> elements{7};
    ElementPass sum({.key = {},
                     .spec = std::make_shared<SumSpec>(SumSpec{
                         .site_name = "x", .dtype = DType::kInt32, .leaf_elements = {elements.size()}, .op = Op::kMax}),
                     .inputs = {elements.data()},
                     .outputs = {elements.data()}},
                    packets.limits(), packets.rank(), /*started_us=*/0);
    PlacedSegment placed;
    placed.entry = {.id = {}, .chunk_count = 1, .segment_count = 1, .first_position = 5};
    placed.sum = &sum;
    std::vector<uint8_t> packet(wire::kMaxPacketBytes), scratch(4 * wire::kMaxLanes);
    packets.Write(packets.At(placed, 0), packet.data());
    uint8_t* const lanes = &packet[wire::kHeaderBytes];
    const auto is_sum = [&] {
      const auto [unmasked, flags] =
          packets.Unmasked(packets.At(placed, 0), packets.HeaderOf(packets.At(placed, 0)), lanes, scratch.data());
      return packets.IsSum(packets.At(placed, 0), flags, unmasked);
    };
    ASSERT_TRUE(is_sum());
    for (uint32_t bit = 0; bit < 32; ++bit) {
      wire::StoreLane(lanes, 0, wire::LoadLane(lanes, 0) ^ 1u << bit);
      EXPECT_FALSE(is_sum()) << "key " << int{number} << ", bit " << bit;
      wire::StoreLane(lanes, 0, wire::LoadLane(lanes, 0) ^ 1u << bit);
    }
  }
}

}  // namespace
}  // namespace passing
