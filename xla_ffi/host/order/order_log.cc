#include "host/order/order_log.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace passing {

SumPass& OrderLog::Issue(std::unique_ptr<SumPass> sum) {
  SumPass& issued = sums_.Add(std::move(sum));
  // Some of its first segments may have an entry already: rank 0 appends them in order.
  for (uint32_t segment = 0;; ++segment) {
    const auto found = not_issued_.find(issued.IdOf(segment));
    if (found == not_issued_.end()) return issued;
    PlacedSegment& placed = WithIndex(found->second);
    not_issued_.erase(found);
    Connect(placed, issued);
  }
}

void OrderLog::Append(const LogEntry& entry, uint64_t digest) {
  entries_.push_back({.entry = entry, .digest = digest});
  if (SumPass* sum = sums_.Find(entry.id)) {
    Connect(entries_.back(), *sum);
  } else {
    not_issued_.try_emplace(entry.id, entry.index);
  }
}

void OrderLog::Connect(PlacedSegment& placed, SumPass& sum) {
  const SegmentId& id = placed.entry.id;
  // Rank 0 appends a sum's segments once each, in order: any other entry is a wrong guess, or a forged message. The
  // site's hash covers operation, dtype and sizes, so an entry that doesn't fit is a hash collision, or forged as well.
  if (id.segment != sum.next_segment() || sum.segments_left() == 0) return;
  const Segment& segment = sum.plan().segment(id.segment);
  if (segment.chunk_count() != placed.entry.chunk_count) return;
  placed.sum = &sum;
  to_send_.insert(placed.entry.index);
  sums_.CountPlaced(sum);
  Prepare(placed);
}

bool OrderLog::Prepare(PlacedSegment& placed) {
  if (placed.is_prepared) return true;
  const Segment& segment = placed.segment();
  if (!placed.sum->IsReady(segment)) return false;
  placed.exponents = SegmentExponents(segment, placed.sum->Exponents(segment), rank_.rank, rank_.world_size);
  if (segment.guesses()) {
    Guess guess = last_exponents_.Of(placed.entry.id.site, segment.block_count);
    if (placed.sum->IsExactAt(segment, guess.exponents)) placed.exponents.MakeGuess(std::move(guess));
  }
  return placed.is_prepared = true;
}

bool OrderLog::OnReady(const SegmentId& first, uint64_t elements) {
  SumPass* sum = sums_.Find(first);
  if (sum != nullptr) sums_.OnReady(*sum, elements);
  return sum != nullptr;
}

bool OrderLog::WaitsForElements(uint64_t index) const {
  return std::any_of(to_send_.begin(), to_send_.upper_bound(index),
                     [this](uint64_t each) { return !WithIndex(each).is_prepared; });
}

std::optional<uint64_t> OrderLog::DropFrom(uint64_t index) {
  assert(Reaches(index));
  uint64_t first_position = 0;
  for (; Reaches(index); entries_.pop_back()) {
    const PlacedSegment& placed = entries_.back();
    if (placed.chunks_done > 0) return std::nullopt;
    if (placed.sum != nullptr) {
      sums_.CountVoid(*placed.sum);
      to_send_.erase(placed.entry.index);
    } else if (const auto found = not_issued_.find(placed.entry.id);
               found != not_issued_.end() && found->second == placed.entry.index) {
      not_issued_.erase(found);
    }
    first_position = placed.entry.first_position;
  }
  return first_position;
}

std::unique_ptr<SumPass> OrderLog::Finish(PlacedSegment& placed) {
  assert(placed.chunks_done == placed.entry.chunk_count);
  placed.exponents = {};
  to_send_.erase(placed.entry.index);
  SumPass& sum = *std::exchange(placed.sum, nullptr);
  return sum.OnSegmentDone(placed.entry.id.segment) ? sums_.Take(sum) : nullptr;
}

void OrderLog::Clear() {
  entries_.clear();
  not_issued_.clear();
  to_send_.clear();
}

PlacedSegment& OrderLog::At(uint64_t position) {
  auto after =
      std::upper_bound(entries_.begin(), entries_.end(), position,
                       [](uint64_t at, const PlacedSegment& placed) { return at < placed.entry.first_position; });
  assert(after != entries_.begin());
  PlacedSegment& placed = *--after;
  assert(position < placed.entry.end_position());
  return placed;
}

const PlacedSegment* OrderLog::FirstOf(const SumPass& sum) const {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const PlacedSegment& placed) { return placed.sum == &sum; });
  return found == entries_.end() ? nullptr : &*found;
}

}  // namespace passing
