#include "host/sums/sum_passes.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <limits>
#include <utility>

#include "host/numbers/element_classes.h"
#include "host/numbers/fixed_point.h"
#include "host/numbers/float_mode.h"
#include "host/numbers/precise_lanes.h"
#include "host/numbers/residuals.h"
#include "host/sums/piecewise_pass.h"
#include "wire/header.h"
#include "wire/lanes.h"
#include "wire/sip_hash.h"

namespace passing {
namespace {

std::shared_ptr<const SumPlan> PlanOf(const Sum& sum, const PlanLimits& limits, uint32_t world_size) {
  auto plan = std::make_shared<SumPlan>(*sum.spec, limits, world_size);
  plan->Keep(sum.stripe);
  return plan;
}

}  // namespace

// ---------------------------------------------------------------- elements

uint64_t RoundingKey(const Rank& rank, const SumKey& sum) {
  return wire::SipHash({rank.seed, rank.rank}, std::array{sum.site, uint64_t{sum.execution} << 32 | sum.step});
}

ElementPass::ElementPass(Sum sum, const PlanLimits& limits, const Rank& rank, int64_t started_us)
    : ElementPass(std::make_shared<SumBuffers>(std::move(sum), PlanOf(sum, limits, rank.world_size)), rank,
                  started_us) {}

std::unique_ptr<ElementPass> ElementPass::Of(Sum sum, const PlanLimits& limits, const Rank& rank, int64_t started_us) {
  if (sum.pieces) return std::make_unique<PiecewisePass>(std::move(sum), limits, rank, started_us);
  return std::make_unique<ElementPass>(std::move(sum), limits, rank, started_us);
}

ElementPass::ElementPass(std::shared_ptr<const SumBuffers> buffers, const Rank& rank, int64_t started_us)
    : SumPass(buffers->sum().key, /*pass=*/0, buffers->sum().spec, buffers->plan(), buffers, started_us),
      rank_(rank),
      rounding_key_(RoundingKey(rank, buffers->sum().key)) {
  if (spec().moves == Moves::kAll || this->buffers()->sum().own_rows.empty()) return;
  for (uint32_t i = 0; i < plan().segment_count(); ++i) {
    const Segment& segment = plan().segment(i);
    rows_in_.push_back(RowsIn({segment.first_cell, segment.cell_count}));
  }
}

ElementPass::Rows ElementPass::RowsIn(const ChunkRange& range) const {
  const std::vector<bool>& own_rows = buffers()->sum().own_rows;
  Rows rows;
  plan().ForEachRun(range.first, range.count, [&](const ElementRun& run) {
    if (run.count == 0) return;
    const uint64_t row_elements = buffers()->sum().row_elements(run.leaf);
    const uint64_t last = (run.first + run.count - 1) / row_elements;
    for (uint64_t row = run.first / row_elements; row <= last; ++row) (own_rows[row] ? rows.own : rows.others) = true;
  });
  return rows;
}

// Where rows of this host and of others meet in a chunk, it does as in any sum. So it does where the data is sent
// before the exponents are known. Most segments lie in one row, so they are looked at once and not by the chunk.
ChunkRole ElementPass::RoleIn(const Segment& segment, uint32_t chunk) const {
  if (rows_in_.empty() || segment.guesses()) return {};
  const auto index = static_cast<size_t>(&segment - &plan().segment(0));
  assert(index < rows_in_.size());
  const Rows in_segment = rows_in_[index];
  const Rows rows = in_segment.own && in_segment.others ? RowsIn(plan().DataRange(segment, chunk)) : in_segment;
  if (spec().moves == Moves::kScatter) return {.keeps_lanes = !rows.others, .needs_result = rows.own};
  return {.adds_zeros = !rows.own, .needs_result = rows.others};
}

std::vector<int32_t> ElementPass::Exponents(const Segment& segment) const {
  std::vector<int32_t> exponents(segment.block_count);
  if (plan().format().precise) {  // its only segment
    elements_.clear();
    elements_.reserve(segment.cell_count);
    for (uint32_t leaf = 0; leaf < spec().leaf_elements.size(); ++leaf) {
      const ElementRun all{leaf, 0, static_cast<uint32_t>(spec().leaf_elements[leaf]), 0, 0};
      AppendHostElements(spec().dtype, buffers()->InputsAt(all), all.count, elements_);
    }
    plan().ForEachRun(0, segment.cell_count, [&](const ElementRun& run) {
      exponents[run.block] = PreciseExponent(ElementsAt(run.offset, run.count));
    });
    return exponents;
  }
  for (uint32_t block = 0; block < segment.block_count; ++block) {
    const ElementRun run = plan().Block(segment.first_block + block);
    exponents[block] = BlockExponent(plan().format(), buffers()->InputsAt(run), run.count);
  }
  return exponents;
}

bool ElementPass::IsExactAt(const Segment& segment, std::span<const int32_t> exponents) const {
  const uint32_t headroom_bits = HeadroomBits(plan().format().world_size);
  bool exact = true;
  plan().ForEachRun(0, segment.cell_count, [&](const ElementRun& run) {
    const std::span<const double> elements = ElementsAt(run.offset, run.count);
    exact = exact && ArePreciselyExact(spec().dtype, headroom_bits, elements, exponents[run.block]);
  });
  return exact;
}

uint8_t ElementPass::Encode(const Segment& segment, uint32_t chunk, std::span<const int32_t> exponents,
                            uint8_t* lanes) const {
  const ChunkRange range = plan().DataRange(segment, chunk);
  const uint32_t headroom_bits = HeadroomBits(plan().format().world_size);
  uint8_t flags = 0;
  plan().ForEachRun(range.first, range.count, [&](const ElementRun& run) {
    const int32_t exponent = exponents.empty() ? 0 : exponents[run.block - segment.first_block];
    uint8_t* const at = lanes + 4 * size_t{plan().LanesOf(run.offset)};
    flags |=
        plan().format().precise && exponent != kMovedBits
            ? EncodePrecise(spec().dtype, headroom_bits, ElementsAt(range.first + run.offset, run.count), exponent, at)
            : EncodeRun(run, exponent, at);
  });
  return flags;
}

uint8_t ElementPass::EncodeRun(const ElementRun& run, int32_t exponent, uint8_t* lanes) const {
  if (buffers()->are_inputs_rows()) {
    EncodeRows(run, lanes);
    return 0;
  }
  const std::span<const void* const> inputs = buffers()->InputsAt(run);
  if (spec().op != Op::kMax) return EncodeLanes(plan().format(), inputs, run.count, exponent, lanes, RoundingOf(run));
  plan().maxima_apart() ? EncodeApart(inputs, run.count, lanes) : EncodeMaxima(inputs, run.count, lanes);
  return 0;
}

// An element has a lane, and others' rows are zeros.
void ElementPass::EncodeRows(const ElementRun& run, uint8_t* lanes) const {
  buffers()->ForEachPart(run, [&](const ElementRun& part) {
    uint8_t* const at = lanes + 4 * (part.first - run.first);
    const std::span<const void* const> inputs = buffers()->InputsAt(part);
    if (inputs.empty()) {
      std::fill_n(at, 4 * size_t{part.count}, uint8_t{0});
    } else {
      EncodeLanes(plan().format(), inputs, part.count, /*exponent=*/0, at);
    }
  });
}

void ElementPass::EncodeApart(std::span<const void* const> inputs, uint32_t count, uint8_t* lanes) const {
  std::array<uint8_t, 4 * wire::kMaxLanes> own;  // a chunk has no more elements than lanes
  EncodeMaxima(inputs, count, own.data());
  std::fill_n(lanes, 4 * size_t{plan().LanesOf(count)}, uint8_t{0});
  for (uint32_t i = 0; i < count; ++i) {
    wire::StoreLane(lanes, plan().LanesOf(i) + rank_.rank, wire::LoadLane(own.data(), i));
  }
}

void ElementPass::DecodeApart(const uint8_t* lanes, uint32_t count, std::span<void* const> outputs) const {
  std::array<uint8_t, 4 * wire::kMaxLanes> maxima;
  for (uint32_t i = 0; i < count; ++i) {
    int32_t greatest = std::numeric_limits<int32_t>::min();
    for (uint32_t lane = plan().LanesOf(i); lane < plan().LanesOf(i + 1); ++lane) {
      greatest = std::max(greatest, static_cast<int32_t>(wire::LoadLane(lanes, lane)));
    }
    wire::StoreLane(maxima.data(), i, static_cast<uint32_t>(greatest));
  }
  DecodeLanes(plan().format(), maxima.data(), count, /*exponent=*/0, outputs);
}

// The lanes were sent from a packet that is gone, so they are made again: to keep them would take memory by the
// element.
void ElementPass::KeepResiduals(const ElementRun& run, int32_t exponent) const {
  // Moved bits lose nothing but what rounding to the dtype would lose afterwards, which is no residual anywhere else.
  if (exponent == kMovedBits) {
    const size_t bytes = run.count * SizeOf(spec().dtype);
    for (void* residual : buffers()->ResidualsAt(run)) std::memset(residual, 0, bytes);
    return;
  }
  std::array<uint8_t, 4 * MaxFloatLanes(kMaxBlockElements)> lanes;  // a run is no longer than a block
  EncodeRun(run, exponent, lanes.data());
  WriteResiduals(plan().format(), buffers()->InputsAt(run), lanes.data(), run.count, exponent,
                 buffers()->ResidualsAt(run));
}

void ElementPass::Decode(const Segment& segment, uint32_t chunk, std::span<const int32_t> exponents,
                         const uint8_t* lanes, uint8_t flags) {
  // Not an element of it is needed, and there is nothing to tell the second pass.
  if (spec().moves == Moves::kScatter && flags == 0 && !RoleIn(segment, chunk).needs_result) return;
  const ChunkRange range = plan().DataRange(segment, chunk);
  const bool plain = flags == 0 && buffers()->sum().residuals.empty();
  if (plain && plan().format().precise) return DecodePreciseChunk(range, segment, exponents, lanes);
  if (flags != 0) Flag(range);
  plan().ForEachRun(range.first, range.count, [&](const ElementRun& run) {
    const int32_t exponent = exponents.empty() ? 0 : exponents[run.block - segment.first_block];
    // Where outputs are rows, this host's inputs stay, and have the classes as long as they are needed.
    const bool marked = flags != 0 && exponent != kMovedBits && !buffers()->are_outputs_rows();
    if (flags != 0 && exponent == kMovedBits) NoteMoved(run.block);
    // The result may overwrite the input, so this host's classes and residuals are made before.
    Classes classes;
    if (marked) ClassifyElements(spec().dtype, buffers()->InputsAt(run), run.count, classes.data());
    if (!buffers()->sum().residuals.empty()) KeepResiduals(run, exponent);
    const uint8_t* at = lanes + 4 * size_t{plan().LanesOf(run.offset)};
    buffers()->WriteAt(run, [&](std::span<void* const> outputs) {
      if (plan().maxima_apart()) return DecodeApart(at, run.count, outputs);
      DecodeLanes(plan().format(), at, run.count, exponent, outputs);
      if (marked) MarkClasses(spec().dtype, {classes.data(), run.count}, outputs[0]);
    });
  });
}

// Without calls by the block that set modes and find buffers.
void ElementPass::DecodePreciseChunk(const ChunkRange& range, const Segment& segment,
                                     std::span<const int32_t> exponents, const uint8_t* lanes) {
  const DefaultFloatMode mode;
  const size_t size = SizeOf(spec().dtype);
  std::array<uint8_t, 4 * wire::kMaxLanes> results;  // an element is no longer than its lanes
  ElementRun of_leaf{};
  const auto hand_out = [&] {
    buffers()->WriteAt(of_leaf, [&](std::span<void* const> outputs) {
      for (void* output : outputs) std::memcpy(output, &results[of_leaf.offset * size], of_leaf.count * size);
    });
  };
  plan().ForEachRun(range.first, range.count, [&](const ElementRun& run) {
    if (run.offset == 0) {
      of_leaf = run;
    } else if (run.leaf == of_leaf.leaf) {
      of_leaf.count += run.count;
    } else {
      hand_out();
      of_leaf = run;
    }
    const int32_t exponent = exponents[run.block - segment.first_block];
    const uint8_t* const at = lanes + 4 * size_t{plan().LanesOf(run.offset)};
    void* result = &results[run.offset * size];
    if (exponent == kMovedBits) {
      DecodeLanes(plan().format(), at, run.count, exponent, {&result, 1});
    } else {
      DecodePrecise(spec().dtype, HeadroomBits(plan().format().world_size), at, run.count, exponent, result);
    }
  });
  hand_out();
}

void ElementPass::NoteMoved(uint64_t block) {
  if (moved_.size() <= block) moved_.resize(block + 1);
  moved_[block] = true;
}

std::optional<NonFinite> ElementPass::FirstNonFinite(const Segment& segment, uint32_t chunk,
                                                     std::span<const int32_t> exponents, bool of_results) const {
  std::optional<NonFinite> found;
  const DType dtype = spec().dtype;
  if (!IsFloat(dtype) || (of_results && Widened(dtype) == dtype && Narrowed(dtype) != dtype)) return found;
  const ChunkRange range = plan().DataRange(segment, chunk);
  plan().ForEachRun(range.first, range.count, [&](const ElementRun& run) {
    if (found || (of_results && exponents[run.block - segment.first_block] != kMovedBits)) return;
    Classes classes{};
    if (of_results && buffers()->are_outputs_rows()) {
      buffers()->ForEachPart(run, [&](const ElementRun& part) {
        for (const void* const result : buffers()->OutputsAt(part)) {
          ClassifyElements(dtype, {&result, 1}, part.count, &classes[part.first - run.first]);
        }
      });
    } else if (of_results) {
      const void* const result = buffers()->OutputsAt(run)[0];
      ClassifyElements(dtype, {&result, 1}, run.count, classes.data());
    } else {
      ClassifyElements(dtype, buffers()->InputsAt(run), run.count, classes.data());
    }
    const auto* const first =
        std::find_if(classes.data(), classes.data() + run.count, [](uint32_t c) { return c != 0; });
    if (first == classes.data() + run.count) return;
    found = NonFinite{.spec = buffers()->sum().spec,
                      .key = key(),
                      .leaf = run.leaf,
                      .element = run.first + static_cast<uint64_t>(first - classes.data()),
                      .what = NameOfClass(*first)};
  });
  return found;
}

// Merges stretches that touch: an entry for each chunk would grow with the sum.
void ElementPass::Flag(const ChunkRange& range) {
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

uint64_t ElementPass::elements_before_flagged() const {
  return flagged_.empty() ? UINT64_MAX : plan().ElementsBefore(flagged_.begin()->first);
}

std::unique_ptr<SumPass> ElementPass::NextPass(const PlanLimits& limits) const {
  return flagged_.empty() ? nullptr : std::make_unique<ClassPass>(*this, buffers(), flagged_, moved_, limits);
}

}  // namespace passing
