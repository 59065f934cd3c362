#include "client/sum_plan.h"

#include <cassert>

namespace passing {
namespace {

// A wrong guess costs the wire time of its data, a right one saves a round trip: at 1 Gbit/s four chunks take 48 us,
// about one round trip.
constexpr uint32_t kMaxGuessedChunks = 4;

uint64_t CeilDiv(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

}  // namespace

SumPlan::SumPlan(const SumShape& shape, uint32_t lanes_per_chunk, uint32_t window)
    : lanes_per_chunk_(lanes_per_chunk),
      lanes_per_element_(LanesPerElement(shape.dtype)),
      elements_per_chunk_(lanes_per_chunk / lanes_per_element_) {
  assert(elements_per_chunk_ > 0);
  leaf_starts_.push_back(0);
  leaf_blocks_.push_back(0);
  for (uint64_t elements : shape.leaf_elements) {
    assert(elements > 0);
    leaf_starts_.push_back(leaf_starts_.back() + elements);
    leaf_blocks_.push_back(leaf_blocks_.back() + CeilDiv(elements, kBlockElements));
  }
  const uint64_t total = leaf_starts_.back();
  const uint32_t capacity = kSegmentLanes / lanes_per_element_;
  const auto close = [&](Segment segment) {
    segment.exponent_chunks = static_cast<uint32_t>(CeilDiv(segment.block_count, lanes_per_chunk_));
    segment.data_chunks = static_cast<uint32_t>(CeilDiv(segment.element_count, elements_per_chunk_));
    segments_.push_back(segment);
  };
  if (!IsFloat(shape.dtype)) {
    for (uint64_t first = 0; first < total; first += capacity) {
      close({.first_element = first,
             .element_count = static_cast<uint32_t>(std::min<uint64_t>(capacity, total - first))});
    }
    return;
  }
  Segment segment;  // of whole blocks, so that no result overwrites input that a scale is still taken from
  for (uint64_t block = 0; block < leaf_blocks_.back(); ++block) {
    const uint32_t elements = Block(block).count;
    if (segment.element_count + elements > capacity) {
      close(segment);
      segment = {.first_element = segment.first_element + segment.element_count, .first_block = block};
    }
    segment.element_count += elements;
    ++segment.block_count;
  }
  close(segment);
  Segment& only = segments_.front();
  const bool small = segments_.size() == 1 && only.data_chunks <= kMaxGuessedChunks;
  const bool one_exponent_chunk = kGuessLanes * only.block_count <= lanes_per_chunk_;
  if (small && one_exponent_chunk && 1 + 2 * only.data_chunks <= window) only.repeat_chunks = only.data_chunks;
}

ElementRun SumPlan::Block(uint64_t block) const {
  const auto leaf = std::upper_bound(leaf_blocks_.begin(), leaf_blocks_.end(), block) - leaf_blocks_.begin() - 1;
  const uint64_t first = (block - leaf_blocks_[leaf]) * kBlockElements;
  const uint64_t left = leaf_starts_[leaf + 1] - leaf_starts_[leaf] - first;
  return {static_cast<uint32_t>(leaf), first, static_cast<uint32_t>(std::min<uint64_t>(left, kBlockElements)), block,
          0};
}

}  // namespace passing
