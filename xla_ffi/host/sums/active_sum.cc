#include "host/sums/active_sum.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>

#include "host/numbers/element_classes.h"
#include "host/numbers/fixed_point.h"
#include "wire/lanes.h"

namespace passing {
namespace {

using Classes = std::array<uint32_t, kBlockElements>;  // of a run

}  // namespace

ActiveSum::ActiveSum(Sum sum, uint32_t lanes_per_chunk, uint32_t window, uint32_t headroom_bits, int64_t started_us)
    : sum_(std::move(sum)),
      plan_(*sum_.shape, lanes_per_chunk, window, headroom_bits),
      started_us_(started_us),
      ready_elements_(sum_.ready_elements) {}

std::unique_ptr<ActiveSum> ActiveSum::SecondPassOf(std::unique_ptr<ActiveSum> first, uint32_t lanes_per_chunk,
                                                   uint32_t window) {
  SumShape shape{
      .site_name = first->shape().site_name + " (NaN and infinities)", .dtype = DType::kUint32, .leaf_elements = {}};
  std::vector<uint64_t> stretches;
  for (const auto& [place, end] : first->flagged_) {
    stretches.push_back(place);
    shape.leaf_elements.push_back(end - place);
  }
  Sum sum{.key = first->key(), .shape = std::make_shared<SumShape>(std::move(shape)), .inputs = {}, .outputs = {}};
  auto second =
      std::make_unique<ActiveSum>(std::move(sum), lanes_per_chunk, window, /*headroom_bits=*/0, first->started_us_);
  second->stretches_ = std::move(stretches);
  second->first_ = std::move(first);
  return second;
}

std::unique_ptr<ActiveSum> ActiveSum::FirstPassOf(std::unique_ptr<ActiveSum> last) {
  return last->first_ ? std::move(last->first_) : std::move(last);
}

bool ActiveSum::OnSegmentDone(uint32_t segment) {
  assert(segments_done_ < segments_placed_);
  if (sum_.written) TellWritten(segment);
  return ++segments_done_ == plan_.segment_count();
}

// In the first pass alone. From the first flagged chunk on the second one will change elements again.
void ActiveSum::TellWritten(uint32_t segment) {
  done_beyond_.insert(segment);
  for (; !done_beyond_.empty() && *done_beyond_.begin() == first_not_done_; ++first_not_done_) {
    done_beyond_.erase(done_beyond_.begin());
  }
  if (first_not_done_ == 0) return;
  uint64_t elements = EndOf(plan_.segment(first_not_done_ - 1));
  if (flagged()) elements = std::min(elements, plan_.ElementsBefore(flagged_.begin()->first));
  if (elements > elements_written_) sum_.written(elements_written_ = elements);
}

void ActiveSum::OnSegmentPlaced() {
  assert(segments_left() > 0);
  ++segments_placed_;
}

void ActiveSum::OnSegmentVoid() {
  assert(segments_placed_ > segments_done_);
  --segments_placed_;
}

std::vector<int32_t> ActiveSum::Exponents(const Segment& segment) const {
  std::vector<int32_t> exponents(segment.block_count);
  for (uint32_t block = 0; block < segment.block_count; ++block) {
    const ElementRun run = plan_.Block(segment.first_block + block);
    exponents[block] = BlockExponent(shape().dtype, InputsAt(run), run.count);
  }
  return exponents;
}

uint8_t ActiveSum::Encode(const Segment& segment, uint32_t chunk, std::span<const int32_t> exponents,
                          uint32_t headroom_bits, uint8_t* lanes) const {
  const ChunkRange range = plan_.DataRange(segment, chunk);
  if (first_) {
    std::fill_n(lanes, 4 * size_t{range.count}, uint8_t{0});  // places that hold nothing
    ForEachFlaggedRun(range, [&](const ElementRun& run, uint32_t offset) {
      Classes classes;
      ReadClasses(first_->shape().dtype, first_->OutputsAt(run)[0], run.count, classes.data());
      for (uint32_t i = 0; i < run.count; ++i) wire::StoreLane(lanes, offset + i, classes[i]);
    });
    return 0;
  }
  uint8_t flags = 0;
  plan_.ForEachRun(range.first, range.count, [&](const ElementRun& run) {
    const int32_t exponent = exponents.empty() ? 0 : exponents[run.block - segment.first_block];
    uint8_t* at = lanes + 4 * size_t{plan_.LanesOf(run.offset)};
    if (shape().op == Op::kMax) {
      EncodeMaxima(InputsAt(run), run.count, at);
    } else {
      flags |= EncodeLanes(shape().dtype, InputsAt(run), run.count, exponent, headroom_bits, at);
    }
  });
  return flags;
}

void ActiveSum::Decode(const Segment& segment, uint32_t chunk, std::span<const int32_t> exponents,
                       uint32_t headroom_bits, const uint8_t* lanes, uint8_t flags) {
  const ChunkRange range = plan_.DataRange(segment, chunk);
  if (first_) {
    ForEachFlaggedRun(range, [&](const ElementRun& run, uint32_t offset) {
      Classes classes;
      for (uint32_t i = 0; i < run.count; ++i) classes[i] = wire::LoadLane(lanes, offset + i);
      ApplyClasses(first_->shape().dtype, {classes.data(), run.count}, first_->OutputsAt(run));
    });
    return;
  }
  if (flags != 0) Flag(range);
  plan_.ForEachRun(range.first, range.count, [&](const ElementRun& run) {
    // The result overwrites the input: before that, what this host has to say about each element.
    Classes classes;
    if (flags != 0) ClassifyElements(shape().dtype, InputsAt(run), run.count, classes.data());
    const int32_t exponent = exponents.empty() ? 0 : exponents[run.block - segment.first_block];
    const uint8_t* at = lanes + 4 * size_t{plan_.LanesOf(run.offset)};
    const std::span<void* const> outputs = OutputsAt(run);
    DecodeLanes(shape().dtype, at, run.count, exponent, headroom_bits, outputs);
    if (flags != 0) MarkClasses(shape().dtype, {classes.data(), run.count}, outputs[0]);
  });
}

// Joins what touches: an entry for each chunk would grow with the sum.
void ActiveSum::Flag(const ChunkRange& range) {
  uint64_t first = range.first, end = range.first + range.count;
  const auto after = flagged_.lower_bound(end);
  if (after != flagged_.end() && after->first == end) {
    end = after->second;
    flagged_.erase(after);
  }
  auto before = flagged_.lower_bound(first);
  if (before != flagged_.begin() && (--before)->second == first) {
    before->second = end;
  } else {
    flagged_.emplace(first, end);
  }
}

template <typename F>
void ActiveSum::ForEachFlaggedRun(const ChunkRange& range, F&& f) const {
  plan_.ForEachRun(range.first, range.count, [&](const ElementRun& mine) {
    first_->plan_.ForEachRun(stretches_[mine.leaf] + mine.first, mine.count,
                             [&](const ElementRun& run) { f(run, mine.offset + run.offset); });
  });
}

std::span<const void* const> ActiveSum::InputsAt(const ElementRun& run) const {
  const size_t offset = run.first * SizeOf(shape().dtype);
  const size_t leaf_count = shape().leaf_elements.size();
  input_scratch_.clear();
  for (uint32_t device = 0; device < shape().device_count; ++device) {
    const void* leaf = sum_.inputs[device * leaf_count + run.leaf];
    input_scratch_.push_back(static_cast<const uint8_t*>(leaf) + offset);
  }
  return input_scratch_;
}

std::span<void* const> ActiveSum::OutputsAt(const ElementRun& run) const {
  const size_t offset = run.first * SizeOf(shape().dtype);
  const size_t leaf_count = shape().leaf_elements.size();
  output_scratch_.clear();
  for (uint32_t device = 0; device < shape().device_count; ++device) {
    void* leaf = sum_.outputs[device * leaf_count + run.leaf];
    output_scratch_.push_back(static_cast<uint8_t*>(leaf) + offset);
  }
  return output_scratch_;
}

}  // namespace passing
