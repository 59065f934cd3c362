#include "host/packets/lane_masks.h"

#include <cassert>

#include "wire/header.h"
#include "wire/lanes.h"

namespace passing {
namespace {

constexpr uint32_t kLanesPerStride = Aes::kStride * Aes::kBlockBytes / 4;
constexpr uint32_t kStridesMax = (wire::kMaxLanes + kLanesPerStride - 1) / kLanesPerStride;

PASSING_CLONES void Add(const uint8_t* __restrict mask, uint32_t count, uint8_t* __restrict lanes) {
  for (uint32_t i = 0; i < count; ++i) wire::StoreLane(lanes, i, wire::LoadLane(lanes, i) + wire::LoadLane(mask, i));
}

PASSING_CLONES void AddDifference(const uint8_t* __restrict mask, const uint8_t* __restrict next, uint32_t count,
                                  uint8_t* __restrict lanes) {
  for (uint32_t i = 0; i < count; ++i) {
    wire::StoreLane(lanes, i, wire::LoadLane(lanes, i) + wire::LoadLane(mask, i) - wire::LoadLane(next, i));
  }
}

PASSING_CLONES void Subtract(const uint8_t* __restrict masked, const uint8_t* __restrict mask, uint32_t count,
                             uint8_t* __restrict lanes) {
  for (uint32_t i = 0; i < count; ++i) wire::StoreLane(lanes, i, wire::LoadLane(masked, i) - wire::LoadLane(mask, i));
}

}  // namespace

struct LaneMasks::Stream {
  alignas(32) uint8_t lanes[4 * kLanesPerStride * kStridesMax];  // not set: Draw does
};

void LaneMasks::Draw(uint64_t position, uint32_t rank, uint32_t count, Stream& stream) const {
  assert(count <= wire::kMaxLanes);
  const uint32_t strides = (count + kLanesPerStride - 1) / kLanesPerStride;
  aes_.Encrypt(position, uint64_t{rank} << 32, strides * Aes::kStride, stream.lanes);
}

void LaneMasks::Mask(uint64_t position, uint32_t count, uint8_t* lanes) const {
  Stream own;
  Draw(position, rank_, count, own);
  if (is_last_) return Add(own.lanes, count, lanes);
  Stream next;
  Draw(position, rank_ + 1, count, next);
  AddDifference(own.lanes, next.lanes, count, lanes);
}

void LaneMasks::Unmask(uint64_t position, uint32_t count, const uint8_t* masked, uint8_t* lanes) const {
  Stream first;
  Draw(position, 0, count, first);
  Subtract(masked, first.lanes, count, lanes);
}

}  // namespace passing
