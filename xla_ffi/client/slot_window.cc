#include "client/slot_window.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdlib>

namespace passing {
namespace {

constexpr int64_t kFirstRtoUs = 10'000;  // before any round trip was measured
constexpr int64_t kMinRtoUs = 2'000;     // below it, the scheduling of a busy host looks like loss
constexpr int64_t kMaxRtoUs = 50'000;    // a round trip includes the wait for stragglers: don't learn from those

// A chunk is lost if results of chunks sent this much later are here. Less than two segments is no sign of loss:
// exponents travel ahead of the data, and each host sends them as soon as its own window allows.
constexpr uint64_t kReorderChunks = 128;

// A straggler makes every chunk time out, though nothing is lost. Resend this many, then a few at each probe, ever
// more seldom, until a result shows that all ranks are there.
constexpr uint32_t kTimeoutBudget = 64;
constexpr uint32_t kProbeBudget = 8;
constexpr int64_t kMaxProbeIntervalUs = 200'000;

// Additive increase by 8 chunks a round trip, decrease by 15 %: w = 8 / 0.15 = 53 chunks (76 KiB, ten times the
// bandwidth-delay product of 1 Gbit/s x 60 us) survive a loss in every round trip.
constexpr double kIncreaseChunks = 8;
constexpr double kDecrease = 0.85;
constexpr double kMinWindowChunks = 16;

}  // namespace

SlotWindow::SlotWindow(const Stripes& stripes)
    : stripes_(stripes),
      chunks_(std::bit_ceil(stripes.window())),
      paths_(stripes.shard_count()),
      congestion_window_(stripes.window()),
      timeout_budget_(kTimeoutBudget),
      rto_us_(kFirstRtoUs) {}

void SlotWindow::Advance(uint64_t low) {
  assert(low >= low_);
  low_ = low;
}

void SlotWindow::OnSent(uint64_t position, int64_t now_us) {
  assert(position >= low_ && position < end());
  Chunk& chunk = At(position);
  assert(chunk.position != position || chunk.state != State::kInFlight);
  Path& path = PathOf(position);
  chunk = {.position = position, .state = State::kInFlight, .sent_us = now_us, .send_number = ++path.send_number};
  path.sent.push_back({position, chunk.send_number});
  ++in_flight_;
}

std::optional<uint64_t> SlotWindow::InFlight(uint32_t sequence) const {
  const uint32_t ahead = sequence - static_cast<uint32_t>(low_);
  if (ahead >= stripes_.window()) return std::nullopt;
  const Chunk& chunk = At(low_ + ahead);
  if (chunk.position != low_ + ahead || chunk.state != State::kInFlight) return std::nullopt;
  return chunk.position;
}

void SlotWindow::OnResult(uint64_t position, int64_t now_us) {
  Chunk& chunk = At(position);
  assert(chunk.position == position && chunk.state == State::kInFlight);
  chunk.state = State::kDone;
  --in_flight_;
  Path& path = PathOf(position);
  path.answered_number = std::max(path.answered_number, chunk.send_number);
  if (!chunk.resent) MeasureRoundTrip(now_us - chunk.sent_us);
  timeout_budget_ = kTimeoutBudget;
  probe_interval_us_ = 0;
  congestion_window_ = std::min<double>(stripes_.window(), congestion_window_ + kIncreaseChunks / congestion_window_);
}

bool SlotWindow::Done(uint64_t position) const {
  if (position < low_) return true;
  const Chunk& chunk = At(position);
  return chunk.position == position && chunk.state == State::kDone;
}

void SlotWindow::Skip(uint64_t position) {
  assert(position >= low_ && position < end());
  Chunk& chunk = At(position);
  if (chunk.position == position && chunk.state == State::kInFlight) --in_flight_;
  chunk = {.position = position, .state = State::kDone};
}

void SlotWindow::Forget(uint64_t position) {
  for (Chunk& chunk : chunks_) {
    if (chunk.position < position || chunk.state == State::kUnsent) continue;
    assert(chunk.state == State::kInFlight);  // rank 0 took no part in it, so it has no result
    chunk.state = State::kUnsent;
    --in_flight_;
  }
}

std::optional<uint64_t> SlotWindow::NextResend(int64_t now_us) {
  Path* path = nullptr;  // of an overtaken chunk, else of the one that was sent first
  int64_t sent_us = INT64_MAX;
  for (Path& candidate : paths_) {
    DropStale(candidate);
    const Chunk* oldest = OldestOf(candidate);
    if (oldest == nullptr) continue;
    const int64_t candidate_us = Overtaken(candidate, *oldest) ? INT64_MIN : oldest->sent_us;
    if (candidate_us >= sent_us) continue;
    path = &candidate;
    sent_us = candidate_us;
  }
  if (path == nullptr) return std::nullopt;
  Chunk& chunk = At(path->sent.front().position);
  if (!Overtaken(*path, chunk)) {
    if (now_us < chunk.sent_us + rto_us_) return std::nullopt;
    if (timeout_budget_ == 0) {
      if (now_us < probe_us_) return std::nullopt;
      timeout_budget_ = kProbeBudget;
    }
    if (--timeout_budget_ == 0) {
      probe_interval_us_ = std::clamp(2 * probe_interval_us_, rto_us_, kMaxProbeIntervalUs);
      probe_us_ = now_us + probe_interval_us_;
    }
  }
  if (path->answered_number > chunk.send_number) OnLoss(now_us);
  chunk.resent = true;
  chunk.sent_us = now_us;
  chunk.send_number = ++path->send_number;
  path->sent.pop_front();
  path->sent.push_back({chunk.position, chunk.send_number});
  return chunk.position;
}

int64_t SlotWindow::next_timer_us() const {
  int64_t sent_us = INT64_MAX;
  for (const Path& path : paths_) {
    const Chunk* oldest = OldestOf(path);
    if (oldest == nullptr) continue;
    if (Overtaken(path, *oldest)) return 0;
    sent_us = std::min(sent_us, oldest->sent_us);
  }
  if (sent_us == INT64_MAX) return INT64_MAX;
  const int64_t due_us = sent_us + rto_us_;
  return timeout_budget_ == 0 ? std::max(due_us, probe_us_) : due_us;
}

bool SlotWindow::Overtaken(const Path& path, const Chunk& chunk) {
  return path.answered_number > chunk.send_number + kReorderChunks;
}

const SlotWindow::Chunk* SlotWindow::OldestOf(const Path& path) const {
  const auto oldest = std::find_if(path.sent.begin(), path.sent.end(), [&](const Sent& sent) { return Waits(sent); });
  return oldest == path.sent.end() ? nullptr : &At(oldest->position);
}

bool SlotWindow::Waits(const Sent& sent) const {
  const Chunk& chunk = At(sent.position);
  return chunk.position == sent.position && chunk.send_number == sent.send_number && chunk.state == State::kInFlight;
}

void SlotWindow::DropStale(Path& path) {
  while (!path.sent.empty() && !Waits(path.sent.front())) path.sent.pop_front();
}

// RFC 6298, with bounds of our own.
void SlotWindow::MeasureRoundTrip(int64_t sample_us) {
  sample_us = std::min(sample_us, kMaxRtoUs);
  if (round_trip_us_ == 0) {
    round_trip_us_ = sample_us;
    variation_us_ = sample_us / 2;
  } else {
    variation_us_ += (std::abs(sample_us - round_trip_us_) - variation_us_) / 4;
    round_trip_us_ += (sample_us - round_trip_us_) / 8;
  }
  rto_us_ = std::clamp(round_trip_us_ + 4 * variation_us_, kMinRtoUs, kMaxRtoUs);
}

void SlotWindow::OnLoss(int64_t now_us) {
  if (now_us < next_decrease_us_) return;  // once for all losses of one round trip
  next_decrease_us_ = now_us + round_trip_us_;
  congestion_window_ = std::max(std::min<double>(kMinWindowChunks, stripes_.window()), congestion_window_ * kDecrease);
}

}  // namespace passing
