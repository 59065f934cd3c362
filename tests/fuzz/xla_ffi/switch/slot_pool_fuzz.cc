// A slot pool stays within its rules, whatever jobs come and go and whatever packets say: a packet counts at most once
// and in its own slot version, a result is sent when all workers have contributed and never before, and what is dropped
// changes nothing. That sums are right is shown by the conformance suite.
#include <algorithm>
#include <array>
#include <map>
#include <stdexcept>
#include <vector>

#include "../tests/fuzz/xla_ffi/operations.h"
#include "../tests/xla_ffi/switch/slot_packets.h"
#include "switch/slot_pool.h"
#include "wire/packet_key.h"

namespace passing {
namespace {

constexpr uint32_t kSlots = 8;
constexpr uint32_t kJobs = 4;        // 0 to 3; their parents are jobs 2 to 5, so that numbers of both kinds meet
constexpr uint32_t kBase = 1 << 31;  // sequences lie around it, or around the wrap

// Returns keys of workers, then of results, then of the way to the parent and back.
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
    if (parent / 32 % 2 == 1) job.lanes_per_chunk = wire::kMaxLanes;
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
    try {
      pool_.AddJob(job);
    } catch (const std::invalid_argument&) {
      return;
    }
    EXPECT_ALWAYS(!job.addresses.empty() && job.addresses.size() <= 64 && job.slot_first + job.slot_count <= kSlots);
    for (uint32_t slot = job.slot_first; slot < job.slot_first + job.slot_count; ++slot) {
      EXPECT_ALWAYS(pool_.VersionOf(slot, 0).empty && pool_.VersionOf(slot, 1).empty);
    }
    jobs_[id] = {job, 0};
  }

  void RemoveJob(Operations& input) {
    const auto id = static_cast<uint16_t>(input.Below(kJobs));
    pool_.RemoveJob(id);
    jobs_.erase(id);
  }

  // Sends a packet as a worker of some job, or its parent, may well send it.
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
    packet.lanes.resize(count < 240 ? 1 + count % 3 : 1 + (count - 240) * 148);
    for (size_t i = 0; i < packet.lanes.size() && i < 2; ++i) packet.lanes[i] = static_cast<int8_t>(input.Byte()) << 24;
    // With the right tag, with another worker's, or with none.
    const uint8_t seal = input.Byte();
    const size_t key = from_parent ? kOfParent : header.worker;
    std::vector<uint8_t> bytes = Bytes(packet);
    if (seal >= 128) {
      const uint64_t position = PositionOf(header);
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
  using States = std::array<std::array<SlotVersion, 2>, kSlots>;
  struct Job {
    JobSlots slots;
    uint64_t completed = 0;  // the furthest position that all workers have contributed to
  };

  States StatesOfSlots() const {
    States states;
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      for (uint8_t version = 0; version < 2; ++version) states[slot][version] = pool_.VersionOf(slot, version);
    }
    return states;
  }

  // The job that a packet belongs to: its own, or the child of the parent that sent it. Null if there is none.
  Job* JobOf(const wire::Header& header) {
    for (auto& [id, job] : jobs_) {
      const auto& parent = job.slots.parent;
      if (header.type == wire::PacketType::kResult && parent && parent->job == header.job) return &job;
    }
    const auto found = jobs_.find(header.job);
    return found == jobs_.end() ? nullptr : &found->second;
  }
  uint64_t PositionOf(const wire::Header& header) {
    const Job* job = JobOf(header);
    return job == nullptr ? 0 : wire::PositionNear(job->completed, header.sequence);
  }

  void Send(const std::vector<uint8_t>& bytes, const Address& source) {
    last_ = bytes;
    last_source_ = source;
    const States before = StatesOfSlots();
    const Action action = pool_.OnPacket(bytes, source);
    const States after = StatesOfSlots();
    ++counts_[static_cast<size_t>(action.verdict)];
    for (int i = 0; i < kVerdictCount; ++i) EXPECT_ALWAYS(pool_.Count(static_cast<Verdict>(i)) == counts_[i]);
    EXPECT_ALWAYS((action.to == SendTo::kNobody) == action.packet.empty());

    wire::Header header;
    if (wire::Decode(bytes, header) != wire::DecodeError::kNone) {
      EXPECT_ALWAYS(action.verdict == Verdict::kMalformed && action.to == SendTo::kNobody);
    }
    const bool changes = action.verdict == Verdict::kAdded || action.verdict == Verdict::kComplete ||
                         action.verdict == Verdict::kForwarded || action.verdict == Verdict::kAnswered;
    if (!changes) {
      EXPECT_ALWAYS(before == after);
      return;
    }
    Job* job = JobOf(header);
    EXPECT_ALWAYS(job != nullptr);
    const bool answered = action.verdict == Verdict::kAnswered;
    const uint32_t slot = answered ? header.slot - job->slots.parent->slot_first + job->slots.slot_first : header.slot;
    EXPECT_ALWAYS(slot >= job->slots.slot_first && slot < job->slots.slot_first + job->slots.slot_count);
    States expected = before;
    SlotVersion& held = expected[slot][header.version];
    const uint64_t all = ~uint64_t{0} >> (64 - job->slots.addresses.size());
    if (answered) {
      EXPECT_ALWAYS(!held.empty && held.sequence == header.sequence && held.bitmap == all && !held.complete);
      held.complete = true;
    } else {
      const bool is_first = held.empty || wire::SequenceBefore(held.sequence, header.sequence);
      if (is_first) held = {.empty = false, .sequence = header.sequence};
      EXPECT_ALWAYS(held.sequence == header.sequence && (held.bitmap >> header.worker & 1) == 0);
      held.bitmap |= uint64_t{1} << header.worker;
      EXPECT_ALWAYS((held.bitmap == all) == (action.verdict != Verdict::kAdded));
      held.complete = action.verdict == Verdict::kComplete;
      if (held.bitmap == all) job->completed = std::max(job->completed, PositionOf(header));
    }
    EXPECT_ALWAYS(after == expected);
  }

  SlotPool pool_{kSlots};
  std::map<uint16_t, Job> jobs_;
  std::array<uint64_t, kVerdictCount> counts_{};
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
