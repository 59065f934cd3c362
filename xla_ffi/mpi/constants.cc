// The constants that XLA's trampoline looks up in this library.
#include "mpi/abi.h"

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

#define INT_BELOW_ZERO(name)               \
  EXPORTED extern const int MPIABI_##name; \
  const int MPIABI_##name = -1 - passing::mpi::abi::INDEX_OF_##name;
#define INT(name)                          \
  EXPORTED extern const int MPIABI_##name; \
  const int MPIABI_##name = passing::mpi::abi::MPI_##name;
#define WORD(name)                                               \
  EXPORTED extern const passing::mpi::abi::Handle MPIABI_##name; \
  const passing::mpi::abi::Handle MPIABI_##name = passing::mpi::abi::MPI_##name;
#include "mpi/constants.inc"

#define VERSION(name, value)      \
  EXPORTED extern const int name; \
  const int name = value;
VERSION(mpiabi_version_major, passing::mpi::abi::kVersionMajor)
VERSION(mpiabi_version_minor, passing::mpi::abi::kVersionMinor)
VERSION(mpiabi_version_patch, 0)
VERSION(mpiwrapper_version_major, passing::mpi::abi::kVersionMajor)
VERSION(mpiwrapper_version_minor, passing::mpi::abi::kVersionMinor)
VERSION(mpiwrapper_version_patch, 0)

}  // extern "C"
