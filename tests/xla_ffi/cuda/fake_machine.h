// The GPUs of the fake driver: their contexts, streams, events and pinned memory. Only fake_driver.cc includes this.
#ifndef TESTS_XLA_FFI_CUDA_FAKE_MACHINE_H_
#define TESTS_XLA_FFI_CUDA_FAKE_MACHINE_H_

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

#include "../tests/xla_ffi/cuda/fake_driver.h"

namespace fake_machine {

// An event stands for all that was in the stream when it was recorded.
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

}  // namespace fake_machine
using namespace fake_machine;

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

// The speed of copies, in bytes a second.
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

namespace fake_machine {

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

inline State& state() {
  static auto& state = *new State();  // threads of streams may outlive static destruction
  return state;
}

thread_local CUcontext current = nullptr;

inline CUresult FailureOf(const char* symbol) {
  if (!state().started) return kFakeNotInitialized;
  std::lock_guard lock(state().mutex);
  const auto found = state().failing.find(symbol);
  if (found == state().failing.end() || found->second.after-- > 0) return 0;
  found->second.after = 0;
  return found->second.error;
}

// Begins a function that needs a current context.
inline CUresult Begin(const char* symbol) {
  if (!state().started) return kFakeNotInitialized;
  if (current == nullptr || current->retained == 0) return kFakeInvalidContext;
  if (current->broken != 0) return current->broken;
  return FailureOf(symbol);
}

inline CUresult Enqueue(const char* symbol, CUstream stream, std::function<void()> task) {
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
inline CUresult EnqueueCopy(const char* symbol, const void* pinned, size_t bytes, CUstream stream,
                            std::function<void()> copy) {
  if (!state().IsPinned(pinned, bytes)) return kFakeInvalidValue;
  const CUcontext context = stream == nullptr ? current : stream->context;
  return Enqueue(symbol, stream, [context, copy = std::move(copy)] {
    if (context->broken == 0) copy();
  });
}

inline void PassHold() {
  std::unique_lock lock(state().mutex);
  if (state().free_copies > 0) {
    --state().free_copies;
    return;
  }
  state().copies_freed.wait(lock, [] { return state().free_copies < 0; });
}

// As a copy engine does it: it takes its time, and nobody computes.
inline void Copy(void* to, const void* from, size_t bytes) {
  const auto began = std::chrono::steady_clock::now();
  std::memcpy(to, from, bytes);
  const double bytes_per_s = rate;
  if (bytes_per_s == 0) return;
  std::this_thread::sleep_until(began + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                            std::chrono::duration<double>(static_cast<double>(bytes) / bytes_per_s)));
}

inline CUresult DestroyStream(CUstream stream) {
  {
    std::lock_guard lock(state().mutex);
    if (state().streams.erase(stream) == 0) return kFakeInvalidHandle;
  }
  delete stream;
  return 0;
}

inline CUstream MakeStream() {
  std::lock_guard lock(state().mutex);
  const auto stream = new CUstream_st(current, state().seed ^ ++state().stream_count);
  state().streams.insert(stream);
  return stream;
}

}  // namespace fake_machine

#endif  // TESTS_XLA_FFI_CUDA_FAKE_MACHINE_H_
