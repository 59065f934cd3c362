#include "host/window/slot_window.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

#include "wire/header.h"

namespace passing {
namespace {

constexpr uint32_t kMinReorderChunks = 3;  // of a narrow window, in which no more are in flight

// After a silence, at most this many chunks are sent again: a straggler makes every chunk time out, though nothing is
// lost. If no result answers a burst, as where a port overflows, the next burst is half as long. Under random loss some
// of it is always answered, so it isn't shortened.
constexpr uint32_t kMaxFirstBurst = 8;
constexpr uint32_t kMinBurst = 2;  // one of each kind: NextOfBurst

// Silences last ever longer, up to so long.
constexpr int64_t kMaxProbeIntervalUs = 100'000;

constexpr uint64_t kWordBits = 64;  // of a word of the chunks in flight
constexpr ChunkLanes kNone{.up = false, .down = false};

}  // namespace

SlotWindow::SlotWindow(const Sharding& sharding, uint32_t ranks_at_port, uint32_t lanes_per_chunk)
    : sharding_(sharding),
      least_ahead_(kLanesAhead / lanes_per_chunk),
      chunks_(sharding.window()),
      in_flight_((chunks_.size() + kWordBits - 1) / kWordBits),
      paths_(sharding.shard_count()),
      congestion_(sharding.window(), ranks_at_port, lanes_per_chunk, sharding.shard_count()) {}

void SlotWindow::Advance(uint64_t low) {
  assert(low >= low_);
  low_ = low;
  while (!gaps_.empty() && gaps_.front().first < low) gaps_.pop_front();
}

void SlotWindow::OnGap(uint64_t first, uint64_t end) {
  if (first == end) return;
  assert(end - first == 2 * uint64_t{sharding_.window()});
  gaps_.push_back({first, end});
}

void SlotWindow::OnSent(uint64_t position, int64_t now_us, ChunkLanes lanes) {
  assert(position >= low_ && position < end());
  Chunk& chunk = At(position);
  assert(chunk.position != position || chunk.state != State::kInFlight);
  Path& path = PathOf(position);
  chunk = {.position = position,
           .state = State::kInFlight,
           .leaves_out = !lanes.up || !lanes.down,
           .sent_us = now_us,
           .send_number = ++path.send_number};
  path.sent.push_back({position, chunk.send_number});
  Mark(position, lanes);
  congestion_.OnSent(now_us, round_trip_);
}

void SlotWindow::Mark(uint64_t position, ChunkLanes lanes) {
  const uint64_t at = PlaceOf(position), bit = uint64_t{1} << at % kWordBits;
  Word& word = in_flight_[at / kWordBits];
  word.up = lanes.up ? word.up | bit : word.up & ~bit;
  word.down = lanes.down ? word.down | bit : word.down & ~bit;
}

SlotWindow::Count SlotWindow::InFlightBetween(uint64_t first, uint64_t end) const {
  const bool has_gap = !gaps_.empty() && gaps_.front().first >= first && gaps_.front().first < end;
  if (!has_gap) return CountBetween(first, end);
  return CountBetween(first, gaps_.front().first) += CountBetween(gaps_.front().end, end);
}

SlotWindow::Count SlotWindow::CountBetween(uint64_t first, uint64_t end) const {
  Count count;
  while (first < end) {
    const uint64_t at = PlaceOf(first), skipped = at % kWordBits;
    const uint64_t bits = std::min({kWordBits - skipped, chunks_.size() - at, end - first});
    const auto counted = [&](uint64_t word) {
      return static_cast<uint32_t>(std::popcount(word >> skipped << (kWordBits - bits)));
    };
    count += {counted(in_flight_[at / kWordBits].up), counted(in_flight_[at / kWordBits].down)};
    first += bits;
  }
  return count;
}

void SlotWindow::OnResult(uint64_t position, int64_t now_us, bool in_order) {
  Chunk& chunk = At(position);
  assert(chunk.position == position && chunk.state == State::kInFlight);
  chunk.state = State::kDone;
  Mark(position, kNone);
  Path& path = PathOf(position);
  if (IsAsked(path)) {
    path.revived_us = now_us;
  } else if (now_us > path.progress_us) {
    if (now_us > path.gaps_since_us + kGapsOfLateUs) {
      path.gap_before_us = std::exchange(path.gap_us, 0);
      path.gaps_since_us = now_us;
    }
    path.gap_us = std::max(now_us - std::max(path.progress_us, chunk.sent_us), path.gap_us);
  }
  path.progress_us = now_us;
  if (in_order) {
    if (!chunk.resent) path.answered_number = std::max(path.answered_number, chunk.send_number);
    path.answered_position = std::max(path.answered_position, position);
  }
  // A chunk that was taken for lost waited for a resend of some rank, so its time is no round trip.
  if (!chunk.resent && chunk.send_number > path.lost_number) round_trip_.Measure(now_us - chunk.sent_us, now_us);
  silences_ = 0;
  probe_us_ = 0;
  probe_interval_us_ = 0;
  congestion_.OnResult(now_us, round_trip_);
}

bool SlotWindow::Done(uint64_t position) const {
  if (position < low_) return true;
  const Chunk& chunk = At(position);
  return chunk.position == position && chunk.state == State::kDone;
}

void SlotWindow::Skip(uint64_t position) {
  assert(position >= low_ && position < end());
  At(position) = {.position = position, .state = State::kDone};
  Mark(position, kNone);
}

void SlotWindow::Forget(uint64_t position) {
  for (Chunk& chunk : chunks_) {
    if (chunk.position < position || chunk.state == State::kUnsent) continue;
    assert(chunk.state == State::kInFlight);  // rank 0 took no part in it, so it has no result
    chunk.state = State::kUnsent;
    Mark(chunk.position, kNone);
  }
}

std::optional<uint64_t> SlotWindow::NextResend(int64_t now_us) {
  for (Path& path : paths_) {
    while (!path.sent.empty() && !Waits(path.sent.front())) path.sent.pop_front();
    if (const auto overtaken = FirstOvertaken(path)) {
      congestion_.OnLoss(now_us, round_trip_);
      return Resend(*overtaken, now_us);
    }
    if (path.burst_left > 0 && FirstLost(path)) return Resend(NextOfBurst(path), now_us);
  }
  const Timeout timeout = NextTimeout();
  if (now_us < std::max(timeout.due_us, probe_us_)) return std::nullopt;
  Path& path = PathOf(timeout.position);
  const Chunk& first = At(timeout.position);
  if (Recovers(path, first)) {
    congestion_.OnLoss(now_us, round_trip_);
    BeginBurst(path, 2 * path.burst, now_us);
  } else if (now_us >= SilentUs(path, first)) {
    OnSilence(now_us);
  } else if (!IsAsked(path) && now_us >= AskUs(path, first)) {
    path.lost_number = path.send_number;
    BeginBurst(path, kMinBurst, now_us);
  } else {  // for long, while the path goes on
    congestion_.OnLoss(now_us, round_trip_);
    return Resend(timeout.position, now_us);
  }
  return Resend(NextOfBurst(path), now_us);
}

// The lowest, as all ranks send the same chunks again, and so complete them. But the last one is the oldest: guessed
// data may have no result that counts before its exponents, which stand behind it, have theirs.
uint64_t SlotWindow::NextOfBurst(Path& path) { return --path.burst_left == 0 ? *FirstLost(path) : *LowestLost(path); }

int64_t SlotWindow::AskUs(const Path& path, const Chunk& first_waiting) const {
  const bool goes_on = path.progress_us > first_waiting.sent_us;
  const int64_t due_us = goes_on               ? path.progress_us + GapUs(path)
                         : round_trip_us() > 0 ? first_waiting.sent_us + round_trip_us() + GapUs(path)
                                               : INT64_MAX;
  return std::min(due_us, SilentUs(path, first_waiting));
}

void SlotWindow::OnSilence(int64_t now_us) {
  congestion_.OnSilence(++silences_);
  probe_interval_us_ = std::clamp(2 * probe_interval_us_, rto_us(), kMaxProbeIntervalUs);
  probe_us_ = now_us + probe_interval_us_;
  for (Path& path : paths_) {
    const Chunk* first = FirstWaiting(path);
    if (first == nullptr || now_us < SilentUs(path, *first)) continue;
    path.lost_number = path.send_number;
    BeginBurst(path, std::min(silences_ > 1 ? path.burst / 2 : path.burst, kMaxFirstBurst), now_us);
  }
}

void SlotWindow::BeginBurst(Path& path, uint32_t chunks, int64_t now_us) {
  path.burst = std::max(std::min(chunks, congestion_.chunks() / sharding_.shard_count()), kMinBurst);
  path.burst_us = now_us;
  path.burst_left = path.burst;
}

uint64_t SlotWindow::Resend(uint64_t position, int64_t now_us) {
  Chunk& chunk = At(position);
  Path& path = PathOf(position);
  chunk.resent = true;
  chunk.sent_us = now_us;
  chunk.send_number = ++path.send_number;
  path.sent.push_back({position, chunk.send_number});
  return position;
}

int64_t SlotWindow::next_timer_us() const {
  const auto is_due = [this](const Path& path) {
    return FirstOvertaken(path).has_value() || (path.burst_left > 0 && FirstLost(path).has_value());
  };
  if (std::any_of(paths_.begin(), paths_.end(), is_due)) return 0;
  const int64_t due_us = NextTimeout().due_us;
  return due_us == INT64_MAX ? due_us : std::max(due_us, probe_us_);
}

const SlotWindow::Chunk* SlotWindow::FirstWaiting(const Path& path) const {
  const auto first = std::find_if(path.sent.begin(), path.sent.end(), [&](const Sent& sent) { return Waits(sent); });
  return first == path.sent.end() ? nullptr : &At(first->position);
}

// A path that goes on giving results is not timed out: what is lost on it shows by overtaking, and a queue or a host
// that was held up for a while would make everything in flight time out at once.
SlotWindow::Timeout SlotWindow::NextTimeout() const {
  Timeout next;
  for (const Path& path : paths_) {
    const Chunk* first = FirstWaiting(path);
    if (first == nullptr) continue;
    const int64_t soon_us = path.progress_us + GapUs(path);
    const int64_t wait_us = Recovers(path, *first) ? soon_us
                            : IsAsked(path)        ? SilentUs(path, *first)
                                                   : AskUs(path, *first);
    const int64_t due_us = std::min(wait_us, std::max(first->sent_us, path.revived_us) + RoundTrip::kMaxRtoUs);
    if (due_us < next.due_us) next = {due_us, first->position};
  }
  return next;
}

std::optional<uint64_t> SlotWindow::FirstLost(const Path& path) const {
  const Chunk* first = FirstWaiting(path);
  return first == nullptr || first->send_number > path.lost_number ? std::nullopt : std::optional(first->position);
}

std::optional<uint64_t> SlotWindow::LowestLost(const Path& path) const {
  std::optional<uint64_t> lowest;
  for (const Sent& sent : path.sent) {
    if (sent.send_number > path.lost_number) break;
    if (Waits(sent) && (!lowest || sent.position < *lowest)) lowest = sent.position;
  }
  return lowest;
}

std::optional<uint64_t> SlotWindow::FirstOvertaken(const Path& path) const {
  // Where lanes are left out, packets of both kinds overtake each other on the way up, and on the way down once more.
  // A path has one position in `shard_count`.
  const uint64_t reorder = std::clamp(congestion_.chunks(), kMinReorderChunks, wire::kReorderedChunks);
  for (const Sent& sent : path.sent) {
    if (sent.send_number >= path.answered_number) break;
    const Chunk& chunk = At(sent.position);
    const uint64_t late = chunk.leaves_out ? 2 * wire::kReorderedChunks : reorder;
    if (!Waits(sent) || path.answered_position <= sent.position + late * sharding_.shard_count()) continue;
    // All ranks send it again, each a little sooner or later: the other ones' packets may be the ones that count.
    if (chunk.resent && sent.send_number + late >= path.answered_number) continue;
    return sent.position;
  }
  return std::nullopt;
}

bool SlotWindow::Waits(const Sent& sent) const {
  const Chunk& chunk = At(sent.position);
  return chunk.position == sent.position && chunk.send_number == sent.send_number && chunk.state == State::kInFlight;
}

}  // namespace passing
