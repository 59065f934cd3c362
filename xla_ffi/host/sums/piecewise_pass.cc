#include "host/sums/piecewise_pass.h"

namespace passing {

// From the first flagged chunk on, the second pass will change elements again.
void PiecewisePass::OnResultsOf(uint32_t segment) {
  if (!pieces().written) return;
  not_done_.erase(plan().segment(segment).first_cell);
  const uint64_t first_not_done = not_done_.empty() ? plan().cells() : *not_done_.begin();
  const uint64_t elements = std::min(plan().ElementsBefore(first_not_done), elements_before_flagged());
  if (elements > elements_written_) pieces().written(elements_written_ = elements);
}

}  // namespace passing
