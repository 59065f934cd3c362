// The job's log as this host sees it: which segment has which positions, which sum of this host it belongs to, and how
// far that sum is.
//
// Predictions fill the log as far as the window reaches, which may be thousands of entries. So the entries of sums that
// this host has issued are found without a scan.
#ifndef XLA_FFI_HOST_ORDER_ORDER_LOG_H_
#define XLA_FFI_HOST_ORDER_ORDER_LOG_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>

#include "host/order/order.h"
#include "host/sums/rank.h"
#include "host/sums/segment_exponents.h"
#include "host/sums/sum_pass.h"
#include "host/sums/sums_in_flight.h"

namespace passing {

// kPreciseLanesOfSum fill so many of 360 lanes. Lanes that each rank has for itself (SumPlan::maxima_apart) fill more.
inline constexpr uint32_t kSmallChunks = 4;

// A segment with its entry in the log, and this host's progress with it.
struct PlacedSegment {
  LogEntry entry;
  SumPass* sum = nullptr;    // null until this host issues it, and once the segment is done
  bool is_prepared = false;  // this host's elements are there; nothing is sent before
  SegmentExponents exponents{};
  // They stand for it where sums are checked (sum_check.h).
  uint64_t digest = 0, digest_of_data = 0;
  uint32_t next_chunk = 0;  // to be sent for the first time
  uint32_t chunks_done = 0;
  std::set<uint32_t> unfit{};  // chunks of guessed data that had a wrong result before the exponents were known

  const Segment& segment() const { return sum->plan().segment(entry.id.segment); }
  uint64_t PositionOf(uint32_t chunk) const { return entry.first_position + chunk; }
  // Is it all of a small sum? Its chunks don't wait for the data of others that is placed before and isn't sent yet.
  bool goes_ahead() const {
    const bool is_short = segment().cell_count <= kPreciseLanesOfSum && segment().data_chunks <= kSmallChunks;
    return segment().guesses() || (is_short && entry.segment_count == 1 && segment().exponent_chunks == 0);
  }
  uint32_t ChunkAt(uint64_t position) const { return static_cast<uint32_t>(position - entry.first_position); }
};

// The log begins with the first segment that isn't done. It also holds the sums that this host has issued and whose
// segments have no entry yet.
class OrderLog {
 public:
  // `last_exponents`: small sums guess their exponents from these.
  OrderLog(const LastExponents& last_exponents, const Rank& rank) : last_exponents_(last_exponents), rank_(rank) {}
  OrderLog(const OrderLog&) = delete;
  OrderLog& operator=(const OrderLog&) = delete;

  SumsInFlight& sums() { return sums_; }
  const SumsInFlight& sums() const { return sums_; }

  SumPass& Issue(std::unique_ptr<SumPass> sum);
  // Tells that the first `elements` elements of the sum with this first segment can be read. Returns false if there is
  // no such sum.
  bool OnReady(const SegmentId& first, uint64_t elements);
  // Computes the segment's exponents if its elements are there. Returns whether they are, and so whether it may be
  // sent.
  bool Prepare(PlacedSegment& placed);
  // Is this entry, or one before it, not prepared yet? Scans the entries to send.
  bool WaitsForElements(uint64_t index) const;
  // `digest`: ChunkPackets::DigestOf it.
  void Append(const LogEntry& entry, uint64_t digest);
  // Are there entries from this index on?
  bool Reaches(uint64_t index) const { return !entries_.empty() && entries_.back().entry.index >= index; }
  // Drops these entries and returns the first position of theirs. Empty if one of them has a result: then rank 0 took
  // part in it and can't have appended anything else there. The log is half changed then.
  std::optional<uint64_t> DropFrom(uint64_t index);
  // Called when all results of the segment are there. Returns its sum if this was the last segment of it: the sum is no
  // longer in flight.
  std::unique_ptr<SumPass> Finish(PlacedSegment& placed);
  void PopFront() { entries_.pop_front(); }
  void Clear();

  bool empty() const { return entries_.empty(); }
  const PlacedSegment& front() const { return entries_.front(); }
  const PlacedSegment& back() const { return entries_.back(); }
  // The entry that has this position; there must be one.
  PlacedSegment& At(uint64_t position);
  // The indices of the entries with a sum, in order, that have something to send: but those whose chunks were all sent,
  // or, where they guess, as far as the exponents are known. So a batch of results costs the same, however many sums
  // wait.
  const std::set<uint64_t>& to_send() const { return to_send_; }
  // Tells that this entry has nothing to send for now. Returns the next one that has.
  std::set<uint64_t>::const_iterator OnSent(std::set<uint64_t>::const_iterator entry) { return to_send_.erase(entry); }
  // Tells that the entry has something to send again.
  void OnSendable(const PlacedSegment& placed) { to_send_.insert(placed.entry.index); }
  PlacedSegment& WithIndex(uint64_t index) { return entries_[index - entries_.front().entry.index]; }
  const PlacedSegment& WithIndex(uint64_t index) const { return entries_[index - entries_.front().entry.index]; }
  // The first segment of a sum that isn't done; null if the sum has no entry. Scans the log.
  const PlacedSegment* FirstOf(const SumPass& sum) const;

 private:
  void Connect(PlacedSegment& placed, SumPass& sum);

  const LastExponents& last_exponents_;
  const Rank rank_;
  std::deque<PlacedSegment> entries_;
  std::unordered_map<SegmentId, uint64_t, SegmentIdHash> not_issued_;  // index in the log; the first announcement wins
  std::set<uint64_t> to_send_;
  SumsInFlight sums_;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_ORDER_ORDER_LOG_H_
