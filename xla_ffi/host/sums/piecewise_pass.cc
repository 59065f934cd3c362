#include "host/sums/piecewise_pass.h"

namespace passing {

// From the first flagged chunk on, the second pass will change elements again.
void PiecewisePass::OnResultsOf(uint32_t segment) {
  if (!pieces().written) return;
  done_beyond_.insert(segment);
  for (; !done_beyond_.empty() && *done_beyond_.begin() == first_not_done_; ++first_not_done_) {
    done_beyond_.erase(done_beyond_.begin());
  }
  if (first_not_done_ == 0) return;
  const uint64_t elements = std::min(EndOf(plan().segment(first_not_done_ - 1)), elements_before_flagged());
  if (elements > elements_written_) pieces().written(elements_written_ = elements);
}

}  // namespace passing
