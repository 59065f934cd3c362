#include "host/sums/sum_pass.h"

namespace passing {
namespace {

// Fills `scratch` with pointers to the run's elements, one for each device.
template <typename Pointer, typename Byte>
std::span<Pointer const> PointersAt(const SumSpec& spec, const std::vector<Pointer>& buffers, const ElementRun& run,
                                    std::vector<Pointer>& scratch) {
  const size_t offset = run.first * SizeOf(spec.dtype);
  const size_t leaf_count = spec.leaf_elements.size();
  scratch.clear();
  for (size_t leaf = run.leaf; leaf < buffers.size(); leaf += leaf_count) {
    scratch.push_back(static_cast<Byte*>(buffers[leaf]) + offset);
  }
  return scratch;
}

}  // namespace

SumBuffers::SumBuffers(Sum sum, std::shared_ptr<const SumPlan> plan) : sum_(std::move(sum)), plan_(std::move(plan)) {}

std::span<const void* const> SumBuffers::InputsAt(const ElementRun& run) const {
  return PointersAt<const void*, const uint8_t>(*sum_.spec, sum_.inputs, run, input_scratch_);
}

std::span<void* const> SumBuffers::OutputsAt(const ElementRun& run) const {
  return PointersAt<void*, uint8_t>(*sum_.spec, sum_.outputs, run, output_scratch_);
}

std::span<void* const> SumBuffers::ResidualsAt(const ElementRun& run) const {
  return PointersAt<void*, uint8_t>(*sum_.spec, sum_.residuals, run, residual_scratch_);
}

}  // namespace passing
