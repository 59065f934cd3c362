// The types and the numbers of MPI ABI 2.9 that our code looks at.
#ifndef XLA_FFI_MPI_ABI_H_
#define XLA_FFI_MPI_ABI_H_

#include <cstddef>
#include <cstdint>

namespace passing::mpi::abi {

inline constexpr int kVersionMajor = 2;
inline constexpr int kVersionMinor = 9;

// Communicators, requests, dtypes and operations are such words.
using Handle = uintptr_t;

struct Status {
  alignas(8) unsigned char of_an_implementation[24];
  int source;
  int tag;
  int error;
};
static_assert(sizeof(Status) == 40);

#define INT_BELOW_ZERO(name) INDEX_OF_##name,
enum BelowZero : int {
#include "mpi/constants.inc"
};
#undef INT_BELOW_ZERO
#define INT(name) MPI_##name,
enum Int : int {
#include "mpi/constants.inc"
};
#undef INT
#define WORD(name) MPI_##name,
enum Word : Handle {
  MPI_NOTHING,  // so that no word is a null pointer
#include "mpi/constants.inc"
};
#undef WORD

// Handles of our own, and addresses, are larger than any word above.
inline constexpr Handle kFirstHandle = 4096;

}  // namespace passing::mpi::abi

#endif  // XLA_FFI_MPI_ABI_H_
