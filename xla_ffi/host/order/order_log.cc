#include "host/order/order_log.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace passing {

void OrderLog::Issue(std::unique_ptr<ActiveSum> sum) {
  ActiveSum& issued = sums_.Add(std::move(sum));
  // The segments that have a place already, as rank 0 gives them places in order.
  for (uint32_t segment = 0;; ++segment) {
    const auto found = not_issued_.find(issued.IdOf(segment));
    if (found == not_issued_.end()) return;
    Line& line = WithIndex(found->second);
    not_issued_.erase(found);
    Join(line, issued);
  }
}

void OrderLog::Append(const Place& place) {
  lines_.push_back({.place = place});
  if (ActiveSum* sum = sums_.Find(place.id)) {
    Join(lines_.back(), *sum);
  } else {
    not_issued_.try_emplace(place.id, place.index);
  }
}

// Connects a line with this host's sum.
void OrderLog::Join(Line& line, ActiveSum& sum) {
  const SegmentId& id = line.place.id;
  // Rank 0 places a sum's segments once each, in order: another line is a wrong guess, or a foul message. The site's
  // hash covers operation, dtype and sizes, so a line that doesn't fit is a hash collision, or foul as well.
  if (id.segment != sum.next_segment() || sum.segments_left() == 0) return;
  const Segment& segment = sum.plan().segment(id.segment);
  if (segment.chunk_count() != line.place.chunk_count) return;
  line.sum = &sum;
  under_way_.insert(line.place.index);
  sums_.CountPlaced(sum);
  Prepare(line);
}

bool OrderLog::Prepare(Line& line) {
  if (line.is_prepared) return true;
  const Segment& segment = line.segment();
  if (!line.sum->IsReady(segment)) return false;
  line.exponents = SegmentExponents(segment, line.sum->Exponents(segment), last_exponents_.Of(line.place.id.site));
  return line.is_prepared = true;
}

bool OrderLog::OnReady(const SegmentId& first, uint64_t elements) {
  ActiveSum* sum = sums_.Find(first);
  if (sum != nullptr) sums_.OnReady(*sum, elements);
  return sum != nullptr;
}

bool OrderLog::WaitsForElements(uint64_t index) const {
  return std::any_of(under_way_.begin(), under_way_.upper_bound(index),
                     [this](uint64_t each) { return !WithIndex(each).is_prepared; });
}

std::optional<uint64_t> OrderLog::DropFrom(uint64_t index) {
  assert(Reaches(index));
  uint64_t first_position = 0;
  for (; Reaches(index); lines_.pop_back()) {
    const Line& line = lines_.back();
    if (line.chunks_done > 0) return std::nullopt;
    if (line.sum != nullptr) {
      sums_.CountVoid(*line.sum);
      under_way_.erase(line.place.index);
    } else if (const auto found = not_issued_.find(line.place.id);
               found != not_issued_.end() && found->second == line.place.index) {
      not_issued_.erase(found);
    }
    first_position = line.place.first_position;
  }
  return first_position;
}

std::unique_ptr<ActiveSum> OrderLog::Finish(Line& line) {
  assert(line.chunks_done == line.place.chunk_count);
  line.exponents = {};
  under_way_.erase(line.place.index);
  ActiveSum& sum = *std::exchange(line.sum, nullptr);
  return sum.OnSegmentDone(line.place.id.segment) ? sums_.Take(sum) : nullptr;
}

void OrderLog::Clear() {
  lines_.clear();
  not_issued_.clear();
  under_way_.clear();
}

Line& OrderLog::At(uint64_t position) {
  auto after = std::upper_bound(lines_.begin(), lines_.end(), position,
                                [](uint64_t at, const Line& line) { return at < line.place.first_position; });
  assert(after != lines_.begin());
  Line& line = *--after;
  assert(position < line.place.end_position());
  return line;
}

const Line* OrderLog::FirstOf(const ActiveSum& sum) const {
  const auto found = std::find_if(lines_.begin(), lines_.end(), [&](const Line& line) { return line.sum == &sum; });
  return found == lines_.end() ? nullptr : &*found;
}

}  // namespace passing
