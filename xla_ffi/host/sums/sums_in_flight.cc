#include "host/sums/sums_in_flight.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>

namespace passing {

SumPass& SumsInFlight::Add(std::unique_ptr<SumPass> sum) {
  SumPass& added = *sum;
  added.OnIssued({.number = next_number_++, .placed_before = placed_});
  sums_.push_back(std::move(sum));
  const bool is_new = named_.emplace(NameOf(added), std::prev(sums_.end())).second;
  assert(is_new);
  static_cast<void>(is_new);  // should assertions ever be off
  if (added.IsNextReady()) QueueOf(added).insert(EntryOf(added));
  return added;
}

std::unique_ptr<SumPass> SumsInFlight::Take(SumPass& sum) {
  const auto found = named_.find(NameOf(sum));
  assert(found != named_.end() && found->second->get() == &sum);
  std::unique_ptr<SumPass> taken = std::move(*found->second);
  sums_.erase(found->second);
  named_.erase(found);
  QueueOf(sum).erase(EntryOf(sum));
  return taken;
}

std::unique_ptr<SumPass> SumsInFlight::TakeFirst() { return sums_.empty() ? nullptr : Take(*sums_.front()); }

SumPass* SumsInFlight::Find(const SegmentId& id) const {
  SegmentId name = id;
  name.segment = 0;
  const auto found = named_.find(name);
  return found == named_.end() ? nullptr : found->second->get();
}

SumPass* SumsInFlight::ShortestToPlace() const {
  const ToPlace* shortest = nullptr;
  for (const std::set<ToPlace>& queue : to_place_) {
    if (!queue.empty() && (shortest == nullptr || *queue.begin() < *shortest)) shortest = &*queue.begin();
  }
  return shortest == nullptr ? nullptr : std::get<SumPass*>(*shortest);
}

SumPass* SumsInFlight::ShortestOpposite(const SumPass& sum, uint32_t segments_left) const {
  for (size_t way = 0; way < to_place_.size(); ++way) {
    if (!AreOpposite(sum.way(), static_cast<Way>(way))) continue;
    const auto found = to_place_[way].lower_bound({segments_left, 0, nullptr});
    if (found != to_place_[way].end()) return std::get<SumPass*>(*found);
  }
  return nullptr;
}

// A scan: asked when something has stalled.
const SumPass* SumsInFlight::Oldest() const {
  const auto oldest = std::min_element(sums_.begin(), sums_.end(),
                                       [](const auto& a, const auto& b) { return a->started_us() < b->started_us(); });
  return oldest == sums_.end() ? nullptr : oldest->get();
}

void SumsInFlight::Hold(SumPass& sum) {
  QueueOf(sum).erase(EntryOf(sum));
  sum.is_held_ = true;
}

void SumsInFlight::Release(SumPass& sum) {
  sum.is_held_ = false;
  sum.turn_.placed_before = placed_;
  if (sum.IsNextReady()) QueueOf(sum).insert(EntryOf(sum));
}

void SumsInFlight::OnReady(SumPass& sum, uint64_t elements) {
  sum.OnReady(elements);
  if (sum.IsNextReady()) QueueOf(sum).insert(EntryOf(sum));
}

void SumsInFlight::CountPlaced(SumPass& sum) {
  const ToPlace before = EntryOf(sum);
  sum.OnSegmentPlaced();
  ++placed_;
  Reorder(before, sum);
}

void SumsInFlight::CountVoid(SumPass& sum) {
  const ToPlace before = EntryOf(sum);
  sum.OnSegmentVoid();
  Reorder(before, sum);
}

void SumsInFlight::Reorder(const ToPlace& before, SumPass& sum) {
  std::set<ToPlace>& queue = QueueOf(sum);
  auto entry = queue.extract(before);  // empty if it wasn't there
  if (!sum.IsNextReady()) return;
  if (entry.empty()) {
    queue.insert(EntryOf(sum));
  } else {
    entry.value() = EntryOf(sum);
    queue.insert(std::move(entry));
  }
}

}  // namespace passing
