#define FAKE_CUDA_DRIVER ""
#include "../tests/xla_ffi/cuda/fake_driver.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "../tests/xla_ffi/cuda/fake_machine.h"

namespace {

const FakeCuda kControls = {
    .seed =
        [](uint64_t seed) {
          std::lock_guard lock(state().mutex);
          state().seed = seed;
        },
    .fail =
        [](const char* symbol, CUresult error, int after) {
          std::lock_guard lock(state().mutex);
          state().failing.erase(symbol);
          if (error != 0) state().failing[symbol] = {error, after};
        },
    .make_stream =
        [](int ordinal) {
          current = &state().contexts[ordinal];
          ++current->retained;
          return MakeStream();
        },
    .destroy_stream =
        [](CUstream stream) {
          --stream->context->retained;
          DestroyStream(stream);
        },
    .run = [](CUstream stream, void (*kernel)(void*), void* argument) { stream->Add([=] { kernel(argument); }); },
    .synchronize =
        [](CUstream stream) {
          Record record;
          stream->Add([&] { record.Reach(); });
          record.Await();
        },
    .break_context = [](int ordinal, CUresult error) { state().contexts[ordinal].broken = error; },
    .retained = [](int ordinal) { return state().contexts[ordinal].retained.load(); },
    .hold_copies =
        [](int after) {
          std::lock_guard lock(state().mutex);
          state().free_copies = after;
          state().copies_freed.notify_all();
        },
    .set_rate = [](double bytes_per_s) { rate = bytes_per_s; },
    .pinned_bytes =
        [] {
          std::lock_guard lock(state().mutex);
          size_t bytes = 0;
          for (const auto& [memory, size] : state().pinned) bytes += size;
          return bytes;
        },
    .limit_pinned =
        [](size_t bytes) {
          std::lock_guard lock(state().mutex);
          state().most_pinned = bytes;
        },
    .handles =
        [] {
          std::lock_guard lock(state().mutex);
          return state().streams.size() + state().events.size();
        },
};

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT const FakeCuda* fake_cuda() { return &kControls; }

EXPORT size_t fake_cuda_pinned_bytes() { return kControls.pinned_bytes(); }

EXPORT CUresult cuInit(unsigned) {
  state().started = true;
  const CUresult failure = FailureOf("cuInit");
  state().started = failure == 0;
  return failure;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char** name) {
  switch (error) {
    case kFakeInvalidValue:
      *name = "CUDA_ERROR_INVALID_VALUE";
      return 0;
    case kFakeOutOfMemory:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      return 0;
    case kFakeNotInitialized:
      *name = "CUDA_ERROR_NOT_INITIALIZED";
      return 0;
    case kFakeInvalidContext:
      *name = "CUDA_ERROR_INVALID_CONTEXT";
      return 0;
    case kFakeInvalidHandle:
      *name = "CUDA_ERROR_INVALID_HANDLE";
      return 0;
    case kFakeLaunchFailed:
      *name = "CUDA_ERROR_LAUNCH_FAILED";
      return 0;
    default:
      return 1;
  }
}

EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= kFakeDeviceCount) return 101;
  *device = ordinal;
  return FailureOf("cuDeviceGet");
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (const CUresult failure = FailureOf("cuDevicePrimaryCtxRetain")) return failure;
  *context = &state().contexts[device];
  ++(*context)->retained;
  return 0;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  if (state().contexts[device].retained == 0) return kFakeInvalidContext;
  --state().contexts[device].retained;
  return 0;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = current;
  return 0;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  current = context;
  return FailureOf("cuCtxSetCurrent");
}

EXPORT CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  if (const CUresult failure = Begin("cuMemHostAlloc")) return failure;
  if (bytes == 0) return kFakeInvalidValue;
  if (kControls.pinned_bytes() + bytes > state().most_pinned) return kFakeOutOfMemory;
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  std::memset(*memory, 0xee, bytes);
  std::lock_guard lock(state().mutex);
  state().pinned[static_cast<char*>(*memory)] = bytes;
  return 0;
}

EXPORT CUresult cuMemFreeHost(void* memory) {
  if (const CUresult failure = Begin("cuMemFreeHost")) return failure;
  std::lock_guard lock(state().mutex);
  if (state().pinned.erase(static_cast<char*>(memory)) == 0) return kFakeInvalidValue;
  std::free(memory);
  return 0;
}

EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned) {
  if (const CUresult failure = Begin("cuStreamCreate")) return failure;
  *stream = MakeStream();
  return 0;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) { return DestroyStream(stream); }

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  if (!state().IsLive(event)) return kFakeInvalidHandle;
  const auto record = event->Last();
  return Enqueue("cuStreamWaitEvent", stream, [record] {
    if (record) record->Await();
  });
}

EXPORT CUresult cuEventCreate(CUevent* event, unsigned) {
  if (const CUresult failure = Begin("cuEventCreate")) return failure;
  *event = new CUevent_st(current);
  std::lock_guard lock(state().mutex);
  state().events.insert(*event);
  return 0;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event) {
  {
    std::lock_guard lock(state().mutex);
    if (state().events.erase(event) == 0) return kFakeInvalidHandle;
  }
  delete event;
  return 0;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
  if (!state().IsLive(event)) return kFakeInvalidHandle;
  if (event->context != (stream == nullptr ? current : stream->context)) return kFakeInvalidHandle;
  const auto record = std::make_shared<Record>();
  const CUresult result = Enqueue("cuEventRecord", stream, [record] { record->Reach(); });
  if (result == 0) {
    std::lock_guard lock(event->mutex);
    event->last = record;
  }
  return result;
}

EXPORT CUresult cuEventSynchronize(CUevent event) {
  if (!state().IsLive(event)) return kFakeInvalidHandle;
  if (const auto record = event->Last()) {
    while (event->context->broken == 0 && !record->AwaitFor(std::chrono::milliseconds(1))) continue;
  }
  return Begin("cuEventSynchronize");
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return EnqueueCopy("cuMemcpyDtoHAsync_v2", to, bytes, stream, [=] {
    PassHold();
    Copy(to, reinterpret_cast<const void*>(from), bytes);
  });
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return EnqueueCopy("cuMemcpyHtoDAsync_v2", from, bytes, stream,
                     [=] { Copy(reinterpret_cast<void*>(to), from, bytes); });
}

EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  return Enqueue("cuMemsetD32Async", stream, [=] {
    for (size_t i = 0; i < count; ++i) std::memcpy(reinterpret_cast<char*>(to) + 4 * i, &value, 4);
  });
}
