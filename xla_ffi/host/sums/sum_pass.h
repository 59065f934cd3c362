// One pass of a sum in progress: its segments are placed in the job's order one after the other, and then get their
// results in any order. sum_passes.h has the two kinds of passes.
#ifndef XLA_FFI_HOST_SUMS_SUM_PASS_H_
#define XLA_FFI_HOST_SUMS_SUM_PASS_H_

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "host/sums/segment_id.h"
#include "host/sums/sum.h"
#include "host/sums/sum_plan.h"

namespace passing {

// The caller's buffers, which both passes read and write, and the plan that cuts them.
class SumBuffers {
 public:
  SumBuffers(Sum sum, std::shared_ptr<const SumPlan> plan);

  const Sum& sum() const { return sum_; }
  const std::shared_ptr<const SumPlan>& plan() const { return plan_; }
  // Pointers to the elements of a run, one for each device; valid until the next call.
  std::span<const void* const> InputsAt(const ElementRun& run) const;
  std::span<void* const> OutputsAt(const ElementRun& run) const;
  std::span<void* const> ResidualsAt(const ElementRun& run) const;

  // Are inputs, or outputs, rows of devices (Sum::rows)? Then the pointers to a run's elements are those of the devices
  // that have its row, if there are any, and the run must lie in one row.
  bool are_inputs_rows() const { return !sum_.rows.empty() && sum_.spec->moves == Moves::kGather; }
  bool are_outputs_rows() const { return !sum_.rows.empty() && sum_.spec->moves == Moves::kScatter; }
  // Calls f(run) for the parts of a run that lie in one row each, in order. Only where there are rows.
  template <typename F>
  void ForEachPart(const ElementRun& run, F&& f) const {
    const uint64_t row_elements = sum_.row_elements(run.leaf);
    for (uint32_t done = 0; done < run.count;) {
      const uint64_t first = run.first + done, left = row_elements - first % row_elements;
      const auto count = static_cast<uint32_t>(std::min<uint64_t>(run.count - done, left));
      f(ElementRun{run.leaf, first, count, run.block, run.offset + done});
      done += count;
    }
  }
  // Has f(outputs) write a run's elements, unless no device takes any of them. Not twice at a time.
  template <typename F>
  void WriteAt(const ElementRun& run, F&& f) const {
    if (!are_outputs_rows()) return f(OutputsAt(run));
    const uint64_t row_elements = sum_.row_elements(run.leaf);
    if (run.first % row_elements + run.count <= row_elements) {
      const std::span<void* const> outputs = OutputsAt(run);
      return outputs.empty() ? void() : f(outputs);
    }
    const size_t size = SizeOf(sum_.spec->dtype);
    part_scratch_.resize(run.count * size);
    void* const all = part_scratch_.data();
    f(std::span<void* const>(&all, 1));
    ForEachPart(run, [&](const ElementRun& part) {
      for (void* output : OutputsAt(part)) {
        std::memcpy(output, &part_scratch_[(part.first - run.first) * size], part.count * size);
      }
    });
  }

 private:
  const Sum sum_;
  const std::shared_ptr<const SumPlan> plan_;
  mutable std::vector<const void*> input_scratch_;
  mutable std::vector<void*> output_scratch_;
  mutable std::vector<void*> residual_scratch_;
  mutable std::vector<uint8_t> part_scratch_;
};

// The direction of the links that a sum loads, where there are several hosts: the most is sent, or received.
enum class Way : uint8_t { kBoth, kUp, kDown };
inline constexpr size_t kWays = 3;
constexpr bool AreOpposite(Way a, Way b) { return a != b && a != Way::kBoth && b != Way::kBoth; }

// A host's role in a chunk of data tells what it gives and needs.
struct ChunkRole {
  bool keeps_lanes = false;  // nobody else needs its lanes: it adds them to the result itself
  bool adds_zeros = false;   // its lanes are all 0
  bool needs_result = true;  // else its own lanes are all there is, or all that it may know
};

class SumPass {
 public:
  virtual ~SumPass() = default;
  SumPass(const SumPass&) = delete;
  SumPass& operator=(const SumPass&) = delete;

  // Describes what this pass adds up: the caller's elements, or their classes.
  const SumSpec& spec() const { return *spec_; }
  const SumPlan& plan() const { return *plan_; }
  const SumKey& key() const { return key_; }
  uint32_t pass() const { return pass_; }
  int64_t started_us() const { return started_us_; }  // when the caller started the sum
  Way way() const {
    return spec_->moves == Moves::kScatter ? Way::kUp : spec_->moves == Moves::kGather ? Way::kDown : Way::kBoth;
  }
  SegmentId IdOf(uint32_t segment) const { return {key_.site, key_.execution, key_.step, segment, pass_}; }

  virtual ChunkRole RoleIn(const Segment&, uint32_t /*chunk*/) const { return {}; }
  // May the sum of a lane over all ranks exceed 32 bits?
  virtual bool lanes_may_wrap() const = 0;
  // The next four take segments that are ready.
  // This host's exponents of a segment's blocks; none for integers.
  virtual std::vector<int32_t> Exponents(const Segment& segment) const = 0;
  // Are all elements of this host exact at these exponents of the blocks? Only for a segment that guesses.
  virtual bool IsExactAt(const Segment& segment, std::span<const int32_t> exponents) const = 0;
  // Writes the lanes of a data chunk; returns its flags. `exponents`: the job's, of the segment's blocks.
  virtual uint8_t Encode(const Segment& segment, uint32_t chunk, std::span<const int32_t> exponents,
                         uint8_t* lanes) const = 0;
  // Takes the sum of a data chunk over all hosts; it may overwrite this host's input.
  virtual void Decode(const Segment& segment, uint32_t chunk, std::span<const int32_t> exponents, const uint8_t* lanes,
                      uint8_t flags) = 0;
  // Finds the first element of a data chunk that isn't finite: of this host's, before Decode. Of results, after it,
  // only those are looked at whose bits were moved: others set flags.
  virtual std::optional<NonFinite> FirstNonFinite(const Segment&, uint32_t /*chunk*/, std::span<const int32_t>,
                                                  bool /*of_results*/) const {
    return std::nullopt;
  }
  // Counts that a placed segment has all its results. Returns whether it was the last one of this pass.
  bool OnSegmentDone(uint32_t segment) {
    assert(segments_done_ < segments_placed_);
    OnResultsOf(segment);
    return ++segments_done_ == plan_->segment_count();
  }

  // Once all segments are done: the pass that must follow on all ranks, or null if the sum is complete.
  virtual std::unique_ptr<SumPass> NextPass(const PlanLimits& limits) const = 0;
  // Bytes of one device's elements, as the caller has them.
  uint64_t tensor_bytes() const { return buffers_->sum().spec->bytes(); }
  // Calls the caller's `done`.
  void Finish(const Failure* failure) const { buffers_->sum().done(failure); }

  // Can the elements of a segment be read? Can the next segment be placed, if any is left?
  virtual bool IsReady(const Segment&) const { return true; }
  bool IsNextReady() const { return segments_left() > 0 && !is_held_ && IsReady(plan_->segment(segments_placed_)); }
  // Is it kept from being placed, by SumsInFlight?
  bool is_held() const { return is_held_; }

  // The segment that is placed next, if any is left.
  uint32_t next_segment() const { return segments_placed_; }
  uint32_t segments_left() const { return plan_->segment_count() - segments_placed_; }

 protected:
  SumPass(const SumKey& key, uint32_t pass, std::shared_ptr<const SumSpec> spec, std::shared_ptr<const SumPlan> plan,
          std::shared_ptr<const SumBuffers> buffers, int64_t started_us)
      : key_(key),
        pass_(pass),
        spec_(std::move(spec)),
        plan_(std::move(plan)),
        buffers_(std::move(buffers)),
        started_us_(started_us) {}

  const std::shared_ptr<const SumBuffers>& buffers() const { return buffers_; }

 private:
  friend class SumsInFlight;  // it finds sums by the members below, so nobody else changes them
  struct Turn {
    uint64_t number = 0;         // among the sums of this host
    uint64_t placed_before = 0;  // segments of other sums that had been placed when this sum was issued
  };
  void OnIssued(const Turn& turn) { turn_ = turn; }
  void OnSegmentPlaced() {
    assert(segments_left() > 0);
    ++segments_placed_;
  }
  void OnSegmentVoid() {
    assert(segments_placed_ > segments_done_);
    --segments_placed_;
  }

  // For sums that go on piece by piece (piecewise_pass.h): more elements can be read; a segment has its results.
  virtual void OnReady(uint64_t /*elements*/) {}
  virtual void OnResultsOf(uint32_t /*segment*/) {}

  const SumKey key_;
  const uint32_t pass_;
  const std::shared_ptr<const SumSpec> spec_;
  const std::shared_ptr<const SumPlan> plan_;
  const std::shared_ptr<const SumBuffers> buffers_;
  const int64_t started_us_;
  Turn turn_;
  bool is_held_ = false;
  uint32_t segments_placed_ = 0;
  uint32_t segments_done_ = 0;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_SUMS_SUM_PASS_H_
