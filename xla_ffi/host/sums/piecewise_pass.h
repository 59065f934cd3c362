// The first pass of a sum whose elements come, and whose results are wanted, piece by piece: Sum::pieces.
#ifndef XLA_FFI_HOST_SUMS_PIECEWISE_PASS_H_
#define XLA_FFI_HOST_SUMS_PIECEWISE_PASS_H_

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "host/sums/sum_passes.h"

namespace passing {

class PiecewisePass final : public ElementPass {
 public:
  PiecewisePass(Sum sum, const PlanLimits& limits, const Rank& rank, int64_t started_us)
      : ElementPass(std::move(sum), limits, rank, started_us), ready_elements_(pieces().ready_elements) {
    for (uint32_t i = 0; i < plan().segment_count(); ++i) not_done_.insert(plan().segment(i).first_cell);
  }

  bool IsReady(const Segment& segment) const override { return EndOf(segment) <= ready_elements_; }

 private:
  void OnReady(uint64_t elements) override { ready_elements_ = std::max(ready_elements_, elements); }
  void OnResultsOf(uint32_t segment) override;

  const Pieces& pieces() const { return *buffers()->sum().pieces; }
  // Elements before the end of a segment.
  uint64_t EndOf(const Segment& segment) const {
    return plan().ElementsBefore(segment.first_cell + segment.cell_count);
  }

  uint64_t ready_elements_;
  std::set<uint64_t> not_done_;    // the first cells of segments without results
  uint64_t elements_written_ = 0;  // as the caller was told
};

}  // namespace passing

#endif  // XLA_FFI_HOST_SUMS_PIECEWISE_PASS_H_
