// The packet header, once for all of C++. Its twins: ebpf/packet.h, p4/headers.p4 and p4/types.p4,
// jax_passing/protocol/packet.py, xla_ffi/wire/passing.lua.
//
//  0                   1                   2                   3
//  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
// +---------------+---------------+---------------+---------------+
// |     magic     |    protocol   |  packet type  |     flags     |
// +---------------+---------------+---------------+---------------+
// |              job              |             epoch             |
// +-------------------------------+-------------------------------+
// |            worker             |              slot             |
// +-------------------------------+-------------------------------+
// |                            sequence                           |
// +---------------+---------------+-------------------------------+
// |    version    |  lane format  |         element count         |
// +---------------+---------------+-------------------------------+
// |                  lanes, element count x 32 bit                |
// +---------------------------------------------------------------+
// |       tag, 64 bit, if the highest bit of the type is set      |
//
// Every field is in network order and aligned to its size; a P4 parser needs no loop.
#ifndef XLA_FFI_WIRE_HEADER_H_
#define XLA_FFI_WIRE_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace passing::wire {

inline constexpr uint8_t kMagic = 0x9A;
inline constexpr uint8_t kProtocolVersion = 1;
inline constexpr size_t kHeaderBytes = 20;

inline constexpr size_t kTagBytes = 8;

// Every path carries so many: 1440 + 20 header + 8 tag + 28 IP and UDP = 1496 bytes, inside an MTU of 1500 with 4 bytes
// to spare.
inline constexpr uint32_t kLanesAtMtu1500 = 360;
// A path with an MTU of 9000 carries so many over IPv4: 8928 + 56 bytes.
inline constexpr uint32_t kMaxLanes = 2232;
inline constexpr size_t kMaxPacketBytes = kHeaderBytes + 4 * kMaxLanes + kTagBytes;
inline constexpr size_t kPacketBytesAtMtu1500 = kHeaderBytes + 4 * kLanesAtMtu1500 + kTagBytes;

// So that packets of one length share a send, they may overtake others on the way from one sender to one receiver, but
// none so far ahead of them: a host takes a chunk for lost once one that is further behind has its result.
inline constexpr uint32_t kReorderedChunks = 64;

// A slot is 16 bits.
inline constexpr uint32_t kMaxSlots = 1 << 16;

// Bits of a slot's bitmap. A worker is who contributes to a slot: a host, or a switch one level down.
inline constexpr uint32_t kMaxWorkers = 64;

// A probe finds out whether a multicast group reaches a host (wire/probe.h).
enum class PacketType : uint8_t { kContribution = 1, kResult = 2, kProbe = 3 };
inline constexpr uint8_t kTagged = 0x80;  // beside the type: the packet ends with a tag (wire/packet_key.h)

// The operation by which the switch combines lanes: wrapping 32-bit addition, or the signed maximum.
enum class LaneFormat : uint8_t { kSumInt32 = 1, kMaxInt32 = 2 };

// Sticky: the switch ors them over all workers.
enum Flag : uint8_t { kFlagNaN = 1, kFlagPosInf = 2, kFlagNegInf = 4 };
inline constexpr uint8_t kStickyFlags = kFlagNaN | kFlagPosInf | kFlagNegInf;
// These hold for one packet, of a sum: maxima have all their lanes. Only switches that say so at the join know them.
inline constexpr uint8_t kFlagBare = 8;       // none of the lanes that are counted follow: they add nothing
inline constexpr uint8_t kFlagNoResult = 16;  // the worker needs no lanes of the result; a result's lanes are left out
inline constexpr uint8_t kAllFlags = kStickyFlags | kFlagBare | kFlagNoResult;

struct Header {
  PacketType type = PacketType::kContribution;
  uint8_t flags = 0;
  uint16_t job = 0;
  uint16_t epoch = 0;
  uint16_t worker = 0;  // sender of a contribution; kEveryWorker in a result, resent ones too
  uint16_t slot = 0;
  uint32_t sequence = 0;
  uint8_t version = 0;  // 0 or 1
  LaneFormat lane_format = LaneFormat::kSumInt32;
  uint16_t element_count = 0;
  bool tagged = false;

  bool bare() const { return (flags & kFlagBare) != 0; }
  // The lanes that follow the header.
  uint16_t lanes_carried() const { return bare() ? 0 : element_count; }
  size_t packet_bytes() const { return kHeaderBytes + size_t{4} * lanes_carried() + (tagged ? kTagBytes : 0); }
  friend bool operator==(const Header&, const Header&) = default;
};

inline constexpr uint16_t kEveryWorker = 0xFFFF;

// Why a packet can't be decoded.
enum class DecodeError : uint8_t {
  kNone,
  kTooShort,
  kBadMagic,
  kBadProtocolVersion,
  kBadType,
  kBadFlags,
  kBadVersion,
  kBadLaneFormat,
  kBadElementCount,  // zero, or above kMaxLanes
  kBadLength,        // the packet's length is not what its header says
};

// Writes kHeaderBytes to `out`.
void Encode(const Header& header, uint8_t* out);

// Checks every field that can be checked without knowing the job. `header` is valid if kNone is returned.
DecodeError Decode(std::span<const uint8_t> packet, Header& header);

// Serial number arithmetic (RFC 1982) over 32 bits: is `a` before `b`?
constexpr bool SequenceBefore(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }

// The position of this sequence that is nearest to another one (as the extended sequence numbers of RFC 4303 are
// found).
constexpr uint64_t PositionNear(uint64_t position, uint32_t sequence) {
  return position + static_cast<uint64_t>(int64_t{static_cast<int32_t>(sequence - static_cast<uint32_t>(position))});
}

}  // namespace passing::wire

#endif  // XLA_FFI_WIRE_HEADER_H_
