// Counters as Python gets them.
#ifndef XLA_FFI_PYTHON_STATS_H_
#define XLA_FFI_PYTHON_STATS_H_

#include <nanobind/nanobind.h>

#include "host/all_reduce.h"
#include "net/datagram_batch.h"

namespace passing {

nanobind::dict StatsDict(const AllReduceStats& stats);
void AddSocketStats(nanobind::dict& dict, const UdpSocketStats& stats);

}  // namespace passing

#endif  // XLA_FFI_PYTHON_STATS_H_
