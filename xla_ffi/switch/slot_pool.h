// The switch's rules: packet in, action out. No sockets, no clock, no threads.
#ifndef XLA_FFI_SWITCH_SLOT_POOL_H_
#define XLA_FFI_SWITCH_SLOT_POOL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "net/address.h"
#include "switch/job_counts.h"
#include "switch/verdict.h"
#include "wire/group_watch.h"
#include "wire/header.h"
#include "wire/packet_key.h"

namespace passing {

// A worker's bit, and those of all workers of a job that has so many.
constexpr uint64_t BitOf(uint16_t worker) { return uint64_t{1} << worker; }
constexpr uint64_t AllWorkers(size_t workers) { return ~uint64_t{0} >> (64 - workers); }

enum class SendTo : uint8_t { kNobody, kEveryWorker, kWorker, kParent };

struct Action {
  Verdict verdict = Verdict::kMalformed;
  SendTo to = SendTo::kNobody;
  uint16_t job = 0;                   // its number at this switch; 0 if a packet of a worker is dropped
  uint16_t worker = 0;                // the sender of the packet
  std::span<const uint8_t> packet{};  // a result, for the parent a contribution; valid until the next call of the pool
  // These workers need no lanes of a result that goes to every worker. They may be sent `bare` in its place.
  uint64_t bare_workers = 0;
  std::span<const uint8_t> bare{};
  wire::OwnResult own_result{};  // of the parent, if it sent that to this switch alone
};

// The job one level up. There this switch is one worker: it contributes the sums of its own workers.
struct ParentJob {
  uint16_t job = 0;
  uint16_t epoch = 0;
  uint32_t slot_first = 0;  // a slot has the same index in the job's range at both
  uint16_t worker = 0;
  Address address;
  std::optional<wire::MemberKeys> keys = std::nullopt;  // if packets between the two have tags
};

// The keys of a job whose packets have tags.
struct JobKeys {
  std::vector<wire::PacketKey> contributions;  // one a worker
  wire::PacketKey results;
};

// A job's share of the switch.
struct JobSlots {
  uint16_t job = 0;
  uint16_t epoch = 0;
  uint32_t slot_first = 0;
  uint32_t slot_count = 0;                           // a power of two
  uint32_t lanes_per_chunk = wire::kLanesAtMtu1500;  // the most that a slot of the job holds
  std::vector<Address> addresses;                    // one a worker; 1 to wire::kMaxWorkers
  std::optional<ParentJob> parent = std::nullopt;
  std::optional<JobKeys> keys = std::nullopt;  // if packets have tags
  uint64_t first_position = 0;                 // alike on all ranks; tests begin right before the sequence wraps
  // A contribution may be this far ahead of the furthest complete position (jax_passing/switch/data_planes/reach.py);
  // so far that there is none further ahead, unless the control plane says less.
  uint32_t reach = (uint32_t{1} << 31) - 1;
};

// The content of one slot version, for the question "which workers are missing?".
struct SlotVersion {
  bool empty = true;
  uint32_t sequence = 0;
  uint64_t bitmap = 0;
  bool complete = false;  // the result is here; with a parent, that takes more than all bits

  friend bool operator==(const SlotVersion&, const SlotVersion&) = default;
};

class SlotPool {
 public:
  explicit SlotPool(uint32_t slot_count);
  ~SlotPool();
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  // Admits a job, or a new epoch of it, with empty slots, which take memory as long as it is here. Throws
  // std::invalid_argument if the partition leaves the pool, overlaps another job's, or isn't a power of two; if there
  // are no workers, too many, or not as many as keys; or if its lanes or the parent's numbers are impossible, or the
  // latter belong to another job's parent.
  void AddJob(const JobSlots& job);
  void RemoveJob(uint16_t job);

  // The time of the packets that come next, in microseconds since any moment. It is counted by (see CountsOf), and
  // decides nothing.
  void SetTime(uint64_t now_us) { now_us_ = now_us; }
  Action OnPacket(std::span<const uint8_t> packet, const Address& source);

  // Nothing if there is no such job. Looks at all of its slots.
  std::optional<JobCounts> CountsOf(uint16_t job) const;
  SlotVersion VersionOf(uint32_t slot, uint8_t version) const;
  uint64_t Count(Verdict verdict) const;

 private:
  struct Job;
  struct Version;
  void Check(const JobSlots& job) const;
  Action OnContribution(const wire::Header& header, std::span<const uint8_t> packet, const Address& source);
  Action OnParentResult(Job& job, const wire::Header& header, std::span<const uint8_t> packet, const Address& source);
  Job* ChildOf(const wire::Header& header) const;

  Action ResultFor(SendTo to, Verdict verdict, const Job& job, uint16_t worker, const Version& held);

  const uint32_t slot_count_;
  std::array<uint8_t, wire::kHeaderBytes + wire::kTagBytes> bare_;  // the last answer without lanes
  std::vector<std::unique_ptr<Job>> jobs_;                          // by job id
  std::vector<Job*> children_;                                      // by their parents' job ids
  std::array<uint64_t, kVerdictCount> counts_{};
  uint64_t now_us_ = 0;
};

}  // namespace passing

#endif  // XLA_FFI_SWITCH_SLOT_POOL_H_
