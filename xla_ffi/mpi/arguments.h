// Reads MPI's arguments. Each function throws Failed if XLA says nothing of that kind.
#ifndef XLA_FFI_MPI_ARGUMENTS_H_
#define XLA_FFI_MPI_ARGUMENTS_H_

#include <cstddef>
#include <cstdint>

#include "mpi/abi.h"
#include "mpi/call.h"

namespace passing::mpi {

ElementType TypeOf(abi::Handle type);
Reduction ReductionOf(abi::Handle reduction);
uint64_t CountOf(int count);
size_t BytesOf(int count, abi::Handle type);
Call CallOf(const Signature& signature, const void* input, void* output);

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_ARGUMENTS_H_
