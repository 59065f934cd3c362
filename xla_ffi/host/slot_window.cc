#include "host/slot_window.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace passing {
namespace {

// A chunk is lost if one this far behind it on its path, sent later, has its result: more than the 44 chunks of one
// super-packet. Fixed: a second result doesn't show that it was a mistake (as RFC 8985 takes it), as another rank's
// contribution may have been the lost one.
constexpr uint32_t kReorderChunks = 64;

// A straggler makes every chunk time out, though nothing is lost. Resend this many, then a few at each probe, ever
// more seldom, until a result shows that all ranks are there.
constexpr uint32_t kTimeoutBudget = 64;
constexpr uint32_t kProbeBudget = 8;
constexpr int64_t kMaxProbeIntervalUs = 200'000;

}  // namespace

SlotWindow::SlotWindow(const Sharding& sharding)
    : sharding_(sharding),
      chunks_(std::bit_ceil(sharding.window())),
      paths_(sharding.shard_count()),
      congestion_(sharding.window()),
      timeout_budget_(kTimeoutBudget) {}

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
}

void SlotWindow::OnResult(uint64_t position, int64_t now_us, bool in_order) {
  Chunk& chunk = At(position);
  assert(chunk.position == position && chunk.state == State::kInFlight);
  chunk.state = State::kDone;
  Path& path = PathOf(position);
  path.progress_us = now_us;
  if (in_order) {
    path.answered_number = std::max(path.answered_number, chunk.send_number);
    path.answered_position = std::max(path.answered_position, position);
  }
  if (!chunk.resent) round_trip_.Measure(now_us - chunk.sent_us, now_us);
  timeout_budget_ = kTimeoutBudget;
  probe_interval_us_ = 0;
  congestion_.OnResult();
}

bool SlotWindow::Done(uint64_t position) const {
  if (position < low_) return true;
  const Chunk& chunk = At(position);
  return chunk.position == position && chunk.state == State::kDone;
}

void SlotWindow::Skip(uint64_t position) {
  assert(position >= low_ && position < end());
  At(position) = {.position = position, .state = State::kDone};
}

void SlotWindow::Forget(uint64_t position) {
  for (Chunk& chunk : chunks_) {
    if (chunk.position < position || chunk.state == State::kUnsent) continue;
    assert(chunk.state == State::kInFlight);  // rank 0 took no part in it, so it has no result
    chunk.state = State::kUnsent;
  }
}

std::optional<uint64_t> SlotWindow::NextResend(int64_t now_us) {
  for (Path& path : paths_) {
    while (!path.sent.empty() && !Waits(path.sent.front())) path.sent.pop_front();
    const auto overtaken = FirstOvertaken(path);
    if (!overtaken) continue;
    return Resend(*overtaken, now_us);
  }
  const Timeout timeout = NextTimeout();
  if (now_us < timeout.due_us) return std::nullopt;
  if (timeout_budget_ == 0) {
    if (now_us < probe_us_) return std::nullopt;
    timeout_budget_ = kProbeBudget;
  }
  if (--timeout_budget_ == 0) {
    probe_interval_us_ = std::clamp(2 * probe_interval_us_, rto_us(), kMaxProbeIntervalUs);
    probe_us_ = now_us + probe_interval_us_;
  }
  return Resend(timeout.position, now_us);
}

uint64_t SlotWindow::Resend(uint64_t position, int64_t now_us) {
  Chunk& chunk = At(position);
  Path& path = PathOf(position);
  if (path.answered_number > chunk.send_number) congestion_.OnLoss(now_us, round_trip_us());
  chunk.resent = true;
  chunk.sent_us = now_us;
  chunk.send_number = ++path.send_number;
  path.sent.push_back({position, chunk.send_number});
  return position;
}

int64_t SlotWindow::next_timer_us() const {
  const auto overtaken = [this](const Path& path) { return FirstOvertaken(path).has_value(); };
  if (std::any_of(paths_.begin(), paths_.end(), overtaken)) return 0;
  const int64_t due_us = NextTimeout().due_us;
  return timeout_budget_ == 0 ? std::max(due_us, probe_us_) : due_us;
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
    const int64_t silent_us = std::max(first->sent_us, path.progress_us) + rto_us();
    const int64_t due_us = std::min(silent_us, first->sent_us + RoundTrip::kMaxRtoUs);
    if (due_us < next.due_us) next = {due_us, first->position};
  }
  return next;
}

std::optional<uint64_t> SlotWindow::FirstOvertaken(const Path& path) const {
  const uint64_t reorder = uint64_t{kReorderChunks} * sharding_.shard_count();  // a path has one position in so many
  for (const Sent& sent : path.sent) {
    if (sent.send_number >= path.answered_number) break;
    if (Waits(sent) && path.answered_position > sent.position + reorder) return sent.position;
  }
  return std::nullopt;
}

bool SlotWindow::Waits(const Sent& sent) const {
  const Chunk& chunk = At(sent.position);
  return chunk.position == sent.position && chunk.send_number == sent.send_number && chunk.state == State::kInFlight;
}

}  // namespace passing
