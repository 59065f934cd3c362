#include "host/packets/lane_masks.h"

#include <algorithm>
#include <cstddef>

namespace passing {
namespace {

// A packet's lanes are masked so many at a time, with 256 counters for each of these parts.
constexpr uint32_t kPartLanes = Aes::kMaxBlocks * Aes::kLanesOfBlock;
constexpr uint64_t kPartCounters = 256;

// The counters of a rank's P begin there.
constexpr uint64_t FirstOf(uint32_t rank) { return uint64_t{rank} << 32; }

// P of the one rank is added, that of the other one subtracted.
constexpr Aes::Counters CountersOf(uint64_t position, uint32_t added, uint32_t subtracted) {
  return {.high = position, .added = FirstOf(added), .subtracted = FirstOf(subtracted)};
}

// Calls f(counters, number of lanes, bytes before them) for each part.
template <typename F>
void ForEachPart(Aes::Counters counters, uint32_t lanes, F&& f) {
  for (uint32_t first = 0; first < lanes; first += kPartLanes) {
    f(counters, std::min(kPartLanes, lanes - first), size_t{4} * first);
    counters.added += kPartCounters;
    counters.subtracted += kPartCounters;
  }
}

}  // namespace

void LaneMasks::Mask(uint64_t position, uint32_t count, uint8_t* lanes) const {
  ForEachPart(CountersOf(position, rank_, rank_ + 1), count, [&](const auto& counters, uint32_t some, size_t at) {
    is_last_ ? aes_.Add(counters, some, lanes + at, lanes + at)
             : aes_.AddAndSubtract(counters, some, lanes + at, lanes + at);
  });
}

void LaneMasks::Unmask(uint64_t position, uint32_t count, const uint8_t* masked, uint8_t* lanes) const {
  ForEachPart(CountersOf(position, rank_, 0), count, [&](const auto& counters, uint32_t some, size_t at) {
    aes_.Subtract(counters, some, masked + at, lanes + at);
  });
}

}  // namespace passing
