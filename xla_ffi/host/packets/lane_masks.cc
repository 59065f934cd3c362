#include "host/packets/lane_masks.h"

#include "wire/header.h"

namespace passing {
namespace {

static_assert(wire::kMaxLanes <= Aes::kMaxBlocks * Aes::kLanesOfBlock);

// The counters of a rank's P begin there.
constexpr uint64_t FirstOf(uint32_t rank) { return uint64_t{rank} << 32; }

// P of the one rank is added, that of the other one subtracted.
constexpr Aes::Counters CountersOf(uint64_t position, uint32_t added, uint32_t subtracted) {
  return {.high = position, .added = FirstOf(added), .subtracted = FirstOf(subtracted)};
}

}  // namespace

void LaneMasks::Mask(uint64_t position, uint32_t count, uint8_t* lanes) const {
  const Aes::Counters counters = CountersOf(position, rank_, rank_ + 1);
  is_last_ ? aes_.Add(counters, count, lanes, lanes) : aes_.AddAndSubtract(counters, count, lanes, lanes);
}

void LaneMasks::Unmask(uint64_t position, uint32_t count, const uint8_t* masked, uint8_t* lanes) const {
  aes_.Subtract(CountersOf(position, rank_, 0), count, masked, lanes);
}

}  // namespace passing
