// Sums of GPUs, with a driver that stands in for NVIDIA's.
#ifndef TESTS_XLA_FFI_FFI_CUDA_SUMS_FIXTURE_H_
#define TESTS_XLA_FFI_FFI_CUDA_SUMS_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../tests/xla_ffi/cuda/fake_driver.h"
#include "../tests/xla_ffi/ffi/make_site.h"
#include "ffi/cuda/sums.h"

namespace passing {
namespace {

// Sums what is there at once, as if another host had sent the same, or keeps the sums until the test says what becomes
// of them.
class TestCollective : public Collective {
 public:
  uint32_t world_size() const override { return 2; }
  void Start(Sum sum) override {
    std::lock_guard lock(mutex_);
    if (sum.pieces->ready_elements < sum.spec->bytes() / sizeof(float)) ++started_early_;
    sums_.push_back({std::move(sum)});
    GoOn(std::prev(sums_.end()), sums_.back().sum.pieces->ready_elements);
  }
  void Ready(const SumKey& key, uint64_t elements) override {
    std::lock_guard lock(mutex_);
    const auto found = std::find_if(sums_.begin(), sums_.end(), [&](const auto& each) { return each.sum.key == key; });
    if (found != sums_.end()) GoOn(found, elements);
  }
  void Fail(const Failure& failure) override { FailAll(failure); }
  void Hold() { held_ = true; }
  size_t count() {
    std::lock_guard lock(mutex_);
    return sums_.size();
  }
  size_t started_early() {
    std::lock_guard lock(mutex_);
    return started_early_;
  }
  void FailAll(const Failure& failure) {
    std::lock_guard lock(mutex_);
    for (const UnderWay& each : sums_) each.sum.done(&failure);
    sums_.clear();
  }

 private:
  struct UnderWay {
    Sum sum;
    uint64_t summed = 0;
  };

  void GoOn(std::list<UnderWay>::iterator under_way, uint64_t ready) {
    if (held_) return;
    const Sum& sum = under_way->sum;
    const size_t leaf_count = sum.spec->leaf_elements.size();
    uint64_t leaf_begin = 0;
    for (size_t leaf = 0; leaf < leaf_count; leaf_begin += sum.spec->leaf_elements[leaf++]) {
      for (uint64_t i = 0; i < sum.spec->leaf_elements[leaf]; ++i) {
        if (leaf_begin + i < under_way->summed || leaf_begin + i >= ready) continue;
        float total = 0;
        for (size_t at = leaf; at < sum.inputs.size(); at += leaf_count) {
          total += static_cast<const float*>(sum.inputs[at])[i];
        }
        for (size_t at = leaf; at < sum.outputs.size(); at += leaf_count) {
          static_cast<float*>(sum.outputs[at])[i] = 2 * total;
        }
      }
    }
    under_way->summed = std::min(ready, leaf_begin);
    if (sum.pieces->written) sum.pieces->written(under_way->summed);
    if (under_way->summed < leaf_begin) return;
    sum.done(nullptr);
    sums_.erase(under_way);
  }

  std::mutex mutex_;
  std::atomic<bool> held_ = false;
  std::list<UnderWay> sums_;
  size_t started_early_ = 0;
};

struct Device {
  int32_t ordinal;
  CUstream stream = Fake().make_stream(ordinal);
  std::vector<float> a, b;
  int32_t token = 0;

  Device(int32_t number, float value, size_t size) : ordinal(number), a(size, value), b(10, value + 1) {}
  ~Device() { Fake().destroy_stream(stream); }

  CudaCall MakeCall(int32_t run_id) {
    return {.run_id = run_id,
            .ordinal = ordinal,
            .device = ordinal,
            .member = ordinal,
            .stream = stream,
            .token = reinterpret_cast<CUdeviceptr>(&token),
            .leaves = {reinterpret_cast<CUdeviceptr>(a.data()), reinterpret_cast<CUdeviceptr>(b.data())}};
  }
};

inline std::shared_ptr<SumSite> MakeSiteOfTwoLeaves(uint64_t hash, uint32_t members, size_t size = 1000) {
  return MakeCudaSite(hash, members, {size, 10});
}

constexpr size_t kLarge = 5 * PinnedBlock::kPieceBytes / sizeof(float) / 2;  // two and a half pieces

// Each of two devices brings half of the elements, which they added up before, in its array `a`: as many as there are
// with one more, which belongs to no leaf.
inline std::shared_ptr<SumSite> MakeSiteOfSlices(uint64_t hash, size_t slice_elements = 1000) {
  return MakeCudaSite(hash, 2, {700, 2 * slice_elements - 701}, slice_elements);
}

inline CudaCall SliceOf(Device& device, int32_t run_id) {
  CudaCall call = device.MakeCall(run_id);
  call.slice = call.member;
  call.leaves.resize(1);
  return call;
}

inline std::string KindOf(const std::optional<Failure>& failure) { return failure ? failure->kind : ""; }

class CudaSumsTest : public testing::Test {
 protected:
  CudaSumsTest() { Attach(); }
  ~CudaSumsTest() override { collective_->FailAll({"ClosedError", "the test is over"}); }

  void Attach() {
    failure_.reset();
    ASSERT_TRUE(rendezvous_.Attach({.collective = collective_,
                                    .failure =
                                        [this] {
                                          std::lock_guard lock(mutex_);
                                          return failure_;
                                        },
                                    .fail =
                                        [this](const Failure& failure) {
                                          std::lock_guard lock(mutex_);
                                          if (!failure_) failure_ = failure;
                                        }}));
  }
  // Copies from its arrays may be under way until the sums are gone.
  Device& MakeDevice(int32_t ordinal, float value, size_t size = 1000) {
    std::lock_guard lock(mutex_);
    return devices_.emplace_back(ordinal, value, size);
  }
  std::string session_failure() {
    std::lock_guard lock(mutex_);
    return KindOf(failure_);
  }
  // Waits until no sum has pinned memory any more.
  bool AllIsReturned() {
    for (int i = 0; i < 5000; ++i) {
      sums_.ReleaseIdle();
      if (Fake().pinned_bytes() == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
  }

  const std::shared_ptr<TestCollective> collective_ = std::make_shared<TestCollective>();
  std::mutex mutex_;
  std::deque<Device> devices_;
  std::optional<Failure> failure_;
  std::optional<CompletionPool> pool_{std::in_place};
  Rendezvous rendezvous_{*pool_};
  CudaSums sums_{rendezvous_, FAKE_CUDA_DRIVER};
};

}  // namespace
}  // namespace passing

#endif  // TESTS_XLA_FFI_FFI_CUDA_SUMS_FIXTURE_H_
