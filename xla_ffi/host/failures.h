// Why sums fail, in words for the people who read the error.
#ifndef XLA_FFI_HOST_FAILURES_H_
#define XLA_FFI_HOST_FAILURES_H_

#include <cstdint>
#include <string>

#include "host/all_reduce.h"
#include "host/job_config.h"
#include "host/sums/sum.h"

namespace passing {

// `job` isn't in range.
std::string NoJob(const JobConfig& job);

Failure Closed();

// `note`: what the session learned about the stall, a sentence or nothing.
Failure DeadlineExceeded(const JobConfig& job, const Stall& stall, int64_t stalled_us, const std::string& note,
                         double deadline_s);

}  // namespace passing

#endif  // XLA_FFI_HOST_FAILURES_H_
