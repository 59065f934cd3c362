// The functions of the CUDA driver API that we use, found at run time: nothing of CUDA is needed to build this.
#ifndef XLA_FFI_CUDA_DRIVER_H_
#define XLA_FFI_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

// Types and values as in CUDA's cuda.h, whose ABI NVIDIA keeps.
using CUresult = int;  // 0: success
using CUdevice = int;
using CUdeviceptr = uint64_t;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;

namespace passing {

// The driver is missing, or refused a call.
class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Name of our member, symbol of the library, parameters. All return CUresult.
#define PASSING_CUDA_FUNCTIONS(F)                                                                            \
  F(Init, "cuInit", (unsigned flags))                                                                        \
  F(GetErrorName, "cuGetErrorName", (CUresult error, const char** name))                                     \
  F(DeviceGet, "cuDeviceGet", (CUdevice * device, int ordinal))                                              \
  F(PrimaryContextRetain, "cuDevicePrimaryCtxRetain", (CUcontext * context, CUdevice device))                \
  F(PrimaryContextRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice device))                                \
  F(ContextGetCurrent, "cuCtxGetCurrent", (CUcontext * context))                                             \
  F(ContextSetCurrent, "cuCtxSetCurrent", (CUcontext context))                                               \
  F(HostAlloc, "cuMemHostAlloc", (void** memory, size_t bytes, unsigned flags))                              \
  F(HostFree, "cuMemFreeHost", (void* memory))                                                               \
  F(StreamCreate, "cuStreamCreate", (CUstream * stream, unsigned flags))                                     \
  F(StreamDestroy, "cuStreamDestroy_v2", (CUstream stream))                                                  \
  F(StreamWaitEvent, "cuStreamWaitEvent", (CUstream stream, CUevent event, unsigned flags))                  \
  F(EventCreate, "cuEventCreate", (CUevent * event, unsigned flags))                                         \
  F(EventDestroy, "cuEventDestroy_v2", (CUevent event))                                                      \
  F(EventRecord, "cuEventRecord", (CUevent event, CUstream stream))                                          \
  F(EventSynchronize, "cuEventSynchronize", (CUevent event))                                                 \
  F(CopyToHost, "cuMemcpyDtoHAsync_v2", (void* to, CUdeviceptr from, size_t bytes, CUstream stream))         \
  F(CopyToDevice, "cuMemcpyHtoDAsync_v2", (CUdeviceptr to, const void* from, size_t bytes, CUstream stream)) \
  F(Fill, "cuMemsetD32Async", (CUdeviceptr to, unsigned value, size_t count, CUstream stream))

class CudaDriver {
 public:
  static constexpr char kLibrary[] = "libcuda.so.1";   // comes with NVIDIA's kernel module
  static constexpr unsigned kStreamNonBlocking = 1;    // doesn't wait for the default stream, nor that for it
  static constexpr unsigned kEventForWaiting = 1 | 2;  // sleep while waiting (CU_EVENT_BLOCKING_SYNC); no timing

  // Throws CudaError: no such library, a function missing, no device.
  explicit CudaDriver(const std::string& library = kLibrary);
  CudaDriver(const CudaDriver&) = delete;

#define PASSING_DECLARE(name, symbol, parameters) CUresult(*name) parameters = nullptr;
  PASSING_CUDA_FUNCTIONS(PASSING_DECLARE)
#undef PASSING_DECLARE

  // Throws CudaError with the error's name if a call of the driver gave one. `what` was tried: "copying a sum".
  void Check(CUresult result, const char* what) const;
  // Makes the context current. Throws CudaError.
  void Enter(CUcontext context) const { Check(ContextSetCurrent(context), "entering a GPU's context"); }
};

// Restores the thread's current context when it goes out of scope.
class ContextKept {
 public:
  explicit ContextKept(const CudaDriver& driver) : driver_(driver) { driver_.ContextGetCurrent(&context_); }
  ~ContextKept() { driver_.ContextSetCurrent(context_); }
  ContextKept(const ContextKept&) = delete;

 private:
  const CudaDriver& driver_;
  CUcontext context_ = nullptr;
};

}  // namespace passing

#endif  // XLA_FFI_CUDA_DRIVER_H_
