// A slot version holds the sum of a chunk, and knows who is in it. This header is for slot_pool.cc alone.
#ifndef XLA_FFI_SWITCH_HELD_CHUNK_H_
#define XLA_FFI_SWITCH_HELD_CHUNK_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "switch/slot_lanes.h"
#include "switch/slot_pool.h"
#include "wire/header.h"
#include "wire/packet_key.h"

namespace passing {

// The lanes start on a 64-byte boundary, right behind this, and the header stands right before them: once all workers
// have been added, the lanes are swapped in place and header + lanes, and a tag, are the packet to send, the same bytes
// for everyone who asks.
struct alignas(64) SlotPool::Version {
  uint64_t no_result = 0;  // the workers that need no lanes of the result
  uint64_t bitmap = 0;
  uint32_t sequence = 0;
  uint32_t added_us = 0;  // when the latest contribution came: wraps after 71 minutes, as differences do
  uint16_t element_count = 0;
  wire::LaneFormat lane_format = wire::LaneFormat::kSumInt32;
  uint8_t flags = 0;
  bool empty = true;
  bool complete = false;
  bool tagged = false;
  bool bare = false;  // nobody has added lanes: there are none
  bool forwarded_again = false;
  uint8_t padding[64 - 33 - wire::kHeaderBytes];
  uint8_t header[wire::kHeaderBytes];

  // In host order until all workers have been added, then in network order.
  uint32_t* lanes() { return reinterpret_cast<uint32_t*>(this + 1); }
  bool Holds(const wire::Header& of) const {
    return !empty && sequence == of.sequence && element_count == of.element_count && lane_format == of.lane_format;
  }
  // Once all workers have been added.
  std::span<const uint8_t> Packet() const {
    return {header, wire::kHeaderBytes + (bare ? 0 : size_t{4} * element_count) + (tagged ? wire::kTagBytes : 0)};
  }
  void MakePacket(wire::Header as, const wire::PacketKey* key, uint64_t position) {
    as.tagged = tagged = key != nullptr;
    if (bare) as.flags |= wire::kFlagBare;
    wire::Encode(as, header);
    if (key != nullptr) key->Seal(header, as.lanes_carried(), position);
  }
  // The first lanes that are added to this sequence, from a packet.
  void Take(const wire::Header& of, const uint8_t* packet_lanes) {
    bare = of.bare();
    if (!bare) WriteLanes(packet_lanes, element_count, lanes());
  }
  void Add(const wire::Header& of, const uint8_t* packet_lanes) {
    if (of.bare()) return;
    if (bare) {
      Take(of, packet_lanes);
    } else if (lane_format == wire::LaneFormat::kSumInt32) {
      AddLanes(packet_lanes, element_count, lanes());
    } else {
      MaxLanes(packet_lanes, element_count, lanes());
    }
  }
};

}  // namespace passing

#endif  // XLA_FFI_SWITCH_HELD_CHUNK_H_
