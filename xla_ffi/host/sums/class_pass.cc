#include <algorithm>
#include <array>
#include <utility>

#include "host/numbers/element_classes.h"
#include "host/sums/sum_passes.h"
#include "wire/lanes.h"

namespace passing {
namespace {

SumSpec SpecOfClasses(const SumSpec& of_elements, const std::map<uint64_t, uint64_t>& flagged) {
  SumSpec spec{
      .site_name = of_elements.site_name + " (NaN and infinities)", .dtype = DType::kUint32, .leaf_elements = {}};
  for (const auto& [cell, end] : flagged) spec.leaf_elements.push_back(end - cell);
  return spec;
}

}  // namespace

ClassPass::ClassPass(const SumPass& first, std::shared_ptr<const SumBuffers> buffers,
                     const std::map<uint64_t, uint64_t>& flagged, std::vector<bool> moved, const PlanLimits& limits)
    : ClassPass(first, std::make_shared<SumSpec>(SpecOfClasses(first.spec(), flagged)), std::move(buffers), flagged,
                std::move(moved), limits) {}

ClassPass::ClassPass(const SumPass& first, std::shared_ptr<const SumSpec> spec,
                     std::shared_ptr<const SumBuffers> buffers, const std::map<uint64_t, uint64_t>& flagged,
                     std::vector<bool> moved, const PlanLimits& limits)
    : SumPass(first.key(), /*pass=*/1, spec, std::make_shared<SumPlan>(*spec, limits, /*world_size=*/1),
              std::move(buffers), first.started_us()),
      moved_(std::move(moved)) {
  for (const auto& [cell, end] : flagged) stretches_.push_back(cell);
}

uint8_t ClassPass::Encode(const Segment& segment, uint32_t chunk, std::span<const int32_t>, uint8_t* lanes) const {
  const ChunkRange range = plan().DataRange(segment, chunk);
  std::fill_n(lanes, 4 * size_t{range.count}, uint8_t{0});  // for the cells that hold no element
  ForEachFlaggedRun(range, [&](const ElementRun& run, uint32_t offset) {
    Classes classes;
    const DType dtype = buffers()->sum().spec->dtype;
    if (buffers()->are_outputs_rows()) {
      ClassifyElements(dtype, buffers()->InputsAt(run), run.count, classes.data());
    } else {
      ReadClasses(dtype, buffers()->OutputsAt(run)[0], run.count, classes.data());
    }
    for (uint32_t i = 0; i < run.count; ++i) wire::StoreLane(lanes, offset + i, classes[i]);
  });
  return 0;
}

void ClassPass::Decode(const Segment& segment, uint32_t chunk, std::span<const int32_t>, const uint8_t* lanes,
                       uint8_t) {
  ForEachFlaggedRun(plan().DataRange(segment, chunk), [&](const ElementRun& run, uint32_t offset) {
    Classes classes;
    for (uint32_t i = 0; i < run.count; ++i) classes[i] = wire::LoadLane(lanes, offset + i);
    const DType dtype = buffers()->sum().spec->dtype;
    if (!buffers()->are_outputs_rows()) {
      return ApplyClasses(dtype, {classes.data(), run.count}, buffers()->OutputsAt(run));
    }
    buffers()->ForEachPart(run, [&](const ElementRun& part) {
      const std::span<void* const> outputs = buffers()->OutputsAt(part);
      if (!outputs.empty()) ApplyClasses(dtype, {&classes[part.first - run.first], part.count}, outputs);
    });
  });
}

template <typename F>
void ClassPass::ForEachFlaggedRun(const ChunkRange& range, F&& f) const {
  plan().ForEachRun(range.first, range.count, [&](const ElementRun& mine) {
    buffers()->plan()->ForEachRun(stretches_[mine.leaf] + mine.first, mine.count, [&](const ElementRun& run) {
      const bool moved = run.block < moved_.size() && moved_[run.block];
      if (!moved) f(run, mine.offset + run.offset);
    });
  });
}

}  // namespace passing
