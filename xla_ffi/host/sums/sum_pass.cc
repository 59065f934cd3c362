#include "host/sums/sum_pass.h"

#include <cassert>

namespace passing {
namespace {

// Fills `scratch` with pointers to the run's elements, one for each device; or where buffers are rows, for each one
// that has the run's.
template <typename Pointer, typename Byte>
std::span<Pointer const> PointersAt(const Sum& sum, const std::vector<Pointer>& buffers, bool are_rows,
                                    const ElementRun& run, std::vector<Pointer>& scratch) {
  const SumSpec& spec = *sum.spec;
  const size_t leaf_count = spec.leaf_elements.size();
  const uint64_t row_elements = are_rows ? sum.row_elements(run.leaf) : 0;
  const uint64_t row = are_rows ? run.first / row_elements : 0;
  assert(!are_rows || run.count == 0 || (run.first + run.count - 1) / row_elements == row);
  const size_t offset = (run.first - row * row_elements) * SizeOf(spec.dtype);
  scratch.clear();
  for (size_t device = 0; device * leaf_count < buffers.size(); ++device) {
    if (are_rows && sum.rows[device] != row) continue;
    scratch.push_back(static_cast<Byte*>(buffers[device * leaf_count + run.leaf]) + offset);
  }
  return scratch;
}

}  // namespace

SumBuffers::SumBuffers(Sum sum, std::shared_ptr<const SumPlan> plan) : sum_(std::move(sum)), plan_(std::move(plan)) {
  assert(sum_.rows.empty() || sum_.rows.size() == sum_.device_count());
  assert(!are_inputs_rows() || (SizeOf(sum_.spec->dtype) == 4 && !IsFloat(sum_.spec->dtype)));
}

std::span<const void* const> SumBuffers::InputsAt(const ElementRun& run) const {
  return PointersAt<const void*, const uint8_t>(sum_, sum_.inputs, are_inputs_rows(), run, input_scratch_);
}

std::span<void* const> SumBuffers::OutputsAt(const ElementRun& run) const {
  return PointersAt<void*, uint8_t>(sum_, sum_.outputs, are_outputs_rows(), run, output_scratch_);
}

std::span<void* const> SumBuffers::ResidualsAt(const ElementRun& run) const {
  return PointersAt<void*, uint8_t>(sum_, sum_.residuals, /*are_rows=*/false, run, residual_scratch_);
}

}  // namespace passing
