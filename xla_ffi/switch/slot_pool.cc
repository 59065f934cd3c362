#include "switch/slot_pool.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstring>
#include <new>
#include <stdexcept>

#include "switch/held_chunk.h"
#include "wire/lanes.h"

namespace passing {

struct SlotPool::Job {
  static_assert(sizeof(Version) == 64 && offsetof(Version, header) + wire::kHeaderBytes == sizeof(Version));

  Job(const JobSlots& of, uint64_t now_us)
      : slots(of),
        counter(of.addresses.size(), now_us),
        completed(of.first_position),
        // Two versions a slot, each with its lanes and a tag.
        lines_of_version((sizeof(Version) + 4 * size_t{of.lanes_per_chunk} + wire::kTagBytes + sizeof(Version) - 1) /
                         sizeof(Version)),
        memory(std::make_unique_for_overwrite<Line[]>(2 * of.slot_count * lines_of_version)) {
    for (size_t i = 0; i < 2 * size_t{of.slot_count}; ++i) new (&memory[i * lines_of_version]) Version();
  }

  // `slot`: from the job's first one.
  Version& At(uint32_t slot, uint8_t version) {
    assert(slot < slots.slot_count && version < 2);
    return *std::launder(reinterpret_cast<Version*>(&memory[(2 * size_t{slot} + version) * lines_of_version]));
  }
  // Is the packet's tag, or that it has none, as this key, or that there is none, wants it?
  bool IsGenuine(const wire::PacketKey* key, const wire::Header& header, std::span<const uint8_t> packet) const {
    if (key == nullptr) return !header.tagged;
    return header.tagged && key->Fits(packet, wire::PositionNear(completed, header.sequence));
  }
  bool Reaches(uint32_t sequence) const {
    const auto at = static_cast<uint32_t>(completed);
    return wire::SequenceBefore(sequence, at) || sequence - at <= slots.reach;
  }

  struct alignas(sizeof(Version)) Line {
    std::byte bytes[sizeof(Version)];
  };

  const JobSlots slots;
  JobCounter counter;
  uint64_t completed;  // the furthest position of which all workers' contributions were here
  const size_t lines_of_version;
  const std::unique_ptr<Line[]> memory;  // pages of it that stay untouched cost nothing
};

SlotPool::SlotPool(uint32_t slot_count) : slot_count_(slot_count) {
  if (slot_count == 0 || slot_count > wire::kMaxSlots) throw std::invalid_argument("a slot pool has 1 to 65536 slots");
}

SlotPool::~SlotPool() = default;

void SlotPool::Check(const JobSlots& job) const {
  if (job.addresses.empty() || job.addresses.size() > wire::kMaxWorkers) {
    throw std::invalid_argument("a job has 1 to 64 workers");
  }
  if (job.keys && job.keys->contributions.size() != job.addresses.size()) {
    throw std::invalid_argument("each worker of a job has a key, or none has");
  }
  if (!std::has_single_bit(job.slot_count)) throw std::invalid_argument("a job's slot count is a power of two");
  if (job.slot_first > slot_count_ || job.slot_count > slot_count_ - job.slot_first) {
    throw std::invalid_argument("the job's slots leave the pool");
  }
  if (job.lanes_per_chunk == 0 || job.lanes_per_chunk > wire::kMaxLanes) {
    throw std::invalid_argument("a slot holds 1 to 2232 lanes");
  }
  if (job.parent &&
      (job.parent->worker >= wire::kMaxWorkers || job.parent->slot_first > wire::kMaxSlots - job.slot_count)) {
    throw std::invalid_argument("no pool has such a worker, or such slots, as the job's parent is said to");
  }
  for (const auto& of_other : jobs_) {
    if (of_other == nullptr || of_other->slots.job == job.job) continue;
    const JobSlots* other = &of_other->slots;
    if (job.slot_first < other->slot_first + other->slot_count && other->slot_first < job.slot_first + job.slot_count) {
      throw std::invalid_argument("the job's slots overlap another job's");
    }
    if (job.parent && other->parent && job.parent->job == other->parent->job) {
      throw std::invalid_argument("two jobs have parents of one number, so that their results look alike");
    }
  }
}

void SlotPool::AddJob(const JobSlots& job) {
  Check(job);
  RemoveJob(job.job);
  if (jobs_.size() <= job.job) jobs_.resize(size_t{job.job} + 1);
  jobs_[job.job] = std::make_unique<Job>(job, now_us_);
  if (job.parent) {
    if (children_.size() <= job.parent->job) children_.resize(size_t{job.parent->job} + 1);
    children_[job.parent->job] = jobs_[job.job].get();
  }
}

void SlotPool::RemoveJob(uint16_t job) {
  if (job >= jobs_.size() || jobs_[job] == nullptr) return;
  if (const auto& parent = jobs_[job]->slots.parent) children_[parent->job] = nullptr;
  jobs_[job] = nullptr;
}

// The job that a result is for, if it has a parent of that number.
SlotPool::Job* SlotPool::ChildOf(const wire::Header& header) const {
  if (header.type != wire::PacketType::kResult || header.job >= children_.size()) return nullptr;
  return children_[header.job];
}

Action SlotPool::OnPacket(std::span<const uint8_t> packet, const Address& source) {
  wire::Header header;
  Action action;
  if (wire::Decode(packet, header) == wire::DecodeError::kNone) {
    Job* child = ChildOf(header);
    action = child ? OnParentResult(*child, header, packet, source) : OnContribution(header, packet, source);
  }
  ++counts_[static_cast<size_t>(action.verdict)];
  return action;
}

Action SlotPool::OnContribution(const wire::Header& header, std::span<const uint8_t> packet, const Address& source) {
  const auto drop = [](Verdict verdict) { return Action{.verdict = verdict}; };
  if (header.job >= jobs_.size() || jobs_[header.job] == nullptr) return drop(Verdict::kForeignJob);
  Job& of_job = *jobs_[header.job];
  const JobSlots& job = of_job.slots;
  if (header.epoch != job.epoch) return drop(Verdict::kForeignEpoch);
  if (header.worker >= job.addresses.size()) return drop(Verdict::kForeignWorker);
  if (source != job.addresses[header.worker]) return drop(Verdict::kForeignSource);
  if (header.slot < job.slot_first || header.slot - job.slot_first >= job.slot_count) {
    return drop(Verdict::kForeignSlot);
  }
  if (header.type != wire::PacketType::kContribution) return drop(Verdict::kNotContribution);
  if (header.element_count > job.lanes_per_chunk || (header.tagged && !job.keys)) return drop(Verdict::kMalformed);
  const wire::PacketKey* key = job.keys ? &job.keys->contributions[header.worker] : nullptr;
  if (!of_job.IsGenuine(key, header, packet)) return drop(Verdict::kForged);
  if (!of_job.Reaches(header.sequence)) return drop(Verdict::kTooFar);

  Version& held = of_job.At(header.slot - job.slot_first, header.version);
  const uint8_t* lanes = packet.data() + wire::kHeaderBytes;
  const uint64_t all = AllWorkers(job.addresses.size());
  const auto send = [&](Verdict verdict, SendTo to) { return ResultFor(to, verdict, of_job, header.worker, held); };

  const auto now_us = static_cast<uint32_t>(now_us_);
  uint32_t waited_us = 0;
  if (held.empty || wire::SequenceBefore(held.sequence, header.sequence)) {
    held.empty = false;
    held.complete = false;
    held.forwarded_again = false;
    held.sequence = header.sequence;
    held.element_count = header.element_count;
    held.lane_format = header.lane_format;
    held.flags = header.flags & wire::kStickyFlags;
    held.bitmap = BitOf(header.worker);
    held.no_result = 0;
    held.Take(header, lanes);
  } else if (header.sequence != held.sequence) {
    return drop(Verdict::kStale);
  } else if (!held.Holds(header)) {
    return drop(Verdict::kMismatch);
  } else if ((held.bitmap & BitOf(header.worker)) != 0) {
    of_job.counter.OnAgain(header.worker);
    if (held.complete) return send(Verdict::kResend, SendTo::kWorker);
    if (held.bitmap == all) {
      held.forwarded_again = true;
      return send(Verdict::kForwardedAgain, SendTo::kParent);
    }
    return drop(Verdict::kDuplicate);
  } else {
    assert(!held.complete && held.bitmap != all);
    held.bitmap |= BitOf(header.worker);
    held.flags |= header.flags & wire::kStickyFlags;
    waited_us = now_us - held.added_us;
    held.Add(header, lanes);
  }

  if ((header.flags & wire::kFlagNoResult) != 0) held.no_result |= BitOf(header.worker);
  held.added_us = now_us;
  of_job.counter.OnAdded(header.worker, now_us_);
  if (held.bitmap != all) return drop(Verdict::kAdded);
  of_job.counter.OnLast(header.worker, held.element_count, waited_us, now_us_);
  const uint64_t position = wire::PositionNear(of_job.completed, held.sequence);
  // In a job that begins at position 0, a forged packet may claim a position before it.
  const auto ahead = static_cast<int32_t>(held.sequence - static_cast<uint32_t>(of_job.completed));
  if (ahead > 0) of_job.completed = position;
  if (!held.bare) ToNetworkOrder(held.lanes(), held.element_count);
  wire::Header out = header;
  out.flags = held.flags;
  if (job.parent) {
    out.job = job.parent->job;
    out.epoch = job.parent->epoch;
    out.worker = job.parent->worker;
    out.slot = static_cast<uint16_t>(job.parent->slot_first + (header.slot - job.slot_first));
    if (held.no_result == all) out.flags |= wire::kFlagNoResult;
    held.MakePacket(out, job.parent->keys ? &job.parent->keys->contribution : nullptr, position);
    return send(Verdict::kForwarded, SendTo::kParent);
  }
  out.type = wire::PacketType::kResult;
  out.worker = wire::kEveryWorker;
  held.MakePacket(out, job.keys ? &job.keys->results : nullptr, position);
  held.complete = true;
  return send(Verdict::kComplete, SendTo::kEveryWorker);
}

Action SlotPool::OnParentResult(Job& of_job, const wire::Header& header, std::span<const uint8_t> packet,
                                const Address& source) {
  const JobSlots& job = of_job.slots;
  const auto drop = [&job](Verdict verdict) { return Action{.verdict = verdict, .job = job.job}; };
  const ParentJob& parent = *job.parent;
  if (header.epoch != parent.epoch) return drop(Verdict::kForeignEpoch);
  if (header.worker != wire::kEveryWorker) return drop(Verdict::kForeignWorker);
  if (source != parent.address) return drop(Verdict::kForeignSource);
  if (header.slot < parent.slot_first || header.slot - parent.slot_first >= job.slot_count) {
    return drop(Verdict::kForeignSlot);
  }
  if (header.tagged && !parent.keys) return drop(Verdict::kMalformed);
  if (!of_job.IsGenuine(parent.keys ? &parent.keys->result : nullptr, header, packet)) return drop(Verdict::kForged);

  const uint32_t slot = header.slot - parent.slot_first;
  Version& held = of_job.At(slot, header.version);
  // A parent has a result only if we sent our sum. So if we hold another sequence, ours is the newer one.
  const uint64_t all = AllWorkers(job.addresses.size());
  if (!held.Holds(header) || held.bitmap != all) return drop(Verdict::kStale);
  if (held.complete) return drop(Verdict::kDuplicate);
  // Nor does it leave out lanes that we have asked for.
  if ((header.flags & wire::kFlagNoResult) != 0 && held.no_result != all) return drop(Verdict::kStale);
  const wire::OwnResult own{.is_for_all = !held.bare && held.no_result != all,
                            .is_header = (header.flags & wire::kFlagNoResult) != 0,
                            .was_asked_for = held.forwarded_again};
  held.complete = true;
  held.flags = header.flags & wire::kStickyFlags;
  held.bare = header.bare();
  std::memcpy(held.lanes(), packet.data() + wire::kHeaderBytes, size_t{4} * header.lanes_carried());
  wire::Header out = header;
  out.flags = held.flags;
  out.job = job.job;
  out.epoch = job.epoch;
  out.slot = static_cast<uint16_t>(job.slot_first + slot);
  held.MakePacket(out, job.keys ? &job.keys->results : nullptr, wire::PositionNear(of_job.completed, header.sequence));
  Action action = ResultFor(SendTo::kEveryWorker, Verdict::kAnswered, of_job, wire::kEveryWorker, held);
  action.own_result = own;
  return action;
}

// `to` the parent it is our contribution. Else each worker is told what it needs: the result, or that it is here.
Action SlotPool::ResultFor(SendTo to, Verdict verdict, const Job& job, uint16_t worker, const Version& held) {
  Action action{.verdict = verdict, .to = to, .job = job.slots.job, .worker = worker, .packet = held.Packet()};
  const uint64_t receivers = to == SendTo::kWorker ? BitOf(worker) : AllWorkers(job.slots.addresses.size());
  const uint64_t bare_workers = held.no_result & receivers;
  if (to == SendTo::kParent || bare_workers == 0) return action;
  wire::Header header;
  wire::Decode(action.packet, header);
  header.flags |= wire::kFlagBare | wire::kFlagNoResult;
  wire::Encode(header, bare_.data());
  if (job.slots.keys) {
    job.slots.keys->results.Seal(bare_.data(), 0, wire::PositionNear(job.completed, held.sequence));
  }
  const auto bare = std::span<const uint8_t>(bare_).first(header.packet_bytes());
  if (bare_workers == receivers) {
    action.packet = bare;
  } else {
    action.bare_workers = bare_workers;
    action.bare = bare;
  }
  return action;
}

std::optional<JobCounts> SlotPool::CountsOf(uint16_t number) const {
  if (number >= jobs_.size() || jobs_[number] == nullptr) return std::nullopt;
  Job& job = *jobs_[number];
  uint32_t waiting = 0;
  std::optional<WaitingChunk> oldest;
  std::vector<uint64_t> waits_us(job.slots.addresses.size());
  for (uint32_t slot = 0; slot < job.slots.slot_count; ++slot) {
    for (uint8_t version = 0; version < 2; ++version) {
      const Version& held = job.At(slot, version);
      if (held.empty || held.complete) continue;
      ++waiting;
      const uint32_t waited_us = static_cast<uint32_t>(now_us_) - held.added_us;
      if (const uint64_t missing = AllWorkers(waits_us.size()) & ~held.bitmap; std::has_single_bit(missing)) {
        const auto worker = static_cast<uint16_t>(std::countr_zero(missing));
        // One that has sent later chunks isn't late: nobody needs this one any more, or it was lost.
        const bool is_late = waited_us <= job.counter.SilentUs(worker, now_us_);
        if (is_late) waits_us[worker] = std::max<uint64_t>(waits_us[worker], waited_us);
      }
      if (oldest) {  // of those that came together, the first in the job's order
        const bool is_later = static_cast<int32_t>(held.sequence - oldest->sequence) > 0;
        if (waited_us < oldest->waited_us || (waited_us == oldest->waited_us && is_later)) continue;
      }
      oldest = {job.slots.slot_first + slot, version, held.sequence, held.bitmap, waited_us};
    }
  }
  JobCounts counts = job.counter.Counts(now_us_, waits_us);
  counts.waiting = waiting;
  counts.oldest = oldest;
  return counts;
}

SlotVersion SlotPool::VersionOf(uint32_t slot, uint8_t version) const {
  const auto has_it = [slot](const std::unique_ptr<Job>& job) {
    return job != nullptr && slot >= job->slots.slot_first && slot - job->slots.slot_first < job->slots.slot_count;
  };
  const auto job = std::find_if(jobs_.begin(), jobs_.end(), has_it);
  if (job == jobs_.end() || version > 1) return {};
  const Version& held = (*job)->At(slot - (*job)->slots.slot_first, version);
  if (held.empty) return {};
  return {.empty = false, .sequence = held.sequence, .bitmap = held.bitmap, .complete = held.complete};
}

uint64_t SlotPool::Count(Verdict verdict) const { return counts_[static_cast<size_t>(verdict)]; }

}  // namespace passing
