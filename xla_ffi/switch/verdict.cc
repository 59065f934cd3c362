#include "switch/verdict.h"

namespace passing {

const char* Name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kAdded:
      return "added";
    case Verdict::kComplete:
      return "complete";
    case Verdict::kResend:
      return "resend";
    case Verdict::kForwarded:
      return "forwarded";
    case Verdict::kForwardedAgain:
      return "forwarded_again";
    case Verdict::kAnswered:
      return "answered";
    case Verdict::kForged:
      return "forged";
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
    case Verdict::kTooFar:
      return "too_far";
  }
  return "unknown";
}

}  // namespace passing
