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

namespace {

// What an event stands for: all that was in the stream when it was recorded.
struct Record {
  std::mutex mutex;
  std::condition_variable wake;
  bool reached = false;

  void Reach() {
    std::lock_guard lock(mutex);
    reached = true;
    wake.notify_all();
  }
  void Await() {
    std::unique_lock lock(mutex);
    wake.wait(lock, [this] { return reached; });
  }
  bool AwaitFor(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex);
    return wake.wait_for(lock, time, [this] { return reached; });
  }
};

}  // namespace

struct CUctx_st {
  std::atomic<int> retained = 0;  // how often
  std::atomic<CUresult> broken = 0;
};

struct CUevent_st {
  explicit CUevent_st(CUcontext its_context) : context(its_context) {}

  const CUcontext context;
  std::mutex mutex;
  std::shared_ptr<Record> last;  // null: never recorded

  std::shared_ptr<Record> Last() {
    std::lock_guard lock(mutex);
    return last;
  }
};

// Of copies, in bytes a second.
std::atomic<double> rate = 0;

struct CUstream_st {
  CUstream_st(CUcontext its_context, uint64_t seed) : context(its_context), random(seed) {}
  ~CUstream_st() {
    Add(nullptr);
    thread.join();
  }

  void Add(std::function<void()> task) {
    std::lock_guard lock(mutex);
    tasks.push_back(std::move(task));
    wake.notify_all();
  }
  void Work() {
    std::unique_lock lock(mutex);
    for (;;) {
      wake.wait(lock, [this] { return !tasks.empty(); });
      auto task = std::move(tasks.front());
      tasks.pop_front();
      if (!task) return;
      lock.unlock();
      if (rate == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
      task();
      lock.lock();
    }
  }

  const CUcontext context;
  std::mt19937_64 random;
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> tasks;
  std::thread thread{&CUstream_st::Work, this};  // the last member
};

namespace {

struct Failing {
  CUresult error;
  int after;
};

struct State {
  std::atomic<bool> started = false;  // by cuInit
  std::mutex mutex;
  uint64_t seed = 0;
  uint64_t stream_count = 0;
  std::map<std::string, Failing> failing;
  std::map<const char*, size_t> pinned;
  size_t most_pinned = SIZE_MAX;
  int free_copies = -1;  // to the host, that don't wait; negative: all
  std::condition_variable copies_freed;
  std::set<CUstream> streams;
  std::set<CUevent> events;
  CUctx_st contexts[kFakeDeviceCount];

  bool IsLive(CUstream stream) {
    std::lock_guard lock(mutex);
    return streams.contains(stream);
  }
  bool IsLive(CUevent event) {
    std::lock_guard lock(mutex);
    return events.contains(event);
  }
  bool IsPinned(const void* memory, size_t bytes) {
    std::lock_guard lock(mutex);
    const auto* const begin = static_cast<const char*>(memory);
    const auto after = pinned.upper_bound(begin);
    if (after == pinned.begin()) return false;
    const auto& [block, size] = *std::prev(after);
    return begin + bytes <= block + size;
  }
};

State& state() {
  static auto& state = *new State();  // threads of streams may outlive static destruction
  return state;
}

thread_local CUcontext current = nullptr;

CUresult FailureOf(const char* symbol) {
  if (!state().started) return kFakeNotInitialized;
  std::lock_guard lock(state().mutex);
  const auto found = state().failing.find(symbol);
  if (found == state().failing.end() || found->second.after-- > 0) return 0;
  found->second.after = 0;
  return found->second.error;
}

// Of a function that needs a context.
CUresult Begin(const char* symbol) {
  if (!state().started) return kFakeNotInitialized;
  if (current == nullptr || current->retained == 0) return kFakeInvalidContext;
  if (current->broken != 0) return current->broken;
  return FailureOf(symbol);
}

CUresult Enqueue(const char* symbol, CUstream stream, std::function<void()> task) {
  if (const CUresult failure = Begin(symbol)) return failure;
  if (stream == nullptr) {
    task();
    return 0;
  }
  if (!state().IsLive(stream)) return kFakeInvalidHandle;
  stream->Add(std::move(task));
  return 0;
}

// CUDA copies from and to other host memory as well, but holds up the caller meanwhile.
CUresult EnqueueCopy(const char* symbol, const void* pinned, size_t bytes, CUstream stream,
                     std::function<void()> copy) {
  if (!state().IsPinned(pinned, bytes)) return kFakeInvalidValue;
  const CUcontext context = stream == nullptr ? current : stream->context;
  return Enqueue(symbol, stream, [context, copy = std::move(copy)] {
    if (context->broken == 0) copy();
  });
}

void PassHold() {
  std::unique_lock lock(state().mutex);
  if (state().free_copies > 0) {
    --state().free_copies;
    return;
  }
  state().copies_freed.wait(lock, [] { return state().free_copies < 0; });
}

// As a copy engine does it: it takes its time, and nobody computes.
void Copy(void* to, const void* from, size_t bytes) {
  const auto began = std::chrono::steady_clock::now();
  std::memcpy(to, from, bytes);
  const double bytes_per_s = rate;
  if (bytes_per_s == 0) return;
  std::this_thread::sleep_until(began + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                            std::chrono::duration<double>(static_cast<double>(bytes) / bytes_per_s)));
}

CUresult DestroyStream(CUstream stream) {
  {
    std::lock_guard lock(state().mutex);
    if (state().streams.erase(stream) == 0) return kFakeInvalidHandle;
  }
  delete stream;
  return 0;
}

CUstream MakeStream() {
  std::lock_guard lock(state().mutex);
  const auto stream = new CUstream_st(current, state().seed ^ ++state().stream_count);
  state().streams.insert(stream);
  return stream;
}

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
