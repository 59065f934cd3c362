// Has XLA tell us what it doesn't say by MPI.
//
// XLA makes a communicator for each clique of devices, and for each device in it. By MPI it tells only two numbers of
// it, color and key, since in MPI all processes split at the same time. But XLA lets a program run on a part of the
// processes, so we have to know the clique. Nor does a call of MPI tell which program it is part of, and MPI has no
// float16, which XLA refuses before it calls us.
//
// XLA's functions that call MPI's get all of that. They are virtual ones, in whose stead their tables get functions of
// ours, which remember it and call XLA's.
#ifndef XLA_FFI_MPI_JAXLIB_WATCH_XLA_H_
#define XLA_FFI_MPI_JAXLIB_WATCH_XLA_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mpi/abi.h"

namespace passing::mpi {

// Hears of XLA's calls of a communicator. Each surrounds calls of MPI in the same thread, or none.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  // Returns whether it knows the communicator. `run_id`: of the execution, if it is known. `is_float16`: MPI is called
  // with MPI_UINT16_T instead, if it does.
  virtual bool BeginCall(abi::Handle communicator, std::optional<uint32_t> run_id, bool is_float16) = 0;
  virtual void EndCall(abi::Handle communicator) = 0;
};

// Begins to watch. Returns why it can't; nothing if it does, or did before. Call it before XLA splits. `observer`
// stays.
std::optional<std::string> WatchXla(CallObserver& observer);

// The ids of all devices of the clique for which XLA is calling in this thread, in the order of their keys; the first
// is the color. Empty if that isn't known.
std::vector<int32_t> CliqueOfThread(int32_t color);

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_JAXLIB_WATCH_XLA_H_
