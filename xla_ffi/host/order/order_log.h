// What this host knows of the job's order of sums, line by line: which segment has which positions, which sum of this
// host it belongs to, and how far that is.
//
// Predictions fill the log as far as the window reaches, which may be thousands of lines. So what has to do with sums
// that this host has issued is found without a scan.
#ifndef XLA_FFI_HOST_ORDER_ORDER_LOG_H_
#define XLA_FFI_HOST_ORDER_ORDER_LOG_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>

#include "host/order/order.h"
#include "host/sums/active_sum.h"
#include "host/sums/segment_exponents.h"
#include "host/sums/sums_in_flight.h"

namespace passing {

struct PlacedSegment {
  LogEntry entry;
  ActiveSum* sum = nullptr;  // null until this host issues it, and once the line is done
  bool is_prepared = false;  // this host's elements are there; nothing is sent before
  SegmentExponents exponents{};
  uint32_t next_chunk = 0;  // to be sent for the first time
  uint32_t chunks_done = 0;

  const Segment& segment() const { return sum->plan().segment(entry.id.segment); }
  uint64_t PositionOf(uint32_t chunk) const { return entry.first_position + chunk; }
  uint32_t ChunkAt(uint64_t position) const { return static_cast<uint32_t>(position - entry.first_position); }
};

// Its first line is the first one that isn't done. The sums that this host has issued are in it even before their
// segments have a line.
class OrderLog {
 public:
  // `last_exponents`: what small sums guess theirs by.
  explicit OrderLog(const LastExponents& last_exponents) : last_exponents_(last_exponents) {}
  OrderLog(const OrderLog&) = delete;
  OrderLog& operator=(const OrderLog&) = delete;

  SumsInFlight& sums() { return sums_; }
  const SumsInFlight& sums() const { return sums_; }

  void Issue(std::unique_ptr<ActiveSum> sum);
  // So many elements of the sum with this first segment can be read; false if there is no such sum.
  bool OnReady(const SegmentId& first, uint64_t elements);
  // Whether the line may be sent: its sum's elements are there, from which its exponents are taken now.
  bool Prepare(PlacedSegment& placed);
  // Whether that line, or one before it, isn't prepared. A scan.
  bool WaitsForElements(uint64_t index) const;
  // Appends a line.
  void Append(const LogEntry& entry);
  // Are there lines from this index on?
  bool Reaches(uint64_t index) const { return !entries_.empty() && entries_.back().entry.index >= index; }
  // Drops those lines; returns the first position of them. Empty if one of them has a result: then rank 0 took part in
  // it, and can't have placed something else there. The log is half changed then.
  std::optional<uint64_t> DropFrom(uint64_t index);
  // Its sum has all results of this line. Returns the sum if this was its last line: it is no longer in flight.
  std::unique_ptr<ActiveSum> Finish(PlacedSegment& placed);
  void PopFront() { entries_.pop_front(); }
  void Clear();

  bool empty() const { return entries_.empty(); }
  const PlacedSegment& front() const { return entries_.front(); }
  // Some line has this position.
  PlacedSegment& At(uint64_t position);
  // The lines with a sum: their indices, in order.
  const std::set<uint64_t>& under_way() const { return under_way_; }
  PlacedSegment& WithIndex(uint64_t index) { return entries_[index - entries_.front().entry.index]; }
  const PlacedSegment& WithIndex(uint64_t index) const { return entries_[index - entries_.front().entry.index]; }
  // The first line of a sum that isn't done; null if it has none. A scan.
  const PlacedSegment* FirstOf(const ActiveSum& sum) const;

 private:
  void Join(PlacedSegment& placed, ActiveSum& sum);

  const LastExponents& last_exponents_;
  std::deque<PlacedSegment> entries_;
  std::unordered_map<SegmentId, uint64_t, SegmentIdHash> not_issued_;  // index of the line; the first, if told twice
  std::set<uint64_t> under_way_;
  SumsInFlight sums_;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_ORDER_ORDER_LOG_H_
