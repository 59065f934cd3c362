// Lets a jaxlib that is loaded already call this library.
//
// MPItrampoline, which is part of jaxlib, reads MPITRAMPOLINE_LIB once, when jaxlib is loaded: at `import jax`. Its
// function that does so stays in memory, but no library may see it: the file's table of symbols tells where it is. We
// clear the flag that says it has run, and call it again.
#ifndef XLA_FFI_MPI_JAXLIB_LATE_BINDING_H_
#define XLA_FFI_MPI_JAXLIB_LATE_BINDING_H_

#include <optional>
#include <string>

namespace passing::mpi {

// Returns why it can't; nothing if it did, or had done before. Not while JAX is making its backends.
std::optional<std::string> BindLate();

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_JAXLIB_LATE_BINDING_H_
