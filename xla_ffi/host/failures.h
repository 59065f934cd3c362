// The messages of failures, for the people who read the error.
#ifndef XLA_FFI_HOST_FAILURES_H_
#define XLA_FFI_HOST_FAILURES_H_

#include <cstdint>
#include <string>

#include "host/all_reduce.h"
#include "host/job_config.h"
#include "host/sums/sum.h"

namespace passing {

// Says that `job` isn't in range.
std::string NoJob(const JobConfig& job);

Failure Closed();

// `note`: a sentence that the session learned about the stall, or nothing.
Failure DeadlineExceeded(const JobConfig& job, const Stall& stall, int64_t stalled_us, const std::string& note,
                         double deadline_s);

}  // namespace passing

#endif  // XLA_FFI_HOST_FAILURES_H_
