#include "host/order/leader.h"

#include <optional>

namespace passing {
namespace {

// Rank 0 waits this long for the sum that the job's history predicts while another one is ready. Deviating costs a
// message to every host.
constexpr int64_t kDeviateGraceUs = 500;

// At most so often in a row. Else a program that sums small arrays one after the other would hold up the large sum of
// another program for as long as it goes on.
constexpr uint32_t kWaits = 4;

// For each segment that a sum has left, this many segments of other sums may overtake it, and none if it has but one in
// all. Beyond that, rank 0 deviates from the job's history, unless the overtaking sum is nearly done. At 1 Gbit/s a
// segment takes 0.8 ms, about what deviating costs; sums of many segments would do so again and again.
constexpr uint64_t kPatienceSegments = 4;

// The sum that has the predicted segment, if that segment is the sum's next one and ready; else null.
SumPass* Expected(const SegmentId& predicted, const SumsInFlight& sums) {
  SumPass* sum = sums.Find(predicted);
  const bool next = sum != nullptr && sum->IsNextReady() && sum->next_segment() == predicted.segment;
  return next ? sum : nullptr;
}

// Has `shortest` waited long enough behind `expected` and others? Not if the two take turns.
bool IsImpatient(const SumPass& shortest, const SumPass& expected, const Order& order, const SumsInFlight& sums) {
  if (order.in_turns() && sums.Find(order.last().id) == &shortest) return false;
  const uint64_t patience = kPatienceSegments * shortest.segments_left();
  const bool is_small = shortest.plan().segment_count() == 1;
  return (is_small || sums.PlacedSince(shortest) >= patience) && expected.segments_left() >= patience;
}

// Returns a sum that takes turns with `expected`, which goes on: one that loads the other direction of the links.
SumPass* Partner(const SumPass& expected, const Order& order, const SumsInFlight& sums) {
  if (order.in_turns() || sums.Find(order.last().id) != &expected) return nullptr;
  if (expected.segments_left() < kPatienceSegments) return nullptr;
  return sums.ShortestOpposite(expected, kPatienceSegments);
}

}  // namespace

SumPass* Leader::Next(const Order& order, const SumsInFlight& sums, int64_t now_us) {
  SumPass* next = Choose(order, sums, now_us);
  if (next != nullptr) {
    waits_ = deviate_us_ == INT64_MAX ? 0 : waits_ + 1;
    StopWaiting();
  }
  return next;
}

SumPass* Leader::Choose(const Order& order, const SumsInFlight& sums, int64_t now_us) {
  SumPass* shortest = sums.ShortestToPlace();
  if (shortest == nullptr) return nullptr;
  const std::optional<LogEntry> predicted = order.Predict();
  if (!predicted) return shortest;
  SumPass* expected = Expected(predicted->id, sums);
  if (expected != nullptr) {
    if (IsImpatient(*shortest, *expected, order, sums)) return shortest;
    SumPass* const partner = Partner(*expected, order, sums);
    return partner != nullptr ? partner : expected;
  }
  // No history predicts a second pass, so it doesn't wait for what history predicts.
  if (shortest->pass() != 0) return shortest;
  if (deviate_us_ == INT64_MAX) deviate_us_ = now_us + kDeviateGraceUs;
  return now_us < deviate_us_ && waits_ < kWaits ? nullptr : shortest;
}

bool Leader::TakesTurns(const Order& order, const SumsInFlight& sums, const SumPass& next) {
  const SumPass* const last = order.in_turns() ? nullptr : sums.Find(order.last().id);
  return last != nullptr && last->segments_left() > 0 && next.pass() == 0 && AreOpposite(last->way(), next.way());
}

}  // namespace passing
