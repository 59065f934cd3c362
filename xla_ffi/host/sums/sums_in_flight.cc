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
  if (added.IsNextReady()) to_place_.insert(EntryOf(added));
  return added;
}

std::unique_ptr<SumPass> SumsInFlight::Take(SumPass& sum) {
  const auto found = named_.find(NameOf(sum));
  assert(found != named_.end() && found->second->get() == &sum);
  std::unique_ptr<SumPass> taken = std::move(*found->second);
  sums_.erase(found->second);
  named_.erase(found);
  to_place_.erase(EntryOf(sum));
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
  return to_place_.empty() ? nullptr : std::get<SumPass*>(*to_place_.begin());
}

// A scan: asked when something has stalled.
const SumPass* SumsInFlight::Oldest() const {
  const auto oldest = std::min_element(sums_.begin(), sums_.end(),
                                       [](const auto& a, const auto& b) { return a->started_us() < b->started_us(); });
  return oldest == sums_.end() ? nullptr : oldest->get();
}

void SumsInFlight::OnReady(SumPass& sum, uint64_t elements) {
  sum.OnReady(elements);
  if (sum.IsNextReady()) to_place_.insert(EntryOf(sum));
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
  auto entry = to_place_.extract(before);  // empty if it wasn't there
  if (!sum.IsNextReady()) return;
  if (entry.empty()) {
    to_place_.insert(EntryOf(sum));
  } else {
    entry.value() = EntryOf(sum);
    to_place_.insert(std::move(entry));
  }
}

}  // namespace passing
