#include "host/packets/lane_masks.h"

#include <cassert>

#include "wire/header.h"

namespace passing {
namespace {

static_assert(wire::kMaxLanes % (Aes::kStride * Aes::kLanesOfBlock) == 0);  // whole strides fit into its room

// The counters of a rank's P begin there.
constexpr uint64_t FirstOf(uint32_t rank) { return uint64_t{rank} << 32; }

}  // namespace

void LaneMasks::Mask(uint64_t position, uint32_t count, uint8_t* lanes) const {
  assert(count <= wire::kMaxLanes);
  aes_.Add(position, FirstOf(rank_), count, lanes, lanes);
  if (!is_last_) aes_.Subtract(position, FirstOf(rank_ + 1), count, lanes, lanes);
}

void LaneMasks::Unmask(uint64_t position, uint32_t count, const uint8_t* masked, uint8_t* lanes) const {
  assert(count <= wire::kMaxLanes);
  aes_.Subtract(position, FirstOf(0), count, masked, lanes);
}

}  // namespace passing
