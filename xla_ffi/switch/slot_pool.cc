#include "switch/slot_pool.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <stdexcept>

// The loops over lanes are compiled once for AVX2 and once for any x86-64; the loader chooses, which is too early
// for the thread sanitizer.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__)
#define PASSING_SIMD __attribute__((target_clones("avx2", "default"), optimize("O3")))
#else
#define PASSING_SIMD
#endif

namespace passing {
namespace {

inline uint32_t NetworkOrder(uint32_t lane) {
  return std::endian::native == std::endian::little ? __builtin_bswap32(lane) : lane;
}

// `packet` may be unaligned and is in network order; `lanes` are in host order.
inline uint32_t Load(const uint8_t* packet, uint32_t i) {
  uint32_t lane;
  std::memcpy(&lane, packet + size_t{4} * i, 4);
  return NetworkOrder(lane);
}

PASSING_SIMD void WriteLanes(const uint8_t* __restrict packet, uint32_t count, uint32_t* __restrict lanes) {
  for (uint32_t i = 0; i < count; ++i) lanes[i] = Load(packet, i);
}

// Unsigned, so that wrapping is defined.
PASSING_SIMD void AddLanes(const uint8_t* __restrict packet, uint32_t count, uint32_t* __restrict lanes) {
  for (uint32_t i = 0; i < count; ++i) lanes[i] += Load(packet, i);
}

PASSING_SIMD void MaxLanes(const uint8_t* __restrict packet, uint32_t count, uint32_t* __restrict lanes) {
  for (uint32_t i = 0; i < count; ++i) {
    const auto lane = static_cast<int32_t>(Load(packet, i));
    const auto held = static_cast<int32_t>(lanes[i]);
    lanes[i] = static_cast<uint32_t>(lane > held ? lane : held);
  }
}

PASSING_SIMD void ToNetworkOrder(uint32_t* lanes, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) lanes[i] = NetworkOrder(lanes[i]);
}

uint64_t Bit(uint16_t worker) { return uint64_t{1} << worker; }

uint64_t AllWorkers(size_t workers) { return ~uint64_t{0} >> (64 - workers); }

}  // namespace

// The lanes start on a 32-byte boundary, and the header stands right before them: once complete, the lanes are
// swapped in place and header + lanes are the result packet, the same bytes for everyone who asks.
struct SlotPool::Slot {
  struct alignas(32) Version {
    uint8_t padding[32 - wire::kHeaderBytes];
    uint8_t header[wire::kHeaderBytes];
    uint32_t lanes[wire::kMaxLanes];  // host order until complete, then network order
    uint64_t bitmap = 0;
    uint32_t sequence = 0;
    uint16_t element_count = 0;
    wire::LaneFormat lane_format = wire::LaneFormat::kSumInt32;
    uint8_t flags = 0;
    bool empty = true;
    bool complete = false;

    std::span<const uint8_t> Result() const { return {header, wire::kHeaderBytes + size_t{4} * element_count}; }
  };
  static_assert(offsetof(Version, lanes) == 32);
  static_assert(offsetof(Version, header) + wire::kHeaderBytes == offsetof(Version, lanes));

  Version versions[2];
};

struct SlotPool::Job {
  JobSlots slots;
};

SlotPool::SlotPool(uint32_t slot_count) {
  if (slot_count == 0 || slot_count > 1u << 16) throw std::invalid_argument("a slot pool has 1 to 65536 slots");
  slots_ = std::vector<Slot>(slot_count);
}

SlotPool::~SlotPool() = default;

void SlotPool::AddJob(const JobSlots& job) {
  if (job.addresses.empty() || job.addresses.size() > wire::kMaxWorkers) {
    throw std::invalid_argument("a job has 1 to 64 workers");
  }
  if (!std::has_single_bit(job.slot_count)) throw std::invalid_argument("a job's slot count is a power of two");
  if (job.slot_first > slots_.size() || job.slot_count > slots_.size() - job.slot_first) {
    throw std::invalid_argument("the job's slots leave the pool");
  }
  for (const auto& other : jobs_) {
    if (other == nullptr || other->slots.job == job.job) continue;
    const JobSlots& held = other->slots;
    if (job.slot_first < held.slot_first + held.slot_count && held.slot_first < job.slot_first + job.slot_count) {
      throw std::invalid_argument("the job's slots overlap another job's");
    }
  }
  if (jobs_.size() <= job.job) jobs_.resize(size_t{job.job} + 1);
  jobs_[job.job] = std::make_unique<Job>(Job{job});
  for (uint32_t i = 0; i < job.slot_count; ++i) {
    for (Slot::Version& version : slots_[job.slot_first + i].versions) version.empty = true;
  }
}

void SlotPool::RemoveJob(uint16_t job) {
  if (job < jobs_.size()) jobs_[job] = nullptr;
}

Action SlotPool::OnPacket(std::span<const uint8_t> packet, const Address& source) {
  wire::Header header;
  Action action;
  const auto verdict = [&](Verdict value) {
    ++counts_[static_cast<size_t>(value)];
    action.verdict = value;
    return action;
  };

  if (wire::Decode(packet, header) != wire::DecodeError::kNone) return verdict(Verdict::kMalformed);
  action.job = header.job;
  action.worker = header.worker;
  if (header.job >= jobs_.size() || jobs_[header.job] == nullptr) return verdict(Verdict::kForeignJob);
  const JobSlots& job = jobs_[header.job]->slots;
  if (header.epoch != job.epoch) return verdict(Verdict::kForeignEpoch);
  if (header.worker >= job.addresses.size()) return verdict(Verdict::kForeignWorker);
  if (source != job.addresses[header.worker]) return verdict(Verdict::kForeignSource);
  if (header.slot < job.slot_first || header.slot - job.slot_first >= job.slot_count) {
    return verdict(Verdict::kForeignSlot);
  }
  if (header.type != wire::PacketType::kContribution) return verdict(Verdict::kNotContribution);

  assert(header.slot < slots_.size());
  assert(header.version < 2);
  Slot::Version& held = slots_[header.slot].versions[header.version];
  const uint8_t* lanes = packet.data() + wire::kHeaderBytes;

  if (held.empty || wire::SequenceBefore(held.sequence, header.sequence)) {
    held.empty = false;
    held.complete = false;
    held.sequence = header.sequence;
    held.element_count = header.element_count;
    held.lane_format = header.lane_format;
    held.flags = header.flags;
    held.bitmap = Bit(header.worker);
    WriteLanes(lanes, header.element_count, held.lanes);
  } else if (header.sequence != held.sequence) {
    return verdict(Verdict::kStale);
  } else if (header.element_count != held.element_count || header.lane_format != held.lane_format) {
    return verdict(Verdict::kMismatch);
  } else if ((held.bitmap & Bit(header.worker)) != 0) {
    if (!held.complete) return verdict(Verdict::kDuplicate);
    action.result = held.Result();
    return verdict(Verdict::kResend);
  } else {
    assert(!held.complete);
    held.bitmap |= Bit(header.worker);
    held.flags |= header.flags;
    if (held.lane_format == wire::LaneFormat::kSumInt32) {
      AddLanes(lanes, held.element_count, held.lanes);
    } else {
      MaxLanes(lanes, held.element_count, held.lanes);
    }
  }

  if (held.bitmap != AllWorkers(job.addresses.size())) return verdict(Verdict::kAdded);
  held.complete = true;
  ToNetworkOrder(held.lanes, held.element_count);
  header.type = wire::PacketType::kResult;
  header.worker = wire::kEveryWorker;
  header.flags = held.flags;
  wire::Encode(header, held.header);
  action.result = held.Result();
  return verdict(Verdict::kComplete);
}

SlotState SlotPool::State(uint32_t slot, uint8_t version) const {
  if (slot >= slots_.size() || version > 1) return {};
  const Slot::Version& held = slots_[slot].versions[version];
  if (held.empty) return {};
  return {.empty = false, .sequence = held.sequence, .bitmap = held.bitmap, .complete = held.complete};
}

uint64_t SlotPool::Count(Verdict verdict) const { return counts_[static_cast<size_t>(verdict)]; }

const char* Name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kAdded:
      return "added";
    case Verdict::kComplete:
      return "complete";
    case Verdict::kResend:
      return "resend";
    case Verdict::kDuplicate:
      return "duplicate";
    case Verdict::kStale:
      return "stale";
    case Verdict::kMalformed:
      return "malformed";
    case Verdict::kForeignJob:
      return "foreign_job";
    case Verdict::kForeignEpoch:
      return "foreign_epoch";
    case Verdict::kForeignWorker:
      return "foreign_worker";
    case Verdict::kForeignSource:
      return "foreign_source";
    case Verdict::kForeignSlot:
      return "foreign_slot";
    case Verdict::kNotContribution:
      return "not_contribution";
    case Verdict::kMismatch:
      return "mismatch";
  }
  return "unknown";
}

}  // namespace passing
