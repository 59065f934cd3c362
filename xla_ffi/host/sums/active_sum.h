// A sum in progress: its elements, from the device buffers to the lanes of a chunk and back.
#ifndef XLA_FFI_HOST_SUMS_ACTIVE_SUM_H_
#define XLA_FFI_HOST_SUMS_ACTIVE_SUM_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "host/order/order.h"
#include "host/sums/sum.h"
#include "host/sums/sum_plan.h"

namespace passing {

class ActiveSum {
 public:
  ActiveSum(Sum sum, uint32_t lanes_per_chunk, uint32_t window, uint32_t headroom_bits, int64_t started_us);

  // The second pass of a sum that came back flagged: adds up the class counters of its flagged chunks. All ranks see
  // the same flags, so all of them make this sum.
  static std::unique_ptr<ActiveSum> SecondPassOf(std::unique_ptr<ActiveSum> first, uint32_t lanes_per_chunk,
                                                 uint32_t window);
  // The caller's sum: this one, or that of which this one is the second pass, with NaN and infinities put in.
  static std::unique_ptr<ActiveSum> FirstPassOf(std::unique_ptr<ActiveSum> last);

  const SumKey& key() const { return sum_.key; }
  const SumShape& shape() const { return *sum_.shape; }
  const SumPlan& plan() const { return plan_; }
  uint32_t pass() const { return first_ ? 1 : 0; }
  // Lanes of integers may, those of floats have headroom, and the class counters of all ranks fit (element_classes.h).
  bool lanes_may_wrap() const { return !first_ && !IsFloat(shape().dtype); }
  int64_t started_us() const { return started_us_; }
  bool flagged() const { return !flagged_.empty(); }
  SegmentId IdOf(uint32_t segment) const { return {key().site, key().execution, key().step, segment, pass()}; }
  // Tells the caller.
  void Finish(const Failure* failure) const { (first_ ? *first_ : *this).sum_.done(failure); }

  // Can the elements of a segment be read? Those of the next one to be placed, if any is left?
  bool IsReady(const Segment& segment) const {
    return ready_elements_ == kAllElements || EndOf(segment) <= ready_elements_;
  }
  bool IsNextReady() const { return segments_left() > 0 && IsReady(plan_.segment(segments_placed_)); }

  // This host's exponents of a segment's blocks; none for integers. It is ready, as where elements are asked for below.
  std::vector<int32_t> Exponents(const Segment& segment) const;
  // Writes the lanes of a data chunk; returns its flags. `exponents`: the job's, of the segment's blocks.
  uint8_t Encode(const Segment& segment, uint32_t chunk, std::span<const int32_t> exponents, uint32_t headroom_bits,
                 uint8_t* lanes) const;
  // Takes the sum of a data chunk over all hosts; it may overwrite this host's input.
  void Decode(const Segment& segment, uint32_t chunk, std::span<const int32_t> exponents, uint32_t headroom_bits,
              const uint8_t* lanes, uint8_t flags);

  // Its segments get their places in the job's order one after the other, and then their results in any order.
  // The segment that gets its place next, if any is left.
  uint32_t next_segment() const { return segments_placed_; }
  uint32_t segments_left() const { return plan_.segment_count() - segments_placed_; }
  // A placed segment has all its results. True if it was the sum's last one.
  bool OnSegmentDone(uint32_t segment);

 private:
  friend class SumsInFlight;  // it finds sums by what follows, so nobody else changes it
  struct Turn {
    uint64_t number = 0;         // among the sums of this host
    uint64_t placed_before = 0;  // segments of other sums that had their place when this one was issued
  };
  void OnIssued(const Turn& turn) { turn_ = turn; }
  void OnReady(uint64_t elements) { ready_elements_ = std::max(ready_elements_, elements); }
  void OnSegmentPlaced();
  void OnSegmentVoid();

  // Elements before the end of a segment.
  uint64_t EndOf(const Segment& segment) const {
    return plan_.ElementsBefore(segment.first_place + segment.place_count);
  }
  // Tells the caller of results that are there for good, as this segment has its own.
  void TellWritten(uint32_t segment);
  void Flag(const ChunkRange& range);
  // In a second pass: calls f(run of the first pass, its offset) for each run in `range`.
  template <typename F>
  void ForEachFlaggedRun(const ChunkRange& range, F&& f) const;
  std::span<const void* const> InputsAt(const ElementRun& run) const;
  std::span<void* const> OutputsAt(const ElementRun& run) const;

  const Sum sum_;
  const SumPlan plan_;
  const int64_t started_us_;
  Turn turn_;
  uint64_t ready_elements_;
  uint32_t segments_placed_ = 0;
  uint32_t segments_done_ = 0;
  // Where the caller asks: the segments before this one are done, and of those behind it these.
  uint32_t first_not_done_ = 0;
  std::set<uint32_t> done_beyond_;
  uint64_t elements_written_ = 0;  // of which he was told
  // First place and end of each stretch of flagged chunks. What this host has to say about their elements is kept in
  // the elements: all of a sum may be flagged, and the memory beyond the caller's is bounded.
  std::map<uint64_t, uint64_t> flagged_;
  // In a second pass: the first, and where its flagged stretches start, which are this sum's leaves.
  std::unique_ptr<ActiveSum> first_;
  std::vector<uint64_t> stretches_;
  mutable std::vector<const void*> input_scratch_;
  mutable std::vector<void*> output_scratch_;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_SUMS_ACTIVE_SUM_H_
