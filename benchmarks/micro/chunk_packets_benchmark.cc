// Times what a host does with the packets of a large sum of float32 over two hosts, but for sending and receiving them:
// it writes a segment's chunks, or takes their results. Built with -DPASSING_BUILD_TESTS=ON. "per KB": of the sum.
//
//   chunk_packets_benchmark --benchmark_repetitions=20 --benchmark_enable_random_interleaving=true
#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "host/packets/chunk_packets.h"
#include "host/sums/sum_passes.h"
#include "wire/header.h"
#include "wire/lanes.h"

namespace passing {
namespace {

constexpr uint16_t kRanks = 2;
constexpr uint64_t kElements = 22784;  // a segment of checked sums

JobConfig Job(uint16_t rank, bool checked, bool masked) {
  return {.rank = rank,
          .world_size = kRanks,
          .shards = {{.job = 1, .epoch = 1, .worker = rank, .bare = true}},
          .slots_per_shard = 1024,
          .check_key = checked ? std::optional(SumCheck::Key{1}) : std::nullopt,
          .mask_key = masked ? std::optional(LaneMasks::Key{1}) : std::nullopt};
}

// A rank with the first segment of its sum, whose exponents it has learned.
class SummingRank {
 public:
  SummingRank(uint16_t rank, bool checked, bool masked) : packets_(Job(rank, checked, masked)) {
    const Segment& segment = pass_.plan().segment(0);
    placed_.entry = {.id = {}, .chunk_count = segment.chunk_count(), .segment_count = 1};
    placed_.sum = &pass_;
    placed_.digest = packets_.DigestOf(placed_.entry);
    placed_.exponents = SegmentExponents(segment, pass_.Exponents(segment), rank, kRanks);
  }
  const Segment& segment() const { return placed_.segment(); }
  uint32_t first_chunk() const { return segment().exponent_chunks; }
  uint32_t end_chunk() const { return segment().chunk_count(); }
  size_t Write(uint32_t index, uint8_t* packet) { return packets_.Write(packets_.At(placed_, index), packet).bytes; }
  // As AllReduce does.
  void TakeExponents(uint32_t index, std::span<const uint8_t> packet) {
    const Result result = Read(index, packet);
    const uint8_t* const numbers = packets_.Maxima(result.chunk, result.lanes, scratch_.data());
    if (numbers == nullptr) std::abort();
    packets_.TakeExponents(placed_, index, numbers);
  }
  void TakeData(uint32_t index, std::span<const uint8_t> packet) {
    const Result result = Read(index, packet);
    const uint8_t* const lanes = packets_.Lanes(result.chunk, result.header, result.lanes, scratch_.data());
    pass_.Decode(segment(), index, placed_.exponents.of_data(), lanes, result.flags);
  }

 private:
  struct Result {
    PlacedChunk chunk;
    wire::Header header;
    const uint8_t* lanes;
    uint8_t flags;
  };
  Result Read(uint32_t index, std::span<const uint8_t> packet) {
    const PlacedChunk chunk = packets_.At(placed_, index);
    wire::Header header;
    if (wire::Decode(packet, header) != wire::DecodeError::kNone) std::abort();
    if (!packets_.IsResult(header, chunk)) std::abort();
    const auto [lanes, flags] = packets_.Unmasked(chunk, header, packet.data() + wire::kHeaderBytes, unmasked_.data());
    if (!packets_.IsSum(chunk, flags, lanes)) std::abort();
    return {chunk, header, lanes, flags};
  }

  const std::vector<float> in_ = std::vector<float>(kElements, 1.5F);
  std::vector<float> out_ = std::vector<float>(kElements);
  const ChunkPackets packets_;
  ElementPass pass_{{.key = {},
                     .spec = std::make_shared<SumSpec>(
                         SumSpec{.site_name = "x", .dtype = DType::kFloat32, .leaf_elements = {kElements}}),
                     .inputs = {in_.data()},
                     .outputs = {out_.data()}},
                    packets_.limits(),
                    packets_.rank(),
                    /*started_us=*/0};
  PlacedSegment placed_;
  std::array<uint8_t, 4 * wire::kMaxLanes> unmasked_, scratch_;
};

// A switch that sums two ranks' packets.
std::vector<uint8_t> ResultOf(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  wire::Header header;
  if (wire::Decode(a, header) != wire::DecodeError::kNone) std::abort();
  std::vector<uint8_t> result = a;
  for (uint32_t i = 0; i < header.element_count; ++i) {
    const uint32_t x = wire::LoadLane(&a[wire::kHeaderBytes], i), y = wire::LoadLane(&b[wire::kHeaderBytes], i);
    const bool first_is_greater = static_cast<int32_t>(x) > static_cast<int32_t>(y);
    wire::StoreLane(&result[wire::kHeaderBytes], i,
                    header.lane_format == wire::LaneFormat::kSumInt32 ? x + y
                    : first_is_greater                                ? x
                                                                      : y);
  }
  header.type = wire::PacketType::kResult;
  header.worker = wire::kEveryWorker;
  wire::Encode(header, result.data());
  return result;
}

// Two ranks, and the results of all chunks.
struct Sum2 {
  SummingRank ranks[kRanks];
  std::vector<std::vector<uint8_t>> results;

  Sum2(bool checked, bool masked) : ranks{{0, checked, masked}, {1, checked, masked}} {
    for (uint32_t chunk = 0; chunk < ranks[0].end_chunk(); ++chunk) {
      std::vector<uint8_t> packets[kRanks];
      for (uint16_t rank = 0; rank < kRanks; ++rank) {
        packets[rank].resize(wire::kMaxPacketBytes);
        packets[rank].resize(ranks[rank].Write(chunk, packets[rank].data()));
      }
      results.push_back(ResultOf(packets[0], packets[1]));
      if (chunk >= ranks[0].first_chunk()) continue;
      for (SummingRank& rank : ranks) rank.TakeExponents(chunk, results[chunk]);
    }
  }
};

void PerKb(benchmark::State& state) {
  const double kilobytes = static_cast<double>(state.iterations()) * kElements * sizeof(float) / 1024;
  state.counters["per KB"] = benchmark::Counter(kilobytes, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void Write(benchmark::State& state, bool checked, bool masked) {
  Sum2 sum(checked, masked);
  SummingRank& rank = sum.ranks[state.range(0)];
  std::array<uint8_t, wire::kMaxPacketBytes> packet;
  for (auto _ : state) {
    for (uint32_t chunk = rank.first_chunk(); chunk < rank.end_chunk(); ++chunk) {
      benchmark::DoNotOptimize(rank.Write(chunk, packet.data()));
      benchmark::ClobberMemory();
    }
  }
  PerKb(state);
}

void Take(benchmark::State& state, bool checked, bool masked) {
  Sum2 sum(checked, masked);
  SummingRank& rank = sum.ranks[state.range(0)];
  for (auto _ : state) {
    for (uint32_t chunk = rank.first_chunk(); chunk < rank.end_chunk(); ++chunk) {
      rank.TakeData(chunk, sum.results[chunk]);
      benchmark::ClobberMemory();
    }
  }
  PerKb(state);
}

BENCHMARK_CAPTURE(Write, plain, false, false)->Arg(0)->Arg(1)->ArgName("rank");
BENCHMARK_CAPTURE(Write, checked, true, false)->Arg(0)->Arg(1)->ArgName("rank");
BENCHMARK_CAPTURE(Write, masked, false, true)->Arg(0)->Arg(1)->ArgName("rank");
BENCHMARK_CAPTURE(Write, confidential, true, true)->Arg(0)->Arg(1)->ArgName("rank");
BENCHMARK_CAPTURE(Take, plain, false, false)->Arg(0)->ArgName("rank");
BENCHMARK_CAPTURE(Take, checked, true, false)->Arg(0)->ArgName("rank");
BENCHMARK_CAPTURE(Take, masked, false, true)->Arg(0)->ArgName("rank");
BENCHMARK_CAPTURE(Take, confidential, true, true)->Arg(0)->ArgName("rank");

}  // namespace
}  // namespace passing

BENCHMARK_MAIN();
