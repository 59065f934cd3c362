// The slot pool's rules (docs/internals/protocol.md) once more, in the plainest way: every contribution is kept, and
// what is sent is computed from all of them.
#ifndef TESTS_XLA_FFI_SWITCH_SLOT_POOL_MODEL_H_
#define TESTS_XLA_FFI_SWITCH_SLOT_POOL_MODEL_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "../tests/xla_ffi/switch/slot_packets.h"
#include "switch/slot_pool.h"
#include "wire/header.h"
#include "wire/packet_key.h"

namespace passing {

class SlotPoolModel {
 public:
  struct Answer {
    Verdict verdict;
    SendTo to = SendTo::kNobody;
    std::vector<uint8_t> packet{};
  };

  explicit SlotPoolModel(uint32_t slot_count) : slot_count_(slot_count) {}

  // False if there can't be such a job.
  bool AddJob(const JobSlots& job) {
    const uint64_t end = uint64_t{job.slot_first} + job.slot_count;
    if (job.addresses.empty() || job.addresses.size() > 64 || !std::has_single_bit(job.slot_count)) return false;
    if (end > slot_count_) return false;
    if (job.parent && (job.parent->worker >= 64 || uint64_t{job.parent->slot_first} + job.slot_count > 65536)) {
      return false;
    }
    if (job.keys && job.keys->contributions.size() != job.addresses.size()) return false;
    for (const auto& [id, of_other] : jobs_) {
      const JobSlots& other = of_other.slots;
      if (id == job.job) continue;
      for (uint32_t slot = job.slot_first; slot < end; ++slot) {
        if (IsOf(other, slot)) return false;
      }
      if (job.parent && other.parent && job.parent->job == other.parent->job) return false;
    }
    jobs_[job.job] = {job, job.first_position};
    std::erase_if(held_, [&](const auto& held) { return IsOf(job, held.first.first); });
    return true;
  }
  void RemoveJob(uint16_t job) { jobs_.erase(job); }

  // `bytes`: the same packet as it came.
  Answer OnPacket(const Packet& packet, std::span<const uint8_t> bytes, const Address& source) {
    const wire::Header& in = packet.header;
    if (in.type == wire::PacketType::kResult) {
      for (const auto& [id, of_child] : jobs_) {
        const auto& parent = of_child.slots.parent;
        if (parent && parent->job == in.job) return OnParentResult(of_child, packet, bytes, source);
      }
    }
    const auto found = jobs_.find(in.job);
    if (found == jobs_.end()) return {Verdict::kForeignJob};
    Job& of_job = found->second;
    const JobSlots& job = of_job.slots;
    if (in.epoch != job.epoch) return {Verdict::kForeignEpoch};
    if (in.worker >= job.addresses.size()) return {Verdict::kForeignWorker};
    if (source != job.addresses[in.worker]) return {Verdict::kForeignSource};
    if (!IsOf(job, in.slot)) return {Verdict::kForeignSlot};
    if (in.type != wire::PacketType::kContribution) return {Verdict::kNotContribution};
    const wire::PacketKey* key = job.keys ? &job.keys->contributions[in.worker] : nullptr;
    if (const auto refused = Refused(of_job, key, in, bytes)) return {*refused};
    const uint64_t ahead = wire::PositionNear(of_job.completed, in.sequence) - of_job.completed;
    if (static_cast<int64_t>(ahead) > int64_t{job.reach}) return {Verdict::kTooFar};
    return OnContribution(of_job, packet);
  }

  // The position that a packet has by its sequence, if it is of some job, or a result of its parent.
  uint64_t PositionOf(const wire::Header& in) const {
    const bool is_result = in.type == wire::PacketType::kResult;
    for (const auto& [id, job] : jobs_) {
      const bool is_its = is_result ? job.slots.parent && job.slots.parent->job == in.job : id == in.job;
      if (is_its) return wire::PositionNear(job.completed, in.sequence);
    }
    return 0;
  }

  SlotVersion VersionOf(uint32_t slot, uint8_t version) const {
    const auto found = held_.find({slot, version});
    if (found == held_.end()) return {};
    const Held& held = found->second;
    SlotVersion state{.empty = false, .sequence = held.sequence, .complete = held.result.has_value()};
    for (const auto& [worker, packet] : held.workers) state.bitmap |= uint64_t{1} << worker;
    return state;
  }

 private:
  struct Job {
    JobSlots slots;
    uint64_t completed = 0;  // the furthest position that all workers contributed to
  };
  struct Held {
    uint32_t sequence = 0;
    std::map<uint16_t, Packet> workers{};
    uint64_t position = 0;  // once all workers are here
    std::optional<Packet> result{};
  };

  // Why the tag, or that there is none, isn't as this key, or that there is none, wants it.
  static std::optional<Verdict> Refused(const Job& job, const wire::PacketKey* key, const wire::Header& in,
                                        std::span<const uint8_t> bytes) {
    if (key == nullptr) return in.tagged ? std::optional(Verdict::kMalformed) : std::nullopt;
    const bool fits = in.tagged && key->Fits(bytes, wire::PositionNear(job.completed, in.sequence));
    return fits ? std::nullopt : std::optional(Verdict::kForged);
  }
  static std::vector<uint8_t> Tagged(const std::vector<uint8_t>& packet, const wire::PacketKey* key,
                                     uint64_t position) {
    return key == nullptr ? packet : Sealed(packet, *key, position);
  }

  static bool IsOf(const JobSlots& job, uint32_t slot) {
    return slot >= job.slot_first && slot < uint64_t{job.slot_first} + job.slot_count;
  }
  static bool IsAlike(const Packet& a, const Packet& b) {
    return a.lanes.size() == b.lanes.size() && a.header.lane_format == b.header.lane_format;
  }

  Answer OnContribution(Job& of_job, const Packet& packet) {
    const wire::Header& in = packet.header;
    const JobSlots& job = of_job.slots;
    Held& held = held_[{in.slot, in.version}];
    if (held.workers.empty() || wire::SequenceBefore(held.sequence, in.sequence)) {
      held = {.sequence = in.sequence};
    } else if (in.sequence != held.sequence) {
      return {Verdict::kStale};
    } else if (!IsAlike(held.workers.begin()->second, packet)) {
      return {Verdict::kMismatch};
    }
    const bool again = !held.workers.emplace(in.worker, packet).second;
    if (held.workers.size() < job.addresses.size()) return {again ? Verdict::kDuplicate : Verdict::kAdded};
    if (!again) {
      held.position = wire::PositionNear(of_job.completed, in.sequence);
      if (static_cast<int64_t>(held.position - of_job.completed) > 0) of_job.completed = held.position;
    }
    if (job.parent && !held.result) {
      Packet up = Sum(held);
      up.header.job = job.parent->job;
      up.header.epoch = job.parent->epoch;
      up.header.worker = job.parent->worker;
      up.header.slot = static_cast<uint16_t>(job.parent->slot_first + in.slot - job.slot_first);
      return {again ? Verdict::kForwardedAgain : Verdict::kForwarded, SendTo::kParent,
              Tagged(Bytes(up), job.parent->keys ? &job.parent->keys->contribution : nullptr, held.position)};
    }
    if (!again) held.result = Sum(held);
    return {again ? Verdict::kResend : Verdict::kComplete, again ? SendTo::kWorker : SendTo::kEveryWorker,
            ResultOf(job, held)};
  }

  static std::vector<uint8_t> ResultOf(const JobSlots& job, const Held& held) {
    return Tagged(Result(held.result->header, held.result->lanes), job.keys ? &job.keys->results : nullptr,
                  held.position);
  }

  Answer OnParentResult(const Job& of_job, const Packet& packet, std::span<const uint8_t> bytes,
                        const Address& source) {
    const wire::Header& in = packet.header;
    const JobSlots& job = of_job.slots;
    if (in.epoch != job.parent->epoch) return {Verdict::kForeignEpoch};
    if (in.worker != wire::kEveryWorker) return {Verdict::kForeignWorker};
    if (source != job.parent->address) return {Verdict::kForeignSource};
    const int64_t slot = int64_t{job.slot_first} + in.slot - job.parent->slot_first;
    if (slot < 0 || !IsOf(job, static_cast<uint32_t>(slot))) return {Verdict::kForeignSlot};
    const wire::PacketKey* key = job.parent->keys ? &job.parent->keys->result : nullptr;
    if (const auto refused = Refused(of_job, key, in, bytes)) return {*refused};
    const auto found = held_.find({static_cast<uint32_t>(slot), in.version});
    if (found == held_.end()) return {Verdict::kStale};
    Held& held = found->second;
    if (held.sequence != in.sequence || !IsAlike(held.workers.begin()->second, packet)) return {Verdict::kStale};
    if (held.workers.size() < job.addresses.size()) return {Verdict::kStale};
    if (held.result) return {Verdict::kDuplicate};
    held.result = packet;
    held.result->header.tagged = false;
    held.result->header.job = job.job;
    held.result->header.epoch = job.epoch;
    held.result->header.slot = static_cast<uint16_t>(slot);
    held.position = wire::PositionNear(of_job.completed, in.sequence);
    return {Verdict::kAnswered, SendTo::kEveryWorker, ResultOf(job, held)};
  }

  // Of all contributions, each once.
  static Packet Sum(const Held& held) {
    Packet sum = held.workers.begin()->second;
    sum.header.tagged = false;  // a tag is another one's
    const bool maxima = sum.header.lane_format == LaneFormat::kMaxInt32;
    sum.header.flags = 0;
    std::fill(sum.lanes.begin(), sum.lanes.end(), maxima ? kMin : 0);
    for (const auto& [worker, from] : held.workers) {
      sum.header.flags |= from.header.flags;
      for (size_t i = 0; i < sum.lanes.size(); ++i) {
        int32_t& lane = sum.lanes[i];
        lane = maxima ? std::max(lane, from.lanes[i])
                      : static_cast<int32_t>(static_cast<uint32_t>(lane) + static_cast<uint32_t>(from.lanes[i]));
      }
    }
    return sum;
  }

  const uint32_t slot_count_;
  std::map<uint16_t, Job> jobs_;
  std::map<std::pair<uint32_t, uint8_t>, Held> held_;  // by slot and version
};

}  // namespace passing

#endif  // TESTS_XLA_FFI_SWITCH_SLOT_POOL_MODEL_H_
