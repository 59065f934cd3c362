// A switch judges each packet by a verdict.
#ifndef XLA_FFI_SWITCH_VERDICT_H_
#define XLA_FFI_SWITCH_VERDICT_H_

#include <cstdint>

namespace passing {

enum class Verdict : uint8_t {
  kAdded,            // counted, the slot still waits for other workers
  kComplete,         // the last worker: the result goes to all
  kResend,           // complete already, and this worker asks again: the result goes to it
  kDuplicate,        // already counted, not complete, or the parent's result once more: nothing to send
  kStale,            // an older sequence than the slot version holds; of a parent's result, any other
  kMalformed,        // wire::Decode refused it
  kForeignJob,       // no such job here
  kForeignEpoch,     // another incarnation of the job
  kForeignWorker,    // no such worker
  kForeignSource,    // not the address that this worker joined with
  kForeignSlot,      // slot outside the job's partition
  kNotContribution,  // a probe, or a result that is no parent's
  kMismatch,         // element count or lane format unlike the other workers'
  kTooFar,           // further ahead of what is complete than a worker can be
  kForwarded,        // the last worker of a job with a parent: the sum goes up
  kForwardedAgain,   // a worker asks again, and the parent hasn't answered: the sum goes up once more
  kAnswered,         // the parent's result: it goes to all workers
  kForged,           // without the tag that its sender's key makes
};
inline constexpr int kVerdictCount = 18;
const char* Name(Verdict verdict);

}  // namespace passing

#endif  // XLA_FFI_SWITCH_VERDICT_H_
