// A call becomes a sum of the hosts, or an exchange between them, around which this host has work of its own.
#ifndef XLA_FFI_MPI_WORK_H_
#define XLA_FFI_MPI_WORK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "host/sums/sum.h"
#include "mpi/call.h"

namespace passing::mpi {

struct Work {
  SumSpec spec;  // without its name
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::vector<bool> own_rows{};         // Sum::own_rows
  std::unique_ptr<uint32_t[]> scratch;  // what they point into, unless that is a caller's
  std::function<void()> finish{};       // writes the callers' outputs; null if the sum has
  // Unless empty, nothing is summed: the hosts exchange the parts of this (exchange.h).
  std::span<uint8_t> parts{};
};

// `calls`: of the local devices, which all have the same signature, with elements; `indices`: theirs among
// `device_count`. Throws Failed if there is no such operation.
Work WorkFor(std::span<const Call> calls, std::span<const int32_t> indices, int32_t device_count, int32_t host_count);

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_WORK_H_
