#include "host/sums/sum_plan.h"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

namespace passing {
namespace {

constexpr uint32_t kMaxGuessedChunks = 4;
constexpr uint32_t kLongChunkLanes = 1024;

uint64_t CeilDiv(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// It depends on the shape alone, as results do.
ElementFormat FormatOf(const SumSpec& spec, uint32_t world_size) {
  ElementFormat format{.dtype = spec.dtype, .wire_dtype = spec.wire_dtype, .world_size = world_size};
  if (!IsFloat(spec.dtype)) return format;
  format.precise = true;
  format.precise = spec.elements() <= kPreciseLanesOfSum / LaneGroupOf(format).lanes;
  return format;
}

// Floats fill a multiple of four lanes: 64 such chunks are whole blocks of 256. Of long chunks a segment has but ten:
// two of a multiple of 128 lanes are whole blocks.
uint32_t CellsOfChunk(const ElementFormat& format, const LaneGroup& group, uint32_t lanes) {
  const uint32_t step = lanes >= kLongChunkLanes ? 128 : lanes > 4 ? 4 : 1;
  const uint32_t used = IsFloat(format.dtype) ? lanes / step * step : lanes;
  return used / group.lanes * group.elements;
}

uint32_t CellsOfSegment(const ElementFormat& format, const LaneGroup& group, uint32_t cells_per_chunk) {
  const uint32_t most = kSegmentLanes / group.lanes * group.elements;
  const uint32_t block = IsFloat(format.dtype) ? BlockElements(format, UINT32_MAX) : 1;
  const uint32_t step = std::lcm(cells_per_chunk, block);
  return step <= most ? most / step * step : most;
}

}  // namespace

SumPlan::SumPlan(const SumSpec& spec, const PlanLimits& limits, uint32_t world_size)
    : limits_(limits),
      format_(FormatOf(spec, world_size)),
      maxima_apart_(limits.maxima_apart && spec.op == Op::kMax),
      group_(maxima_apart_ ? LaneGroup{1, world_size} : LaneGroupOf(format_)),
      cells_per_chunk_(CellsOfChunk(format_, group_, limits.lanes_per_chunk)) {
  const uint16_t per_block = limits.exponents_apart ? static_cast<uint16_t>(CeilDiv(world_size, kRanksPerLane))
                             : format_.is_narrow()  ? 1
                                                    : kNumbersPerBlock;
  const uint32_t guess_numbers = limits.exponents_apart ? world_size : kGuessNumbers;
  const uint32_t numbers_per_chunk = limits.lanes_per_chunk / limits.lanes_per_exponent;
  assert(cells_per_chunk_ > 0 && numbers_per_chunk >= per_block);
  assert(spec.op == Op::kSum || spec.dtype == DType::kInt32);  // other dtypes' lanes don't compare as their elements
  // A block ends with a lane, unless its leaf ends (BlockElements).
  const auto cells = [&](uint64_t elements) { return CeilDiv(elements, group_.elements) * group_.elements; };
  leaf_starts_.push_back(0);
  leaf_firsts_.push_back(0);
  leaf_blocks_.push_back(0);
  for (uint64_t elements : spec.leaf_elements) {
    assert(elements > 0);
    leaf_starts_.push_back(leaf_starts_.back() + cells(elements));
    leaf_firsts_.push_back(leaf_firsts_.back() + elements);
    block_elements_.push_back(BlockElements(format_, elements));
    leaf_blocks_.push_back(leaf_blocks_.back() + CeilDiv(elements, block_elements_.back()));
  }
  const uint64_t total = leaf_starts_.back();
  const uint32_t capacity = CellsOfSegment(format_, group_, cells_per_chunk_);
  const auto close = [&](Segment segment) {
    segment.per_block = per_block;
    segment.moves_bits = !format_.is_narrow();
    segment.exponents_apart = limits.exponents_apart;
    segment.exponent_chunks = static_cast<uint32_t>(CeilDiv(segment.block_count, numbers_per_chunk / per_block));
    segment.data_chunks = static_cast<uint32_t>(CeilDiv(segment.cell_count, cells_per_chunk_));
    segments_.push_back(segment);
  };
  if (!IsFloat(spec.dtype)) {
    for (uint64_t first = 0; first < total; first += capacity) {
      close({.first_cell = first, .cell_count = static_cast<uint32_t>(std::min<uint64_t>(capacity, total - first))});
    }
    if (spec.moves != Moves::kAll) TakeTurns(world_size);
    return;
  }
  Segment segment;  // holds whole blocks, so that no result overwrites input that a scale is still computed from
  for (size_t leaf = 0; leaf < block_elements_.size(); ++leaf) {
    const uint64_t block_elements = block_elements_[leaf];
    for (uint64_t left = leaf_starts_[leaf + 1] - leaf_starts_[leaf]; left > 0;) {
      const uint64_t room = capacity - segment.cell_count;
      const uint64_t taken = left <= room ? left : room / block_elements * block_elements;
      if (taken == 0) {
        close(segment);
        segment = {.first_cell = segment.first_cell + segment.cell_count,
                   .first_block = segment.first_block + segment.block_count};
        continue;
      }
      segment.cell_count += static_cast<uint32_t>(taken);
      segment.block_count += static_cast<uint32_t>(CeilDiv(taken, block_elements));
      left -= taken;
    }
  }
  close(segment);
  if (spec.moves != Moves::kAll) TakeTurns(world_size);
  Segment& only = segments_.front();
  const uint32_t numbers = per_block * only.block_count + guess_numbers;
  if (!format_.precise || only.data_chunks > kMaxGuessedChunks || numbers > numbers_per_chunk) return;
  if (1 + 2 * only.data_chunks > limits.window) return;
  only.repeat_chunks = only.data_chunks;
  const uint32_t first_data_lanes = LanesOf(std::min(cells_per_chunk_, only.cell_count));
  if (first_data_lanes > limits.lanes_per_exponent * numbers) only.exponents_at = only.data_chunks;
}

// Where each host has its own rows, as a rule the nth part of each leaf, the hosts' parts take turns. One part after
// the other, a host would have nothing to send, or to receive, while its own part is under way.
void SumPlan::TakeTurns(uint32_t parts) {
  const auto turn = [&](const Segment& segment) {
    const auto leaf = std::upper_bound(leaf_starts_.begin(), leaf_starts_.end() - 1, segment.first_cell) - 1;
    const uint64_t part_cells = CeilDiv(*(leaf + 1) - *leaf, parts);
    return std::pair(leaf - leaf_starts_.begin(), (segment.first_cell - *leaf) % part_cells);
  };
  std::stable_sort(segments_.begin(), segments_.end(),
                   [&](const Segment& a, const Segment& b) { return turn(a) < turn(b); });
}

void SumPlan::Keep(const Stripe& stripe) {
  if (stripe.count == 1) return;
  std::vector<Segment> kept;
  for (size_t i = stripe.index; i < segments_.size(); i += stripe.count) kept.push_back(segments_[i]);
  segments_ = std::move(kept);
}

ElementRun SumPlan::Block(uint64_t block) const {
  const auto leaf = std::upper_bound(leaf_blocks_.begin(), leaf_blocks_.end(), block) - leaf_blocks_.begin() - 1;
  const uint64_t first = (block - leaf_blocks_[leaf]) * block_elements_[leaf];
  const uint64_t left = ElementsOf(leaf) - first;
  return {static_cast<uint32_t>(leaf), first, static_cast<uint32_t>(std::min<uint64_t>(left, block_elements_[leaf])),
          block, 0};
}

}  // namespace passing
