#include "wire/header.h"

#include <cassert>

namespace passing::wire {
namespace {

void Store16(uint8_t* at, uint16_t value) {
  at[0] = static_cast<uint8_t>(value >> 8);
  at[1] = static_cast<uint8_t>(value);
}

uint16_t Load16(const uint8_t* at) { return static_cast<uint16_t>(at[0] << 8 | at[1]); }

void Store32(uint8_t* at, uint32_t value) {
  Store16(at, static_cast<uint16_t>(value >> 16));
  Store16(at + 2, static_cast<uint16_t>(value));
}

uint32_t Load32(const uint8_t* at) { return uint32_t{Load16(at)} << 16 | Load16(at + 2); }

}  // namespace

void Encode(const Header& header, uint8_t* out) {
  assert(header.version <= 1);
  assert((header.flags & ~kAllFlags) == 0);
  assert(header.element_count > 0 && header.element_count <= kMaxLanes);
  out[0] = kMagic;
  out[1] = kProtocolVersion;
  out[2] = static_cast<uint8_t>(header.type) | (header.tagged ? kTagged : 0);
  out[3] = header.flags;
  Store16(out + 4, header.job);
  Store16(out + 6, header.epoch);
  Store16(out + 8, header.worker);
  Store16(out + 10, header.slot);
  Store32(out + 12, header.sequence);
  out[16] = header.version;
  out[17] = static_cast<uint8_t>(header.lane_format);
  Store16(out + 18, header.element_count);
}

DecodeError Decode(std::span<const uint8_t> packet, Header& header) {
  if (packet.size() < kHeaderBytes) return DecodeError::kTooShort;
  const uint8_t* in = packet.data();
  if (in[0] != kMagic) return DecodeError::kBadMagic;
  if (in[1] != kProtocolVersion) return DecodeError::kBadProtocolVersion;
  const auto type = static_cast<PacketType>(in[2] & ~kTagged);
  if (type < PacketType::kContribution || type > PacketType::kProbe) return DecodeError::kBadType;
  const bool is_maximum = in[17] == static_cast<uint8_t>(LaneFormat::kMaxInt32);
  if ((in[3] & ~(is_maximum ? kStickyFlags : kAllFlags)) != 0) return DecodeError::kBadFlags;
  if (in[16] > 1) return DecodeError::kBadVersion;
  const auto lane_format = static_cast<LaneFormat>(in[17]);
  if (lane_format != LaneFormat::kSumInt32 && lane_format != LaneFormat::kMaxInt32) return DecodeError::kBadLaneFormat;
  const uint16_t element_count = Load16(in + 18);
  if (element_count == 0 || element_count > kMaxLanes) return DecodeError::kBadElementCount;

  header.type = type;
  header.flags = in[3];
  header.job = Load16(in + 4);
  header.epoch = Load16(in + 6);
  header.worker = Load16(in + 8);
  header.slot = Load16(in + 10);
  header.sequence = Load32(in + 12);
  header.version = in[16];
  header.lane_format = lane_format;
  header.element_count = element_count;
  header.tagged = (in[2] & kTagged) != 0;
  if (packet.size() != header.packet_bytes()) return DecodeError::kBadLength;
  return DecodeError::kNone;
}

}  // namespace passing::wire
