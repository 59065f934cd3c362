// Decode takes any bytes, and what it accepts is exactly what Encode writes.
#include <algorithm>
#include <vector>

#include "../tests/fuzz/xla_ffi/operations.h"
#include "wire/header.h"

namespace passing {
namespace {

wire::Header AnyHeader(Operations& input) {
  return {.type = static_cast<wire::PacketType>(1 + input.Below(3)),
          .flags = static_cast<uint8_t>(input.Byte() & wire::kAllFlags),
          .job = input.Number16(),
          .epoch = input.Number16(),
          .worker = input.Number16(),
          .slot = input.Number16(),
          .sequence = input.Number32(),
          .version = static_cast<uint8_t>(input.Below(2)),
          .lane_format = input.Below(2) == 0 ? wire::LaneFormat::kSumInt32 : wire::LaneFormat::kMaxInt32,
          .element_count = static_cast<uint16_t>(1 + input.Number16() % wire::kMaxLanes),
          .tagged = input.Below(2) == 1};
}

}  // namespace
}  // namespace passing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace passing;
  wire::Header header;
  const wire::DecodeError error = wire::Decode({data, size}, header);
  if (error == wire::DecodeError::kNone) {
    uint8_t again[wire::kHeaderBytes];
    wire::Encode(header, again);
    EXPECT_ALWAYS(std::equal(again, again + sizeof again, data));
    EXPECT_ALWAYS(size == header.packet_bytes());
  }

  Operations input(data, size);
  const wire::Header sent = AnyHeader(input);
  std::vector<uint8_t> packet(sent.packet_bytes());
  wire::Encode(sent, packet.data());
  EXPECT_ALWAYS(wire::Decode(packet, header) == wire::DecodeError::kNone && header == sent);
  packet.pop_back();
  EXPECT_ALWAYS(wire::Decode(packet, header) == wire::DecodeError::kBadLength);
  return 0;
}
