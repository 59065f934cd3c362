#include "host/rank_core.h"

#include <algorithm>
#include <cassert>
#include <stdexcept>
#include <utility>

#include "host/failures.h"
#include "net/clock.h"

namespace passing {
namespace {

const RankOptions& Checked(const RankOptions& options) {
  if (!IsInRange(options.job)) throw std::invalid_argument(NoJob(options.job));
  return options;
}

}  // namespace

RankCore::RankCore(const RankOptions& options, std::vector<Driver*> drivers, std::vector<bool> hears_group,
                   std::function<void(RankEvent)> on_event)
    : options_(Checked(options)),
      on_event_(std::move(on_event)),
      sums_(options.job, std::move(drivers),
            [this](std::string message) { on_event_(OrderMessage{std::move(message)}); }),
      stall_watch_(ToUs(std::min(options.warn_s, options.deadline_s / 2)), ToUs(options.deadline_s)),
      hears_group_(std::move(hears_group)),
      group_watches_(options.job.shards.size()) {
  assert(hears_group_.size() == group_watches_.size());
}

void RankCore::OnOrderMessage(std::span<const uint8_t> message) {
  if (const std::optional<Failure> failure = sums_.OnOrderMessage(message)) on_event_(*failure);
}

bool RankCore::OnPacket(uint32_t shard, std::span<const uint8_t> packet, bool by_group, int64_t now_us) {
  const bool went_on = !sums_.failure();
  const bool awaited = sums_.OnPacket(shard, packet, now_us);
  results_ += awaited;
  if (by_group) {  // also what isn't awaited: that a result is here, of which this rank needs the lanes
    group_watches_[shard].OnGroupResult();
  } else if (awaited && hears_group_[shard] && group_watches_[shard].OnOwnResult(sums_.last_result())) {
    on_event_(GroupLost{shard});
  }
  if (went_on && sums_.failure()) on_event_(*sums_.failure());
  return awaited;
}

void RankCore::OnTimer(int64_t now_us) {
  if (now_us >= sums_.next_timer_us()) sums_.OnTimer(now_us);
  if (auto found = sums_.TakeNonFinite()) on_event_(*std::move(found));
  CheckStall(now_us);
}

void RankCore::CheckStall(int64_t now_us) {
  if (!stall_watch_.IsDue(results_, sums_.idle(), now_us)) return;
  const std::optional<Stall> stall = sums_.OldestStall();
  assert(stall);  // as there are sums
  const StallWatch::Verdict verdict = stall_watch_.Judge(stall->since_us, now_us);
  if (verdict.state == StallWatch::Verdict::kStalled) {
    if (verdict.is_new) stall_note_.clear();  // it was about another stall
    on_event_(Stalled{*stall, static_cast<double>(verdict.stalled_us) / 1e6});
  } else if (verdict.state == StallWatch::Verdict::kLost) {
    on_event_(DeadlineExceeded(options_.job, *stall, verdict.stalled_us, stall_note_, options_.deadline_s));
  }
}

}  // namespace passing
