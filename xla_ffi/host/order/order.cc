#include "host/order/order.h"

#include <algorithm>
#include <cassert>

#include "host/order/utf8.h"

namespace passing {
namespace {

constexpr size_t kMaxNameBytes = 512;
// Rank 0 is at most a window ahead of what a follower has sent, and an entry takes at least one of its 65,536
// positions.
constexpr uint64_t kMaxEntriesAhead = 1 << 16;

void Put(std::string& out, uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) out.push_back(static_cast<char>(value >> shift));
}

class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  uint64_t Take(size_t bytes) {
    uint64_t value = 0;
    for (uint8_t byte : TakeBytes(bytes)) value = value << 8 | byte;
    return value;
  }
  std::span<const uint8_t> TakeBytes(size_t bytes) {
    if (bytes > bytes_.size()) {
      ok_ = false;
      bytes = 0;
    }
    auto taken = bytes_.first(bytes);
    bytes_ = bytes_.subspan(bytes);
    return taken;
  }
  bool ok() const { return ok_; }
  std::span<const uint8_t> rest() const { return bytes_; }

 private:
  std::span<const uint8_t> bytes_;
  bool ok_ = true;
};

}  // namespace

size_t Order::ContextHash::operator()(const Context& context) const {
  return MixedBits(context.site ^ (uint64_t{context.segment} << 32 | context.step));
}

std::optional<LogEntry> Order::Predict() const {
  const Successor* successor = nullptr;
  uint32_t step = 0;
  if (auto found = exact_.find(LastContext()); found != exact_.end()) {
    successor = &found->second;
    step = successor->step;
  } else if (auto guess = loose_.find({last_.id.site, last_.id.segment, 0}); guess != loose_.end()) {
    successor = &guess->second;
    step = static_cast<uint32_t>(std::max<int64_t>(0, int64_t{last_.id.step} + successor->step_delta));
  } else if (last_.id.segment + 1 < last_.segment_count) {
    LogEntry next = last_;  // all segments of a sum are alike but the last
    ++next.id.segment;
    next.index = next_index_;
    next.first_position = next_position_;
    return next;
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
                  .first_position = next_position_};
}

LogEntry Order::Append(const SegmentId& id, uint32_t chunk_count, uint32_t segment_count, const std::string& name,
                       std::string& announcement) {
  if (auto predicted = Predict(); predicted && predicted->id == id && predicted->chunk_count == chunk_count) {
    Push(*predicted);
    return *predicted;
  }
  const LogEntry entry{.id = id,
                       .chunk_count = chunk_count,
                       .segment_count = segment_count,
                       .index = next_index_,
                       .first_position = PositionAfterDeviation()};
  Put(announcement, entry.index, 8);
  Put(announcement, entry.first_position, 8);
  Put(announcement, id.site, 8);
  Put(announcement, id.execution, 4);
  Put(announcement, id.step, 4);
  Put(announcement, id.segment, 4);
  Put(announcement, id.pass, 4);
  Put(announcement, chunk_count, 4);
  Put(announcement, segment_count, 4);
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
  const auto name = reader.TakeBytes(reader.Take(2));
  if (!reader.ok() || entry.chunk_count == 0 || !IsUtf8(name)) return std::nullopt;
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
  unsettled_.push_back({entry, last_, before});
  if (id.pass == 0) {
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
  const Successor successor{.site = entry.id.site,
                            .segment = entry.id.segment,
                            .step = entry.id.step,
                            .chunk_count = entry.chunk_count,
                            .segment_count = entry.segment_count,
                            .step_delta = int64_t{entry.id.step} - last_.id.step};
  exact_[LastContext()] = successor;
  loose_[{last_.id.site, last_.id.segment, 0}] = successor;
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
    next_index_ = undo.entry.index;
    next_position_ = undo.entry.first_position;
    unsettled_.pop_back();
  }
}

}  // namespace passing
