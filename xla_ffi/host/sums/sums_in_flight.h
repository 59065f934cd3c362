// The sums that this host has issued and that aren't done. There may be hundreds, and each new entry of the log looks
// its sum up here: so sums are found by name, and the one that rank 0 places next by what it has left, never by a scan.
#ifndef XLA_FFI_HOST_SUMS_SUMS_IN_FLIGHT_H_
#define XLA_FFI_HOST_SUMS_SUMS_IN_FLIGHT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <set>
#include <tuple>
#include <unordered_map>

#include "host/sums/segment_id.h"
#include "host/sums/sum_pass.h"

namespace passing {

class SumsInFlight {
 public:
  // No two sums in flight may have the same name: the rendezvous counts executions and steps.
  SumPass& Add(std::unique_ptr<SumPass> sum);
  std::unique_ptr<SumPass> Take(SumPass& sum);
  // The one that was added first; null if there is none.
  std::unique_ptr<SumPass> TakeFirst();

  bool empty() const { return sums_.empty(); }
  // Finds a sum by its name in this segment's; the segment may be out of its range. Null if it isn't here.
  SumPass* Find(const SegmentId& id) const;
  // The sum with the fewest segments left to place, of several the one that was added first: a small one isn't stuck
  // behind a large one. Only those whose next segment is ready. Null if there is none.
  SumPass* ShortestToPlace() const;
  // The same among those that load the opposite direction of the links, and have so many segments left or more.
  SumPass* ShortestOpposite(const SumPass& sum, uint32_t segments_left) const;
  // The one that was started first; null if there is none.
  const SumPass* Oldest() const;

  // Keeps a sum from being placed until it is released (early_sums.h).
  void Hold(SumPass& sum);
  void Release(SumPass& sum);

  // Tells that the first `elements` elements of `sum` can be read.
  void OnReady(SumPass& sum, uint64_t elements);
  // Tells that the next segment of `sum` was placed in the order, or lost its entry again.
  void CountPlaced(SumPass& sum);
  void CountVoid(SumPass& sum);
  // The number of segments, of all sums, that were placed since this sum was added.
  uint64_t PlacedSince(const SumPass& sum) const { return placed_ - sum.turn_.placed_before; }

 private:
  using Sums = std::list<std::unique_ptr<SumPass>>;
  using ToPlace = std::tuple<uint32_t, uint64_t, SumPass*>;  // segments left, number, sum

  static SegmentId NameOf(const SumPass& sum) { return sum.IdOf(0); }
  static ToPlace EntryOf(SumPass& sum) { return {sum.segments_left(), sum.turn_.number, &sum}; }
  std::set<ToPlace>& QueueOf(const SumPass& sum) { return to_place_[static_cast<size_t>(sum.way())]; }
  // Moves `sum` among those with a segment to place.
  void Reorder(const ToPlace& before, SumPass& sum);

  Sums sums_;                                                           // in the order in which they were added
  std::unordered_map<SegmentId, Sums::iterator, SegmentIdHash> named_;  // by the name of the first segment
  std::array<std::set<ToPlace>, kWays> to_place_;                       // those whose next segment is ready, by way
  uint64_t next_number_ = 0;
  uint64_t placed_ = 0;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_SUMS_SUMS_IN_FLIGHT_H_
