// A CUDA driver without a GPU, for tests: a shared library with the functions that cuda/driver.h finds in libcuda.
//
// Device memory is the process's own. A stream is a thread that works off a queue, each entry after a delay drawn from
// a seed; the default stream does everything at once. As in CUDA, calls need cuInit and a current context that somebody
// retains, an event is recorded in streams of its own context alone, and what breaks a context fails all later calls.
#ifndef TESTS_XLA_FFI_CUDA_FAKE_DRIVER_H_
#define TESTS_XLA_FFI_CUDA_FAKE_DRIVER_H_

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "cuda/driver.h"

inline constexpr CUresult kFakeInvalidValue = 1;
inline constexpr CUresult kFakeOutOfMemory = 2;
inline constexpr CUresult kFakeNotInitialized = 3;
inline constexpr CUresult kFakeInvalidContext = 201;
inline constexpr CUresult kFakeInvalidHandle = 400;
inline constexpr CUresult kFakeLaunchFailed = 719;
inline constexpr int kFakeDeviceCount = 4;

// The calls by which tests control the fake driver and ask it.
struct FakeCuda {
  void (*seed)(uint64_t seed);
  // From now on calls of the function with this symbol fail, after so many that don't; with 0 they don't.
  void (*fail)(const char* symbol, CUresult error, int after);
  // A stream of XLA's, whose context becomes current on this thread: kernels for it are `run`.
  CUstream (*make_stream)(int ordinal);
  void (*destroy_stream)(CUstream stream);  // after what is in it
  void (*run)(CUstream stream, void (*kernel)(void*), void* argument);
  void (*synchronize)(CUstream stream);
  // A kernel fails: no copy of this GPU does anything any more, and calls return this error. With 0 they don't.
  void (*break_context)(int ordinal, CUresult error);
  int (*retained)(int ordinal);  // how often its context is
  // Copies to the host wait, after so many that don't, until it is called with a negative number.
  void (*hold_copies)(int after);
  // A copy takes as long as at this rate, and streams have no other delays. 0: copies take no time, which is the
  // default.
  void (*set_rate)(double bytes_per_s);
  size_t (*pinned_bytes)();            // that aren't freed
  void (*limit_pinned)(size_t bytes);  // to more than these there is no memory
  size_t (*handles)();                 // streams and events that aren't destroyed
};

extern "C" const FakeCuda* fake_cuda();
extern "C" size_t fake_cuda_pinned_bytes();  // for Python

// The controls of the library at FAKE_CUDA_DRIVER.
inline const FakeCuda& Fake() {
  static const FakeCuda& fake = [&]() -> const FakeCuda& {
    void* const handle = dlopen(FAKE_CUDA_DRIVER, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) std::abort();
    return *reinterpret_cast<decltype(&fake_cuda)>(dlsym(handle, "fake_cuda"))();
  }();
  return fake;
}

// The message of the CudaError that `action` throws; empty if it throws none.
std::string ErrorOf(const auto& action) {
  try {
    action();
  } catch (const passing::CudaError& error) {
    return error.what();
  }
  return "";
}

#endif  // TESTS_XLA_FFI_CUDA_FAKE_DRIVER_H_
