#include "host/order/order.h"

#include <algorithm>
#include <cassert>

#include "host/order/message.h"
#include "host/order/utf8.h"

namespace passing {
namespace {

constexpr size_t kMaxNameBytes = 512;
// Rank 0 is at most a window ahead of what a follower has sent, and an entry takes at least one of its 65,536
// positions.
constexpr uint64_t kMaxEntriesAhead = 1 << 16;

bool HasMore(const LogEntry& entry) { return entry.id.segment + 1 < entry.segment_count; }

// Is it the next segment of that entry's sum?
bool Follows(const LogEntry& entry, const SegmentId& id) {
  SegmentId next = entry.id;
  ++next.segment;
  return next == id;
}

}  // namespace

size_t Order::ContextHash::operator()(const Context& context) const {
  return MixedBits(context.site ^ (uint64_t{context.segment} << 32 | context.step));
}

// All segments of a sum are alike, but for what history knows of the last one.
LogEntry Order::NextOf(const LogEntry& entry) const {
  LogEntry next = entry;
  ++next.id.segment;
  next.takes_turns = false;
  next.index = next_index_;
  next.first_position = next_position_;
  const auto found = exact_.find(ContextOf(entry));
  const bool is_known = found != exact_.end() && found->second.site == next.id.site;
  if (is_known && found->second.segment == next.id.segment) next.chunk_count = found->second.chunk_count;
  return next;
}

std::optional<LogEntry> Order::Predict() const {
  if (other_) return NextOf(*other_);
  const Successor* successor = nullptr;
  uint32_t step = 0;
  if (auto found = exact_.find(ContextOf(last_)); found != exact_.end()) {
    successor = &found->second;
    step = successor->step;
  } else if (auto guess = loose_.find({last_.id.site, last_.id.segment, 0}); guess != loose_.end()) {
    successor = &guess->second;
    step = static_cast<uint32_t>(std::max<int64_t>(0, int64_t{last_.id.step} + successor->step_delta));
  } else if (HasMore(last_)) {
    return NextOf(last_);
  } else {
    return std::nullopt;
  }
  uint32_t execution = 0;
  if (const auto found = latest_.find({successor->site, successor->segment, 0}); found != latest_.end()) {
    const Latest& latest = found->second;
    execution = step > latest.step ? latest.execution : latest.execution + latest.stride;
  }
  return LogEntry{.id = {.site = successor->site, .execution = execution, .step = step, .segment = successor->segment},
                  .chunk_count = successor->chunk_count,
                  .segment_count = successor->segment_count,
                  .index = next_index_,
                  .first_position = next_position_,
                  .takes_turns = successor->takes_turns};
}

LogEntry Order::Append(const SegmentId& id, uint32_t chunk_count, uint32_t segment_count, const std::string& name,
                       std::string& announcement, bool takes_turns) {
  const auto predicted = Predict();
  if (predicted && predicted->id == id && predicted->chunk_count == chunk_count &&
      predicted->takes_turns == takes_turns) {
    Push(*predicted);
    return *predicted;
  }
  const LogEntry entry{.id = id,
                       .chunk_count = chunk_count,
                       .segment_count = segment_count,
                       .index = next_index_,
                       .first_position = PositionAfterDeviation(),
                       .takes_turns = takes_turns};
  Put(announcement, entry.index, 8);
  Put(announcement, entry.first_position, 8);
  Put(announcement, id.site, 8);
  Put(announcement, id.execution, 4);
  Put(announcement, id.step, 4);
  Put(announcement, id.segment, 4);
  Put(announcement, id.pass, 4);
  Put(announcement, chunk_count, 4);
  Put(announcement, segment_count, 4);
  Put(announcement, takes_turns, 1);
  const bool first = !latest_.contains({id.site, 0, 0});
  const size_t name_bytes = first ? Utf8Prefix(name, kMaxNameBytes) : 0;
  Put(announcement, name_bytes, 2);
  announcement.append(name, 0, name_bytes);
  Learn(entry);
  Push(entry);
  return entry;
}

LogEntry Order::Speculate() {
  const auto entry = Predict();
  assert(entry);
  Push(*entry);
  return *entry;
}

std::optional<Order::Change> Order::Read(std::span<const uint8_t>& message) {
  Reader reader(message);
  LogEntry entry;
  entry.index = reader.Take(8);
  entry.first_position = reader.Take(8);
  entry.id.site = reader.Take(8);
  entry.id.execution = static_cast<uint32_t>(reader.Take(4));
  entry.id.step = static_cast<uint32_t>(reader.Take(4));
  entry.id.segment = static_cast<uint32_t>(reader.Take(4));
  entry.id.pass = static_cast<uint32_t>(reader.Take(4));
  entry.chunk_count = static_cast<uint32_t>(reader.Take(4));
  entry.segment_count = static_cast<uint32_t>(reader.Take(4));
  const uint64_t takes_turns = reader.Take(1);
  entry.takes_turns = takes_turns == 1;
  const auto name = reader.TakeBytes(reader.Take(2));
  if (!reader.ok() || takes_turns > 1 || entry.chunk_count == 0 || !IsUtf8(name)) return std::nullopt;
  if (entry.index < announced_ || entry.index + unsettled_.size() < next_index_) return std::nullopt;  // certain
  if (entry.index > next_index_ + kMaxEntriesAhead) return std::nullopt;

  Change change{.keep = entry.index, .name = std::string(name.begin(), name.end())};
  RollBack(entry.index);
  while (next_index_ < entry.index) {
    if (!Predict() || next_position_ >= entry.first_position) return std::nullopt;
    change.entries.push_back(Speculate());
  }
  if (entry.first_position != PositionAfterDeviation()) return std::nullopt;
  Learn(entry);
  Push(entry);
  announced_ = next_index_;
  change.entries.push_back(entry);
  message = reader.rest();
  return change;
}

void Order::Settle(uint64_t index) {
  while (!unsettled_.empty() && unsettled_.front().entry.index < index) unsettled_.pop_front();
}

void Order::Push(const LogEntry& entry) {
  const SegmentId& id = entry.id;
  const auto found = latest_.find({id.site, id.segment, 0});
  const auto before = found == latest_.end() ? std::nullopt : std::optional(found->second);
  unsettled_.push_back({entry, last_, other_, before});
  if (id.pass == 0) {
    const bool is_others_turn = other_ && Follows(*other_, id);
    if (entry.takes_turns || is_others_turn) {
      other_ = last_;
    } else if (!Follows(last_, id)) {
      other_.reset();
    }
    if (other_ && !HasMore(*other_)) other_.reset();
    last_ = entry;
    // Two calls of one site may overtake each other; none is ever predicted twice.
    if (!before || id.execution > before->execution) {
      latest_[{id.site, id.segment, 0}] = {id.execution, id.step, before ? id.execution - before->execution : 1};
    } else if (id.execution == before->execution && id.step > before->step) {
      found->second.step = id.step;
    }
  }
  next_index_ = entry.index + 1;
  next_position_ = entry.end_position();
}

void Order::Learn(const LogEntry& entry) {
  if (entry.id.pass != 0) return;  // follows from the data, not from the program
  if (contexts() >= max_contexts_) ForgetHistory();
  const LogEntry& before = other_ && Follows(*other_, entry.id) ? *other_ : last_;
  const Successor successor{.site = entry.id.site,
                            .segment = entry.id.segment,
                            .step = entry.id.step,
                            .chunk_count = entry.chunk_count,
                            .segment_count = entry.segment_count,
                            .step_delta = int64_t{entry.id.step} - before.id.step,
                            .takes_turns = entry.takes_turns};
  exact_[ContextOf(before)] = successor;
  loose_[{before.id.site, before.id.segment, 0}] = successor;
}

// Runs at an announcement, before its entry is appended: there all ranks have the same history, so all forget it at the
// same entry. By then, what a follower guessed beyond that entry is rolled back, and what lies before it is certain: so
// no entry that could still be void depends on what is forgotten.
void Order::ForgetHistory() {
  exact_.clear();
  loose_.clear();
  latest_.clear();
}

void Order::RollBack(uint64_t index) {
  while (next_index_ > index) {
    const Undo& undo = unsettled_.back();
    const SegmentId& id = undo.entry.id;
    if (undo.latest_before) {
      latest_[{id.site, id.segment, 0}] = *undo.latest_before;
    } else {
      latest_.erase({id.site, id.segment, 0});
    }
    last_ = undo.last_before;
    other_ = undo.other_before;
    next_index_ = undo.entry.index;
    next_position_ = undo.entry.first_position;
    unsettled_.pop_back();
  }
}

}  // namespace passing
