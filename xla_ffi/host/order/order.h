// The job's order of sums, one for all ranks: which segment takes which positions.
//
// XLA issues sums in another order on each host, but a slot is addressed by its position, so all ranks must use the
// same one: rank 0's. Each rank keeps a log of the segments in that order, and a table that predicts the next
// segment from the last: a compiled program repeats itself, and a sum goes on until its last segment. Rank 0 follows
// the prediction without a word and announces every segment that was not predicted. The table changes by announcements
// alone, in the order of the log, so all ranks predict alike.
//
// A follower may act on a prediction before rank 0 does. If rank 0 then deviates at position p, followers may have sent
// chunks in [p, p + window) that can never complete, for want of rank 0's share. So rank 0 skips 2 * window positions:
// no position ever has two meanings, and as each (shard, slot, version) is skipped exactly once, the switches still
// hold every result that somebody may lack (docs/internals/protocol.md has the proof).
#ifndef XLA_FFI_HOST_ORDER_ORDER_H_
#define XLA_FFI_HOST_ORDER_ORDER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "host/sums/segment_id.h"

namespace passing {

// An entry of the log: a segment, and the positions that it takes.
struct LogEntry {
  SegmentId id;
  uint32_t chunk_count = 0;
  uint32_t segment_count = 0;  // of the sum
  uint64_t index = 0;          // in the log
  uint64_t first_position = 0;
  bool takes_turns = false;  // from here on, its sum with that of the entry before, until one of them ends

  uint64_t end_position() const { return first_position + chunk_count; }
};

class Order {
 public:
  // A job that never repeats itself must not fill the memory: beyond this number of contexts all of them are forgotten.
  static constexpr size_t kMaxContexts = 1 << 20;

  // `window`: how many positions a rank may be ahead of its first missing result. All of it is alike on all ranks.
  explicit Order(uint32_t window, uint64_t first_position = 0, size_t max_contexts = kMaxContexts)
      : window_(window), max_contexts_(max_contexts), next_position_(first_position) {}

  // The entry that comes next if the program repeats itself.
  std::optional<LogEntry> Predict() const;

  // Rank 0: appends `id` to the log, and to `announcement` unless it was predicted. `name` is for people.
  LogEntry Append(const SegmentId& id, uint32_t chunk_count, uint32_t segment_count, const std::string& name,
                  std::string& announcement, bool takes_turns = false);

  // Followers: appends the predicted entry, for granted.
  LogEntry Speculate();

  // Followers: the changes that one announcement makes to the log.
  struct Change {
    std::vector<LogEntry> entries{};  // to append: predictions that rank 0 confirmed by going on, then its new one
    uint64_t keep = 0;                // log entries from this index on are void
    std::string name;                 // of the announced site, if it is new
  };
  // Reads one announcement from the front of `message`; empty if it makes no sense.
  std::optional<Change> Read(std::span<const uint8_t>& message);

  // Log entries before `index` are done: rank 0 took part in them, so nothing can void them any more.
  void Settle(uint64_t index);

  uint64_t next_position() const { return next_position_; }
  // The last entry of the elements' pass.
  const LogEntry& last() const { return last_; }
  // Do two sums take turns, both with segments left?
  bool in_turns() const { return other_.has_value(); }
  // The number of contexts of the job's history that are remembered.
  size_t contexts() const { return std::max(exact_.size(), latest_.size()); }  // there are no more loose_ than exact_

 private:
  struct Context {  // what a prediction is made from
    uint64_t site = 0;
    uint32_t segment = 0;
    uint32_t step = 0;
    friend bool operator==(const Context&, const Context&) = default;
  };
  struct ContextHash {
    size_t operator()(const Context& context) const;
  };
  struct Successor {
    uint64_t site;
    uint32_t segment;
    uint32_t step;
    uint32_t chunk_count;
    uint32_t segment_count;
    int64_t step_delta;
    bool takes_turns;
  };
  // The last entry of a site's segment: later ones follow from it.
  struct Latest {
    uint32_t execution = 0;
    uint32_t step = 0;
    uint32_t stride = 1;  // executions since the one before: not every execution may come to a sum under a condition
  };
  // Restores what an entry changed, should the entry turn out void.
  struct Undo {
    LogEntry entry;
    LogEntry last_before;
    std::optional<LogEntry> other_before;
    std::optional<Latest> latest_before;
  };

  static Context ContextOf(const LogEntry& entry) { return {entry.id.site, entry.id.segment, entry.id.step}; }
  LogEntry NextOf(const LogEntry& entry) const;  // the next segment of its sum
  void Push(const LogEntry& entry);
  void Learn(const LogEntry& entry);
  void ForgetHistory();
  void RollBack(uint64_t index);
  uint64_t PositionAfterDeviation() const { return next_position_ + (Predict() ? 2 * uint64_t{window_} : 0); }

  const uint32_t window_;
  const size_t max_contexts_;
  uint64_t next_index_ = 0;
  uint64_t next_position_;
  uint64_t announced_ = 0;         // log entries before this index are certain
  LogEntry last_;                  // the last of pass 0, from which predictions are made
  std::optional<LogEntry> other_;  // the last one of the sum whose turn it is, if two take turns
  std::deque<Undo> unsettled_;     // the log's entries that may still be void; the last one has index next_index_ - 1
  std::unordered_map<Context, Successor, ContextHash> exact_;  // by site, segment and step
  std::unordered_map<Context, Successor, ContextHash> loose_;  // by site and segment, for loops of any length
  std::unordered_map<Context, Latest, ContextHash> latest_;    // by site and segment
};

}  // namespace passing

#endif  // XLA_FFI_HOST_ORDER_ORDER_H_
