#include "client/active_sum.h"

#include <utility>

namespace passing {

ActiveSum::ActiveSum(Sum sum, uint32_t lanes_per_chunk, uint32_t window, int64_t started_us)
    : sum_(std::move(sum)), plan_(*sum_.shape, lanes_per_chunk, window), started_us_(started_us) {}

std::unique_ptr<ActiveSum> ActiveSum::SecondPassOf(std::unique_ptr<ActiveSum> first, uint32_t lanes_per_chunk,
                                                   uint32_t window) {
  std::vector<uint32_t> counters;
  for (const auto& [place, classes] : first->flagged_) {
    counters.insert(counters.end(), classes.begin(), classes.end());
  }
  auto shape = std::make_shared<SumShape>(SumShape{.site_name = first->shape().site_name + " (NaN and infinities)",
                                                   .dtype = DType::kUint32,
                                                   .leaf_elements = {counters.size()}});
  Sum sum{.key = first->key(), .shape = std::move(shape), .inputs = {counters.data()}, .outputs = {counters.data()}};
  auto second = std::make_unique<ActiveSum>(std::move(sum), lanes_per_chunk, window, first->started_us_);
  second->counters_ = std::move(counters);  // keeps its place in memory
  second->first_ = std::move(first);
  return second;
}

std::unique_ptr<ActiveSum> ActiveSum::FirstPassOf(std::unique_ptr<ActiveSum> last) {
  if (!last->first_) return last;
  const ActiveSum& first = *last->first_;
  std::span<const uint32_t> counters = last->counters_;
  for (const auto& [place, classes] : first.flagged_) {
    first.plan_.ForEachRun(place, classes.size(), [&](const ElementRun& run) {
      ApplyClasses(first.shape().dtype, counters.subspan(run.offset, run.count), first.OutputsAt(run));
    });
    counters = counters.subspan(classes.size());
  }
  return std::move(last->first_);
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
  uint8_t flags = 0;
  plan_.ForEachRun(range.first, range.count, [&](const ElementRun& run) {
    const int32_t exponent = exponents.empty() ? 0 : exponents[run.block - segment.first_block];
    uint8_t* at = lanes + 4 * size_t{plan_.LanesOf(run.offset)};
    flags |= EncodeLanes(shape().dtype, InputsAt(run), run.count, exponent, headroom_bits, at);
  });
  return flags;
}

void ActiveSum::Decode(const Segment& segment, uint32_t chunk, std::span<const int32_t> exponents,
                       uint32_t headroom_bits, const uint8_t* lanes, uint8_t flags) {
  const ChunkRange range = plan_.DataRange(segment, chunk);
  if (flags != 0) {
    // Before the result overwrites the input: what this host has to say about each element.
    std::vector<uint32_t>& classes = flagged_[range.first];
    classes.resize(range.count);
    plan_.ForEachRun(range.first, range.count, [&](const ElementRun& run) {
      ClassifyElements(shape().dtype, InputsAt(run), run.count, classes.data() + run.offset);
    });
  }
  plan_.ForEachRun(range.first, range.count, [&](const ElementRun& run) {
    const int32_t exponent = exponents.empty() ? 0 : exponents[run.block - segment.first_block];
    const uint8_t* at = lanes + 4 * size_t{plan_.LanesOf(run.offset)};
    DecodeLanes(shape().dtype, at, run.count, exponent, headroom_bits, OutputsAt(run));
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
