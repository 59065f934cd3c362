#include "host/sums/sum_plan.h"

#include <cassert>

namespace passing {
namespace {

// A wrong guess costs the wire time of its data, a right one saves a round trip: at 1 Gbit/s four chunks take 48 us,
// about one round trip.
constexpr uint32_t kMaxGuessedChunks = 4;

uint64_t CeilDiv(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

}  // namespace

SumPlan::SumPlan(const SumShape& shape, uint32_t lanes_per_chunk, uint32_t window, uint32_t world_size)
    : lanes_per_chunk_(lanes_per_chunk),
      format_{.dtype = shape.dtype, .wire = shape.wire, .world_size = world_size},
      group_(LaneGroupOf(format_)),
      cells_per_chunk_(lanes_per_chunk / group_.lanes * group_.elements) {
  assert(cells_per_chunk_ > 0);
  assert(shape.op == Op::kSum || shape.dtype == DType::kInt32);  // other dtypes' lanes don't compare as their elements
  static_assert(kBlockElements % 2 == 0 && kBlockElements % 3 == 0 && kBlockElements % 8 == 0);
  // So a block ends with a lane, unless its leaf ends.
  const auto cells = [&](uint64_t elements) { return CeilDiv(elements, group_.elements) * group_.elements; };
  leaf_starts_.push_back(0);
  leaf_firsts_.push_back(0);
  leaf_blocks_.push_back(0);
  for (uint64_t elements : shape.leaf_elements) {
    assert(elements > 0);
    leaf_starts_.push_back(leaf_starts_.back() + cells(elements));
    leaf_firsts_.push_back(leaf_firsts_.back() + elements);
    leaf_blocks_.push_back(leaf_blocks_.back() + CeilDiv(elements, kBlockElements));
  }
  const uint64_t total = leaf_starts_.back();
  const uint32_t capacity = kSegmentLanes / group_.lanes * group_.elements;
  const auto close = [&](Segment segment) {
    segment.exponent_chunks = static_cast<uint32_t>(CeilDiv(segment.block_count, lanes_per_chunk_));
    segment.data_chunks = static_cast<uint32_t>(CeilDiv(segment.cell_count, cells_per_chunk_));
    segments_.push_back(segment);
  };
  if (!IsFloat(shape.dtype)) {
    for (uint64_t first = 0; first < total; first += capacity) {
      close({.first_cell = first, .cell_count = static_cast<uint32_t>(std::min<uint64_t>(capacity, total - first))});
    }
    return;
  }
  Segment segment;  // holds whole blocks, so that no result overwrites input that a scale is still computed from
  for (uint64_t block = 0; block < leaf_blocks_.back(); ++block) {
    const auto block_cells = static_cast<uint32_t>(cells(Block(block).count));
    if (segment.cell_count + block_cells > capacity) {
      close(segment);
      segment = {.first_cell = segment.first_cell + segment.cell_count, .first_block = block};
    }
    segment.cell_count += block_cells;
    ++segment.block_count;
  }
  close(segment);
  Segment& only = segments_.front();
  const bool small = segments_.size() == 1 && only.data_chunks <= kMaxGuessedChunks;
  const bool one_exponent_chunk = kGuessLanes * only.block_count <= lanes_per_chunk_;
  if (format_.is_narrow() && !coarse_scales()) return;
  if (!small || !one_exponent_chunk || 1 + 2 * only.data_chunks > window) return;
  only.repeat_chunks = only.data_chunks;
  const uint32_t first_data_lanes = LanesOf(std::min(cells_per_chunk_, only.cell_count));
  if (first_data_lanes > kGuessLanes * only.block_count) only.exponents_at = only.data_chunks;
}

ElementRun SumPlan::Block(uint64_t block) const {
  const auto leaf = std::upper_bound(leaf_blocks_.begin(), leaf_blocks_.end(), block) - leaf_blocks_.begin() - 1;
  const uint64_t first = (block - leaf_blocks_[leaf]) * kBlockElements;
  const uint64_t left = ElementsOf(leaf) - first;
  return {static_cast<uint32_t>(leaf), first, static_cast<uint32_t>(std::min<uint64_t>(left, kBlockElements)), block,
          0};
}

}  // namespace passing
