// Measures how well a sum of an array on a GPU overlaps its copies, where the network takes no time.
//
//   gpu_pipeline_benchmark                          on the first GPU
//   gpu_pipeline_benchmark libfake_cuda_driver.so   without one (built with -DPASSING_BUILD_TESTS=ON)
//
// A sum has three stages: copies to pinned memory, fixed point with all that the host's state machine does, and copies
// back. Each is timed alone, then all of it, as XLA's two calls do it. "together" is that, as a multiple of the longest
// stage: 1 would be perfect. "apart" is one stage after the other. Medians of five.
//
// Without a GPU the driver is that of the tests. Its copies take as long as at the given rate, and sleep, as far as
// they don't copy: on few cores that counts.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#define FAKE_CUDA_DRIVER ""  // it is named on the command line
#include "../tests/xla_ffi/cuda/fake_driver.h"
#include "../tests/xla_ffi/ffi/make_site.h"
#include "ffi/cuda/sums.h"
#include "host/all_reduce.h"
#include "net/clock.h"

namespace passing {
namespace {

// Keeps what is sent, as the results of a job of one rank.
class Mirror : public Driver {
 public:
  uint8_t* Reserve() override {
    if (count_ == packets_.size()) packets_.emplace_back(wire::kMaxPacketBytes);
    packets_[count_].resize(wire::kMaxPacketBytes);
    return packets_[count_].data();
  }
  void Commit(size_t bytes) override {
    std::vector<uint8_t>& packet = packets_[count_++];
    packet.resize(bytes);
    wire::Header header;
    wire::Decode(packet, header);
    header.type = wire::PacketType::kResult;
    header.worker = wire::kEveryWorker;
    wire::Encode(header, packet.data());
  }
  void Flush() override {}
  // Valid until the next packet.
  std::span<const std::vector<uint8_t>> TakeResults() { return {packets_.data(), std::exchange(count_, 0)}; }

 private:
  std::vector<std::vector<uint8_t>> packets_;
  size_t count_ = 0;
};

// A transport whose switch answers at once.
class NullTransport : public Collective {
 public:
  ~NullTransport() override {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
      wake_.notify_all();
    }
    thread_.join();
  }
  uint32_t world_size() const override { return 1; }
  void Start(Sum sum) override {
    std::lock_guard lock(mutex_);
    starts_.push_back(std::move(sum));
    wake_.notify_all();
  }
  void Ready(const SumKey& key, uint64_t elements) override {
    std::lock_guard lock(mutex_);
    ready_.emplace_back(key, elements);
    wake_.notify_all();
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      // Rank 0 may wait for another sum, as the one before came from elsewhere.
      const int64_t due_us = std::min<int64_t>(core_.next_timer_us() - MonotonicUs(), 1'000'000);
      wake_.wait_for(lock, std::chrono::microseconds(due_us),
                     [this] { return ending_ || !starts_.empty() || !ready_.empty(); });
      if (ending_) return;
      auto starts = std::exchange(starts_, {});
      const auto ready = std::exchange(ready_, {});
      lock.unlock();
      for (Sum& sum : starts) core_.Start(std::move(sum), MonotonicUs());
      for (const auto& [key, elements] : ready) core_.OnReady(key, elements);
      while (core_.next_timer_us() <= MonotonicUs()) {
        core_.OnTimer(MonotonicUs());
        for (const auto& result : mirror_.TakeResults()) core_.OnPacket(0, result, MonotonicUs());
      }
      lock.lock();
    }
  }

  Mirror mirror_;
  AllReduce core_{{.rank = 0, .world_size = 1, .shards = {{.job = 1, .epoch = 1}}, .slots_per_shard = 1024},
                  {&mirror_},
                  [](std::string) {}};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Sum> starts_;
  std::vector<std::pair<SumKey, uint64_t>> ready_;
  bool ending_ = false;
  std::thread thread_{&NullTransport::Run, this};
};

constexpr int kRounds = 5;

template <typename F>
double MedianMs(F&& run) {
  std::vector<double> ms;
  run();  // pins memory, and the like
  for (int i = 0; i < kRounds; ++i) {
    const auto began = std::chrono::steady_clock::now();
    run();
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count());
  }
  std::sort(ms.begin(), ms.end());
  return ms[kRounds / 2];
}

void Check(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

std::optional<Failure> None() { return std::nullopt; }

// The driver, an array of ones on its first device, and a stream, as if they were XLA's.
class Device {
 public:
  Device(const std::string& library, size_t bytes) : driver_(library), bytes_(bytes) {
    void* const handle = dlopen(library.c_str(), RTLD_NOW);
    // Only this program asks these of CUDA; the tests' driver has no memory of its own.
    const auto allocate = reinterpret_cast<CUresult (*)(CUdeviceptr*, size_t)>(dlsym(handle, "cuMemAlloc_v2"));
    free_ = reinterpret_cast<CUresult (*)(CUdeviceptr)>(dlsym(handle, "cuMemFree_v2"));
    CUcontext context = nullptr;
    driver_.Check(driver_.PrimaryContextRetain(&context, 0), "entering the GPU's context");
    driver_.Check(driver_.ContextSetCurrent(context), "entering the GPU's context");
    driver_.Check(driver_.StreamCreate(&stream_, CudaDriver::kStreamNonBlocking), "making a stream");
    driver_.Check(driver_.EventCreate(&event_, CudaDriver::kEventForWaiting), "making an event");
    void* pinned = nullptr;
    driver_.Check(driver_.HostAlloc(&pinned, bytes, 0), "pinning an array");
    ones_ = static_cast<float*>(pinned);
    std::fill_n(ones_, bytes / sizeof(float), 1.0f);
    if (allocate != nullptr) {
      driver_.Check(allocate(&address_, bytes), "allocating an array");
    } else {
      array_.resize(bytes / sizeof(float));
      address_ = reinterpret_cast<CUdeviceptr>(array_.data());
    }
    driver_.Check(driver_.CopyToDevice(address_, ones_, bytes, stream_), "copying an array");
    Synchronize();
  }
  ~Device() {
    driver_.EventDestroy(event_);
    driver_.StreamDestroy(stream_);
    if (free_ != nullptr) free_(address_);
    driver_.HostFree(ones_);
    driver_.PrimaryContextRelease(0);
  }
  const CudaDriver& driver() const { return driver_; }
  CUstream stream() const { return stream_; }
  CUdeviceptr address() const { return address_; }
  void Synchronize() {
    driver_.Check(driver_.EventRecord(event_, stream_), "recording an event");
    driver_.Check(driver_.EventSynchronize(event_), "waiting for the GPU");
  }
  bool HasOnes() {
    std::memset(ones_, 0, bytes_);
    driver_.Check(driver_.CopyToHost(ones_, address_, bytes_, stream_), "copying an array");
    Synchronize();
    return std::all_of(ones_, ones_ + bytes_ / sizeof(float), [](float each) { return each == 1.0f; });
  }

 private:
  const CudaDriver driver_;
  const size_t bytes_;
  float* ones_ = nullptr;  // pinned
  std::vector<float> array_;
  CUstream stream_ = nullptr;
  CUevent event_ = nullptr;
  CUdeviceptr address_ = 0;
  CUresult (*free_)(CUdeviceptr) = nullptr;
};

struct Times {
  double out_ms, sum_ms, back_ms, together_ms;
};

Times Measure(const std::string& library, size_t mebibytes) {
  const size_t bytes = mebibytes << 20;
  Device device(library, bytes);
  const auto shape = std::make_shared<SumSpec>(
      SumSpec{.site_name = "x", .dtype = DType::kFloat32, .leaf_elements = {bytes / sizeof(float)}});
  const auto transport = std::make_shared<NullTransport>();
  Times times{};
  {
    Staging staging(device.driver(), 0);
    const auto site = std::make_shared<int>();
    std::shared_ptr<StagedSum> part;
    times.out_ms = MedianMs([&] {
      part = staging.Start(device.stream(), site, 0, 1, {{device.address(), bytes}});
      for (size_t there = 0; there < bytes;) there = part->AwaitMore(there);
    });
    uint32_t execution = 0;
    times.sum_ms = MedianMs([&] {
      std::promise<void> done;
      transport->Start({.key = {.site = 2, .execution = execution++},
                        .spec = shape,
                        .inputs = {part->memory()[0]},
                        .outputs = {part->memory()[0]},
                        .done = [&](const Failure*) { done.set_value(); }});
      done.get_future().wait();
    });
    part->Complete(nullptr);
    times.back_ms = MedianMs([&] {
      Check(!part->CopyBack(device.stream(), None), "a copy back failed");
      device.Synchronize();
    });
    staging.Take(1);
  }
  CompletionPool pool;
  Rendezvous rendezvous(pool);
  rendezvous.Attach({.collective = transport, .failure = None, .fail = [](const Failure& failure) {
                       Check(false, failure.message.c_str());
                     }});
  {
    CudaSums sums(rendezvous, library);
    const auto site = MakeCudaSite(7, 1, shape->leaf_elements);
    ChangeSpec(site).world_size = 1;
    CudaCall call{.stream = device.stream(), .token = 1, .leaves = {device.address()}};
    times.together_ms = MedianMs([&] {
      ++call.run_id;
      Check(!sums.Start(site, call), "a sum didn't start");
      Check(!sums.Finish(call), "a sum failed");
      device.Synchronize();
    });
    rendezvous.Detach();
  }
  Check(device.HasOnes(), "a sum is wrong");
  return times;
}

void Run(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW);
  const auto fake = reinterpret_cast<decltype(&fake_cuda)>(handle == nullptr ? nullptr : dlsym(handle, "fake_cuda"));
  std::printf("%6s %8s %10s %15s %10s %10s %9s %6s\n", "MiB", "GB/s", "out ms", "fixed point ms", "back ms", "sum ms",
              "together", "apart");
  for (const double rate : fake == nullptr ? std::vector<double>{0} : std::vector<double>{0.5, 1, 2}) {
    if (fake != nullptr) fake()->set_rate(rate * 1e9);
    for (const size_t mebibytes : {1, 4, 25, 256}) {
      const Times times = Measure(library, mebibytes);
      const double longest_ms = std::max({times.out_ms, times.sum_ms, times.back_ms});
      std::printf("%6zu %8.2f %10.2f %15.2f %10.2f %10.2f %9.2f %6.2f\n", mebibytes,
                  static_cast<double>(mebibytes << 20) / times.out_ms / 1e6, times.out_ms, times.sum_ms, times.back_ms,
                  times.together_ms, times.together_ms / longest_ms,
                  (times.out_ms + times.sum_ms + times.back_ms) / longest_ms);
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace passing

int main(int argument_count, char** arguments) {
  try {
    passing::Run(argument_count > 1 ? arguments[1] : passing::CudaDriver::kLibrary);
  } catch (const passing::CudaError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
