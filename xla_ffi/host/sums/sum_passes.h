// The two passes of a sum: its elements, and then the classes of those that are NaN or infinite, if there are any.
#ifndef XLA_FFI_HOST_SUMS_SUM_PASSES_H_
#define XLA_FFI_HOST_SUMS_SUM_PASSES_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "host/numbers/fixed_point.h"
#include "host/sums/rank.h"
#include "host/sums/sum.h"
#include "host/sums/sum_pass.h"
#include "host/sums/sum_plan.h"

namespace passing {

// The classes of a run's elements. A run is no longer than a block.
using Classes = std::array<uint32_t, kMaxBlockElements>;

// The key of a rank's random bits for one sum.
uint64_t RoundingKey(const Rank& rank, const SumKey& sum);

// The first pass: the elements themselves. Those that aren't finite travel as zeros, and flag their chunks.
class ElementPass : public SumPass {
 public:
  ElementPass(Sum sum, const PlanLimits& limits, const Rank& rank, int64_t started_us);
  // Returns the first pass of a sum of any kind.
  static std::unique_ptr<ElementPass> Of(Sum sum, const PlanLimits& limits, const Rank& rank, int64_t started_us);

  // Floats have headroom, and of ranks that are apart only one adds anything to a lane.
  bool lanes_may_wrap() const override { return !IsFloat(spec().dtype) && !plan().maxima_apart(); }
  ChunkRole RoleIn(const Segment& segment, uint32_t chunk) const override;
  std::vector<int32_t> Exponents(const Segment& segment) const override;
  bool IsExactAt(const Segment& segment, std::span<const int32_t> exponents) const override;
  uint8_t Encode(const Segment& segment, uint32_t chunk, std::span<const int32_t> exponents,
                 uint8_t* lanes) const override;
  void Decode(const Segment& segment, uint32_t chunk, std::span<const int32_t> exponents, const uint8_t* lanes,
              uint8_t flags) override;
  std::optional<NonFinite> FirstNonFinite(const Segment& segment, uint32_t chunk, std::span<const int32_t> exponents,
                                          bool of_results) const override;
  std::unique_ptr<SumPass> NextPass(const PlanLimits& limits) const override;

 protected:
  // Elements before the first that the second pass will change; all, if there is none until now.
  uint64_t elements_before_flagged() const;

 private:
  ElementPass(std::shared_ptr<const SumBuffers> buffers, const Rank& rank, int64_t started_us);
  // Are rows of this host, and of others, in these cells?
  struct Rows {
    bool own = false, others = false;
  };
  Rows RowsIn(const ChunkRange& range) const;
  // Names the random bits of a run.
  Rounding RoundingOf(const ElementRun& run) const {
    return {.to_nearest = !buffers()->sum().residuals.empty(),
            .key = rounding_key_,
            .block = run.block,
            .first = static_cast<uint32_t>(run.first % plan().BlockElementsOf(run.leaf))};
  }
  void Flag(const ChunkRange& range);
  void NoteMoved(uint64_t block);
  // Host elements of a precise sum, from this one on.
  std::span<const double> ElementsAt(uint64_t first, uint32_t count) const {
    return std::span(elements_).subspan(first, count);
  }
  void DecodePreciseChunk(const ChunkRange& range, const Segment& segment, std::span<const int32_t> exponents,
                          const uint8_t* lanes);
  // The same for one run: as Encode does, and what it keeps back.
  uint8_t EncodeRun(const ElementRun& run, int32_t exponent, uint8_t* lanes) const;
  void KeepResiduals(const ElementRun& run, int32_t exponent) const;
  void EncodeRows(const ElementRun& run, uint8_t* lanes) const;

  // The same of maxima whose ranks are apart, and back.
  void EncodeApart(std::span<const void* const> inputs, uint32_t count, uint8_t* lanes) const;
  void DecodeApart(const uint8_t* lanes, uint32_t count, std::span<void* const> outputs) const;

  const Rank rank_;
  const uint64_t rounding_key_;
  mutable std::vector<double> elements_;  // of a precise sum, once its exponents were asked for
  // The first cell and the end of each stretch of flagged chunks. The classes of their elements are kept in the
  // elements themselves (MarkClasses): all of a sum may be flagged, and the memory beyond the caller's is bounded.
  std::map<uint64_t, uint64_t> flagged_;
  std::vector<Rows> rows_in_;  // by segment; empty where all is given and needed
  std::vector<bool> moved_;    // by block: one that is moved has no marks of classes. Empty unless a chunk was flagged
};

// The second pass: class counters (element_classes.h) of the elements in all flagged chunks. All ranks see the same
// flags, so all of them make this pass.
class ClassPass final : public SumPass {
 public:
  // `first`: the pass before. `flagged`: its stretches of flagged cells, which are the leaves of this pass. `moved`:
  // its blocks whose elements have their bits already.
  ClassPass(const SumPass& first, std::shared_ptr<const SumBuffers> buffers,
            const std::map<uint64_t, uint64_t>& flagged, std::vector<bool> moved, const PlanLimits& limits);

  bool lanes_may_wrap() const override { return false; }  // the counters of all ranks fit
  std::vector<int32_t> Exponents(const Segment&) const override { return {}; }
  bool IsExactAt(const Segment&, std::span<const int32_t>) const override { return true; }
  uint8_t Encode(const Segment& segment, uint32_t chunk, std::span<const int32_t> exponents,
                 uint8_t* lanes) const override;
  void Decode(const Segment& segment, uint32_t chunk, std::span<const int32_t> exponents, const uint8_t* lanes,
              uint8_t flags) override;
  std::unique_ptr<SumPass> NextPass(const PlanLimits&) const override { return nullptr; }

 private:
  ClassPass(const SumPass& first, std::shared_ptr<const SumSpec> spec, std::shared_ptr<const SumBuffers> buffers,
            const std::map<uint64_t, uint64_t>& flagged, std::vector<bool> moved, const PlanLimits& limits);
  // Calls f(run of the caller's elements, its offset in the chunk) for each run in `range`, but for moved ones.
  template <typename F>
  void ForEachFlaggedRun(const ChunkRange& range, F&& f) const;

  std::vector<uint64_t> stretches_;  // the first cell of each
  const std::vector<bool> moved_;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_SUMS_SUM_PASSES_H_
