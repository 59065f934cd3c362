// How a slot's lanes are written, added to and read. The loops are compiled in the one source that includes this.
#ifndef XLA_FFI_SWITCH_SLOT_LANES_H_
#define XLA_FFI_SWITCH_SLOT_LANES_H_

#include <cstdint>

#include "wire/lanes.h"

namespace passing {
namespace {

// `packet` has lanes as on the wire; `lanes` are in host order.
PASSING_CLONES void WriteLanes(const uint8_t* __restrict packet, uint32_t count, uint32_t* __restrict lanes) {
  for (uint32_t i = 0; i < count; ++i) lanes[i] = wire::LoadLane(packet, i);
}

// Unsigned, so that wrapping is defined.
PASSING_CLONES void AddLanes(const uint8_t* __restrict packet, uint32_t count, uint32_t* __restrict lanes) {
  for (uint32_t i = 0; i < count; ++i) lanes[i] += wire::LoadLane(packet, i);
}

PASSING_CLONES void MaxLanes(const uint8_t* __restrict packet, uint32_t count, uint32_t* __restrict lanes) {
  for (uint32_t i = 0; i < count; ++i) {
    const auto lane = static_cast<int32_t>(wire::LoadLane(packet, i));
    const auto held = static_cast<int32_t>(lanes[i]);
    lanes[i] = static_cast<uint32_t>(lane > held ? lane : held);
  }
}

PASSING_CLONES void ToNetworkOrder(uint32_t* lanes, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) lanes[i] = wire::NetworkOrder(lanes[i]);
}

}  // namespace
}  // namespace passing

#endif  // XLA_FFI_SWITCH_SLOT_LANES_H_
