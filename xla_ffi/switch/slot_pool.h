// What a switch does with a packet: packet in, action out. No sockets, no clock, no threads.
#ifndef XLA_FFI_SWITCH_SLOT_POOL_H_
#define XLA_FFI_SWITCH_SLOT_POOL_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "net/address.h"
#include "wire/header.h"

namespace passing {

enum class Verdict : uint8_t {
  kAdded,            // counted, the slot still waits for other workers
  kComplete,         // the last worker: multicast the result
  kResend,           // complete already, and this worker asks again: unicast the result
  kDuplicate,        // already counted, not complete: nothing to send
  kStale,            // an older sequence than the slot version holds
  kMalformed,        // wire::Decode refused it
  kForeignJob,       // no such job here
  kForeignEpoch,     // another incarnation of the job
  kForeignWorker,    // no such worker
  kForeignSource,    // not the address that this worker joined with
  kForeignSlot,      // slot outside the job's partition
  kNotContribution,  // a result, sent to a switch
  kMismatch,         // element count or lane format unlike the other workers'
};
inline constexpr int kVerdictCount = 13;
const char* Name(Verdict verdict);

struct Action {
  Verdict verdict = Verdict::kMalformed;
  // For kComplete and kResend: the whole result packet; valid until the next call of the pool.
  std::span<const uint8_t> result;
  uint16_t job = 0;
  uint16_t worker = 0;  // for kResend: who asked
};

// A job's share of the switch.
struct JobSlots {
  uint16_t job = 0;
  uint16_t epoch = 0;
  uint32_t slot_first = 0;
  uint32_t slot_count = 0;         // a power of two
  std::vector<Address> addresses;  // one a worker; 1 to wire::kMaxWorkers
};

// What one slot version holds, for the question "which workers are missing?".
struct SlotState {
  bool empty = true;
  uint32_t sequence = 0;
  uint64_t bitmap = 0;
  bool complete = false;
};

class SlotPool {
 public:
  explicit SlotPool(uint32_t slot_count);
  ~SlotPool();

  // Admits a job, or a new epoch of it; clears its slots. Throws std::invalid_argument if the partition leaves the
  // pool, overlaps another job's, or isn't a power of two, or if the world size is out of range.
  void AddJob(const JobSlots& job);
  void RemoveJob(uint16_t job);

  Action OnPacket(std::span<const uint8_t> packet, const Address& source);

  SlotState State(uint32_t slot, uint8_t version) const;
  uint64_t Count(Verdict verdict) const;

 private:
  struct Slot;
  struct Job;
  std::vector<Slot> slots_;
  std::vector<std::unique_ptr<Job>> jobs_;  // by job id
  std::array<uint64_t, kVerdictCount> counts_{};
};

}  // namespace passing

#endif  // XLA_FFI_SWITCH_SLOT_POOL_H_
