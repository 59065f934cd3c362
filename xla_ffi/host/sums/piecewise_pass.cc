#include "host/sums/piecewise_pass.h"

namespace passing {

// From the first flagged chunk on, the second pass will change elements again.
void PiecewisePass::OnResultsOf(uint32_t segment) {
  if (!pieces().written) return;
  const Segment& done = plan().segment(segment);
  done_beyond_[done.first_cell] = done.first_cell + done.cell_count;
  while (!done_beyond_.empty() && done_beyond_.begin()->first == first_not_done_) {
    first_not_done_ = done_beyond_.begin()->second;
    done_beyond_.erase(done_beyond_.begin());
  }
  const uint64_t elements = std::min(plan().ElementsBefore(first_not_done_), elements_before_flagged());
  if (elements > elements_written_) pieces().written(elements_written_ = elements);
}

}  // namespace passing
