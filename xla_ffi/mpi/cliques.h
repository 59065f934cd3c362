// Tells of which clique, that is, for which devices, XLA makes a communicator.
//
// XLA makes a communicator for each clique of devices, and for each device in it. By MPI it tells only two numbers of
// it, color and key, since in MPI all processes split at the same time. But XLA lets a program run on a part of the
// processes, so we have to know the clique. XLA's function that calls MPI_Comm_split gets it: a virtual one, in
// whose stead the table gets a function of ours, which remembers the clique and calls XLA's.
#ifndef XLA_FFI_MPI_CLIQUES_H_
#define XLA_FFI_MPI_CLIQUES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace passing::mpi {

// Begins to remember cliques. Returns why it can't; nothing if it does, or did before. Call it before XLA splits.
std::optional<std::string> WatchCliques();

// The ids of all devices of the clique for which XLA is calling in this thread, in the order of their keys; the first
// is the color. Empty if that isn't known.
std::vector<int32_t> CliqueOfThread(int32_t color);

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_CLIQUES_H_
