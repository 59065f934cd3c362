#include "host/stall_watch.h"

#include <algorithm>
#include <utility>

namespace passing {
namespace {

constexpr int64_t kRepeatUs = 1'000'000;
constexpr int64_t kLateUs = 1'000'000;

// A sum that is passed by all others for this many deadlines is lost, whatever progress those make.
constexpr int64_t kDeadlinesWhilePassed = 10;

}  // namespace

bool StallWatch::IsDue(uint64_t results, bool idle, int64_t now_us) {
  if (std::exchange(results_, results) != results) progress_us_ = now_us;
  if (idle) {
    next_us_ = INT64_MAX;
    return false;
  }
  if (next_us_ == INT64_MAX) next_us_ = now_us + warn_us_;
  if (now_us > next_us_ + kLateUs) {
    resumed_us_ = now_us;
    next_us_ = now_us + warn_us_;
  }
  return now_us >= next_us_;
}

StallWatch::Verdict StallWatch::Judge(int64_t started_us, int64_t now_us) {
  started_us = std::max(started_us, resumed_us_);
  const int64_t since_us = std::max(started_us, progress_us_);
  const int64_t stalled_us = now_us - since_us;
  const int64_t pending_us = now_us - started_us;
  const bool passed = pending_us >= kDeadlinesWhilePassed * deadline_us_;
  if (passed || stalled_us >= deadline_us_) {
    next_us_ = INT64_MAX;
    return {.state = Verdict::kLost, .stalled_us = passed ? pending_us : stalled_us};
  }
  if (stalled_us < warn_us_) {
    next_us_ = since_us + warn_us_;
    return {};
  }
  next_us_ = std::min(now_us + kRepeatUs, since_us + deadline_us_);
  const bool is_new = std::exchange(reported_since_us_, since_us) != since_us;
  return {.state = Verdict::kStalled, .stalled_us = stalled_us, .is_new = is_new};
}

}  // namespace passing
