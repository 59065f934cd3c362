// The functions and constants that XLA's trampoline looks up in this library, under their names in MPI ABI 2.9.
//
// The functions that XLA or its trampoline calls, or that return no code, stand here one by one. All others report that
// they aren't there.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>

#include "mpi/abi.h"
#include "mpi/call.h"
#include "mpi/failures.h"
#include "mpi/process.h"

namespace passing::mpi {

// Never destroyed: XLA's threads may call while the process ends.
Process& TheProcess() {
  static Process& process = *new Process(TheServer());
  return process;
}

namespace {

int Refuse(const char* function) {
  return TheProcess().codes().CodeOf(
      {"NotImplementedError", std::string(function) +
                                  " was called. jax_passing has those functions of MPI that XLA's CPU collectives "
                                  "call, and no others: programs that use MPI themselves need an MPI of their own."});
}

int Copy(const std::string& text, char* to, int* size) {
  std::memcpy(to, text.c_str(), text.size() + 1);
  *size = static_cast<int>(text.size());
  return abi::MPI_SUCCESS;
}

}  // namespace
}  // namespace passing::mpi

using namespace passing::mpi;  // names of the functions below, which have C's scope
using abi::Handle;

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

#define INT_BELOW_ZERO(name)               \
  EXPORTED extern const int MPIABI_##name; \
  const int MPIABI_##name = -1 - abi::INDEX_OF_##name;
#define INT(name)                          \
  EXPORTED extern const int MPIABI_##name; \
  const int MPIABI_##name = abi::MPI_##name;
#define WORD(name)                                 \
  EXPORTED extern const abi::Handle MPIABI_##name; \
  const abi::Handle MPIABI_##name = abi::MPI_##name;
#include "mpi/constants.inc"

#define VERSION(name, value)      \
  EXPORTED extern const int name; \
  const int name = value;
VERSION(mpiabi_version_major, abi::kVersionMajor)
VERSION(mpiabi_version_minor, abi::kVersionMinor)
VERSION(mpiabi_version_patch, 0)
VERSION(mpiwrapper_version_major, abi::kVersionMajor)
VERSION(mpiwrapper_version_minor, abi::kVersionMinor)
VERSION(mpiwrapper_version_patch, 0)

#define REFUSED(name) \
  EXPORTED Handle MPIABI_##name() { return static_cast<Handle>(Refuse("MPI_" #name)); }
#define REFUSED_EXTENSION(name) \
  EXPORTED int MPIXABI_##name() { return 0; }
#include "mpi/exports/refused.inc"

// For Fortran, which nobody speaks here.
EXPORTED void mpiwrapper_export_fortran_constants_() {}

EXPORTED int MPIABI_Init_thread(const int*, char***, int, int* provided) {
  *provided = abi::MPI_THREAD_MULTIPLE;
  return TheProcess().Guarded("MPI_Init_thread", [] { TheProcess().Begin(); });
}
EXPORTED int MPIABI_Init(const int*, char***) {
  return TheProcess().Guarded("MPI_Init", [] { TheProcess().Begin(); });
}
EXPORTED int MPIABI_Finalize() {
  return TheProcess().Guarded("MPI_Finalize", [] { TheProcess().End(); });
}
EXPORTED int MPIABI_Initialized(int* flag) {
  *flag = TheProcess().begun();
  return abi::MPI_SUCCESS;
}
EXPORTED int MPIABI_Finalized(int* flag) {
  *flag = TheProcess().ended();
  return abi::MPI_SUCCESS;
}
// XLA asks so that it doesn't call from several threads where that is forbidden. It isn't.
EXPORTED int MPIABI_Is_thread_main(int* flag) {
  *flag = 1;
  return abi::MPI_SUCCESS;
}
EXPORTED int MPIABI_Get_version(int* version, int* subversion) {
  *version = 3;
  *subversion = 1;
  return abi::MPI_SUCCESS;
}
EXPORTED int MPIABI_Get_library_version(char* version, int* size) {
  return Copy("jax_passing: XLA's collectives over a switch that sums", version, size);
}
EXPORTED int MPIABI_Error_string(int code, char* text, int* size) {
  return Copy(code == abi::MPI_SUCCESS ? "success" : TheProcess().codes().TextOf(code), text, size);
}
EXPORTED double MPIABI_Wtime() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
EXPORTED double MPIABI_Wtick() { return 1e-9; }
EXPORTED intptr_t MPIABI_Aint_add(intptr_t base, intptr_t displacement) { return base + displacement; }
EXPORTED intptr_t MPIABI_Aint_diff(intptr_t left, intptr_t right) { return left - right; }

// XLA looks at no code here or in MPI_Comm_split. A rank that no device has keeps it from taking a device for itself:
// it would copy instead of receiving, and call nothing that could fail.
EXPORTED int MPIABI_Comm_rank(Handle communicator, int* rank) {
  *rank = -1;
  return TheProcess().Guarded("MPI_Comm_rank", [=] {
    const bool world = communicator == abi::MPI_COMM_WORLD;
    *rank = world ? TheProcess().world().rank : TheProcess().DeviceOf(communicator)->index();
  });
}
EXPORTED int MPIABI_Comm_size(Handle communicator, int* size) {
  *size = 0;
  return TheProcess().Guarded("MPI_Comm_size", [=] {
    const bool world = communicator == abi::MPI_COMM_WORLD;
    *size = world ? TheProcess().world().size : TheProcess().DeviceOf(communicator)->size();
  });
}
EXPORTED int MPIABI_Comm_split(Handle communicator, int color, int key, Handle* made) {
  *made = abi::MPI_COMM_NULL;
  if (communicator != abi::MPI_COMM_WORLD) return Refuse("MPI_Comm_split of a part of the world");
  return TheProcess().Guarded("MPI_Comm_split", [=] { *made = TheProcess().Split(color, key); });
}
EXPORTED int MPIABI_Comm_free(Handle* communicator) {
  return TheProcess().Guarded("MPI_Comm_free", [=] {
    TheProcess().Free(*communicator);
    *communicator = abi::MPI_COMM_NULL;
  });
}

EXPORTED int MPIABI_Allreduce(const void* input, void* output, int count, Handle type, Handle reduction,
                              Handle communicator) {
  return TheProcess().Guarded("MPI_Allreduce", [=] {
    const std::shared_ptr<Device> device = TheProcess().DeviceOf(communicator);
    const Signature signature{Operation::kAllReduce, ReductionOf(reduction), device->TypeOf(type), CountOf(count)};
    device->Collect(CallOf(signature, input, output));
  });
}
EXPORTED int MPIABI_Allgather(const void* input, int count, Handle type, void* output, int output_count,
                              Handle output_type, Handle communicator) {
  if (count != output_count || type != output_type) return Refuse("MPI_Allgather of two types or counts");
  return TheProcess().Guarded("MPI_Allgather", [=] {
    const std::shared_ptr<Device> device = TheProcess().DeviceOf(communicator);
    const Signature signature{Operation::kAllGather, Reduction::kNone, device->TypeOf(type), CountOf(count)};
    device->Collect(CallOf(signature, input, output));
  });
}
EXPORTED int MPIABI_Reduce_scatter(const void* input, void* output, const int* counts, Handle type, Handle reduction,
                                   Handle communicator) {
  return TheProcess().Guarded("MPI_Reduce_scatter", [=] {
    const std::shared_ptr<Device> device = TheProcess().DeviceOf(communicator);
    if (std::any_of(counts, counts + device->size(), [&](int count) { return count != counts[0]; })) {
      throw Failed("NotImplementedError", "MPI_Reduce_scatter was called with different counts.");
    }
    const ElementType element = device->TypeOf(type);
    const Signature signature{Operation::kReduceScatter, ReductionOf(reduction), element, CountOf(counts[0])};
    device->Collect(CallOf(signature, input, output));
  });
}

EXPORTED int MPIABI_Isend(const void* data, int count, Handle type, int to, int tag, Handle communicator,
                          Handle* request) {
  *request = abi::MPI_REQUEST_NULL;
  return TheProcess().Guarded("MPI_Isend", [=] {
    const size_t bytes = BytesOf(count, type);
    *request = TheProcess().Keep(TheProcess().DeviceOf(communicator)->Send(data, bytes, to, tag));
  });
}
EXPORTED int MPIABI_Irecv(void* data, int count, Handle type, int from, int tag, Handle communicator, Handle* request) {
  *request = abi::MPI_REQUEST_NULL;
  return TheProcess().Guarded("MPI_Irecv", [=] {
    const size_t bytes = BytesOf(count, type);
    *request = TheProcess().Keep(TheProcess().DeviceOf(communicator)->Receive(data, bytes, from, tag));
  });
}
EXPORTED int MPIABI_Wait(Handle* request, abi::Status*) {
  if (*request == abi::MPI_REQUEST_NULL) return abi::MPI_SUCCESS;
  return TheProcess().Guarded("MPI_Wait", [=] {
    PendingMessage message = TheProcess().Take(*request);
    *request = abi::MPI_REQUEST_NULL;
    message.Wait();
  });
}
EXPORTED int MPIABI_Sendrecv(const void* data, int count, Handle type, int to, int tag, void* received,
                             int received_count, Handle received_type, int from, int received_tag, Handle communicator,
                             abi::Status*) {
  return TheProcess().Guarded("MPI_Sendrecv", [=] {
    const std::shared_ptr<Device> device = TheProcess().DeviceOf(communicator);
    const size_t bytes = BytesOf(count, type);
    PendingMessage coming = device->Receive(received, BytesOf(received_count, received_type), from, received_tag);
    PendingMessage going = device->Send(data, bytes, to, tag);
    going.Wait();
    coming.Wait();
  });
}

EXPORTED int MPIABI_Abort(Handle, int) { return Refuse("MPI_Abort"); }  // nothing here ends a process

}  // extern "C"
