"""JAX's own collectives on CPU are carried out here: XLA calls them by MPI, and finds us in place of an MPI library.

jaxlib brings MPItrampoline, which loads the library that MPITRAMPOLINE_LIB names. That is `_native`, whose xla_ffi/mpi
asks the server in `serving.py` for all that isn't a sum.
"""
