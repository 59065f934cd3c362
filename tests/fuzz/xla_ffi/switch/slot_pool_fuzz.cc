// The slot pool does what its rules say (slot_pool_model.h), whatever jobs come and go and whatever packets say: a
// result holds every worker exactly once, and is sent when all of them have contributed, never before.
#include <algorithm>
#include <stdexcept>
#include <vector>

#include "../tests/fuzz/xla_ffi/operations.h"
#include "../tests/xla_ffi/switch/slot_packets.h"
#include "../tests/xla_ffi/switch/slot_pool_model.h"
#include "switch/slot_pool.h"
#include "wire/lanes.h"
#include "wire/packet_key.h"

namespace passing {
namespace {

constexpr uint32_t kSlots = 8;
constexpr uint32_t kJobs = 4;        // 0 to 3; their parents are jobs 2 to 5, so that numbers of both kinds meet
constexpr uint32_t kBase = 1 << 31;  // sequences lie around it, or around the wrap

// Of workers, then of results, then of the way to the parent and back.
const std::vector<wire::PacketKey>& Keys() {
  static const std::vector<wire::PacketKey> keys = [] {
    std::vector<wire::PacketKey> made;
    for (uint64_t i = 0; i < 71; ++i) made.push_back(wire::RandomKey(i));
    return made;
  }();
  return keys;
}
constexpr size_t kOfResults = 68, kToParent = 69, kOfParent = 70;

class Target {
 public:
  void AddJob(Operations& input) {
    const auto id = static_cast<uint16_t>(input.Below(kJobs));
    const uint8_t size = input.Byte();
    const uint32_t workers = size < 240 ? size % 5 : 60 + size % 8;  // 0 and more than 64, too
    JobSlots job = MakeJob(id, workers, input.Below(kSlots + 2), input.Below(6), static_cast<uint16_t>(input.Below(3)));
    const uint8_t parent = input.Byte();
    if (parent % 2 == 1) {
      job.parent = ParentJob{.job = static_cast<uint16_t>(2 + parent / 2 % 4),
                             .epoch = static_cast<uint16_t>(parent / 8 % 2),
                             .slot_first = parent >= 248 ? 65530 + parent % 8 : input.Below(4),
                             .worker = static_cast<uint16_t>(input.Below(66)),
                             .address = kParentAddress};
      if (parent / 16 % 2 == 1) job.parent->keys = {.contribution = Keys()[kToParent], .result = Keys()[kOfParent]};
    }
    const uint8_t keys = input.Byte();
    if (keys >= 128) {
      const size_t count = job.addresses.size() + (keys == 255);  // one key too many
      job.keys = {.contributions = {Keys().begin(), Keys().begin() + static_cast<ptrdiff_t>(count)},
                  .results = Keys()[kOfResults]};
    }
    if (keys % 2 == 1) job.reach = 4;
    const bool is_possible = model_.AddJob(job);
    bool was_added = true;
    try {
      pool_.AddJob(job);
    } catch (const std::invalid_argument&) {
      was_added = false;
    }
    EXPECT_ALWAYS(was_added == is_possible);
  }

  void RemoveJob(Operations& input) {
    const auto id = static_cast<uint16_t>(input.Below(kJobs));
    pool_.RemoveJob(id);
    model_.RemoveJob(id);
  }

  // What a worker of some job, or its parent, may well say.
  void Plausible(Operations& input, bool from_parent) {
    Packet packet;
    wire::Header& header = packet.header;
    const uint8_t kind = input.Byte();
    header.job = static_cast<uint16_t>(input.Below(kJobs) + (from_parent ? 2 : 0));
    header.epoch = static_cast<uint16_t>(kind % 16 == 0 ? 1 : kind / 16 % 2);
    header.worker = static_cast<uint16_t>(from_parent ? wire::kEveryWorker : input.Below(kind % 8 == 7 ? 66 : 4));
    header.type = from_parent ? wire::PacketType::kResult : wire::PacketType::kContribution;
    const uint8_t place = input.Byte();
    header.slot = place % 16;
    header.version = place / 16 % 2;
    header.lane_format = place / 32 % 4 == 0 ? LaneFormat::kMaxInt32 : LaneFormat::kSumInt32;
    const uint8_t when = input.Byte();
    header.sequence = static_cast<uint32_t>(int32_t{when % 8} - 4) + (when / 8 % 8 == 0 ? kBase : 0);
    header.flags = static_cast<uint8_t>(when / 64 == 0 ? input.Byte() & wire::kAllFlags : 0);
    const uint8_t count = input.Byte();
    packet.lanes.resize(count < 240 ? 1 + count % 3 : 1 + (count - 240) * 23);
    for (size_t i = 0; i < packet.lanes.size() && i < 2; ++i) packet.lanes[i] = static_cast<int8_t>(input.Byte()) << 24;
    // With the right tag, with another worker's, or with none.
    const uint8_t seal = input.Byte();
    const size_t key = from_parent ? kOfParent : header.worker;
    std::vector<uint8_t> bytes = Bytes(packet);
    if (seal >= 128) {
      const uint64_t position = model_.PositionOf(header);
      bytes = Sealed(bytes, Keys()[seal == 255 ? 0 : key], position + (seal == 254 ? uint64_t{1} << 32 : 0));
    }
    const bool is_stranger = kind == 255;
    const Address source = is_stranger   ? AddressOf(9, 9)
                           : from_parent ? kParentAddress
                                         : AddressOf(header.job, header.worker);
    Send(bytes, source);
  }

  void Raw(Operations& input) {
    const Address source = AddressOf(static_cast<uint16_t>(input.Below(kJobs)), static_cast<uint16_t>(input.Below(4)));
    const auto bytes = input.Bytes(input.Byte());
    Send({bytes.begin(), bytes.end()}, source);
  }

  // The last packet once more, with one byte changed.
  void Changed(Operations& input) {
    std::vector<uint8_t> bytes = last_;
    if (bytes.empty()) return;
    const uint8_t at = input.Byte();
    bytes[at % bytes.size()] ^= input.Byte();
    Send(bytes, last_source_);
  }

 private:
  void Send(const std::vector<uint8_t>& bytes, const Address& source) {
    last_ = bytes;
    last_source_ = source;
    SlotPoolModel::Answer expected{Verdict::kMalformed};
    Packet packet;
    const bool is_packet = wire::Decode(bytes, packet.header) == wire::DecodeError::kNone;
    if (is_packet) {
      for (size_t i = 0; i < packet.header.element_count; ++i) {
        packet.lanes.push_back(static_cast<int32_t>(wire::LoadLane(&bytes[wire::kHeaderBytes], i)));
      }
      expected = model_.OnPacket(packet, bytes, source);
    }
    const uint64_t count = pool_.Count(expected.verdict);
    const Action action = pool_.OnPacket(bytes, source);
    EXPECT_ALWAYS(action.verdict == expected.verdict && pool_.Count(expected.verdict) == count + 1);
    EXPECT_ALWAYS(action.to == expected.to);
    EXPECT_ALWAYS(
        std::equal(action.packet.begin(), action.packet.end(), expected.packet.begin(), expected.packet.end()));
    if (!is_packet) return;
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      for (uint8_t version = 0; version < 2; ++version) CheckVersion(slot, version);
    }
  }

  void CheckVersion(uint32_t slot, uint8_t version) const {
    const SlotVersion held = pool_.VersionOf(slot, version);
    const SlotVersion expected = model_.VersionOf(slot, version);
    EXPECT_ALWAYS(held.empty == expected.empty);
    if (held.empty) return;
    EXPECT_ALWAYS(held.sequence == expected.sequence && held.bitmap == expected.bitmap);
    EXPECT_ALWAYS(held.complete == expected.complete);
  }

  SlotPool pool_{kSlots};
  SlotPoolModel model_{kSlots};
  std::vector<uint8_t> last_;
  Address last_source_;
};

}  // namespace
}  // namespace passing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  passing::Operations input(data, size);
  passing::Target target;
  while (!input.empty()) {
    const uint32_t operation = input.Below(16);
    if (operation == 0) {
      target.AddJob(input);
    } else if (operation == 1) {
      target.RemoveJob(input);
    } else if (operation == 2) {
      target.Raw(input);
    } else if (operation == 3) {
      target.Changed(input);
    } else {
      target.Plausible(input, /*from_parent=*/operation == 4 || operation == 5);
    }
  }
  return 0;
}
