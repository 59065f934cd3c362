// A staging with the fake driver, and arrays whose sums go through it.
#ifndef TESTS_XLA_FFI_CUDA_STAGING_FIXTURE_H_
#define TESTS_XLA_FFI_CUDA_STAGING_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "../tests/xla_ffi/cuda/fake_driver.h"
#include "../tests/xla_ffi/eventually.h"
#include "cuda/shared_blocks.h"
#include "cuda/staging.h"

namespace passing {

// A kernel that runs until it is told to end.
struct Blocker {
  std::atomic<bool> ended = false;

  explicit Blocker(CUstream stream) {
    Fake().run(
        stream, [](void* self) { static_cast<Blocker*>(self)->ended.wait(false); }, this);
  }
  void End() {
    ended = true;
    ended.notify_all();
  }
};

inline constexpr size_t kPieceFloats = PinnedBlock::kPieceBytes / sizeof(float);

inline std::optional<Failure> Never() { return std::nullopt; }
inline std::optional<Failure> HostLost() { return Failure{"HostLostError", "rank 1"}; }

class StagingTest : public testing::Test {
 protected:
  ~StagingTest() override {
    Fake().synchronize(stream_);
    driver_.StreamDestroy(stream_);
  }

  std::shared_ptr<StagedSum> Start(CUdeviceptr token, std::vector<std::vector<float>*> leaves,
                                   const std::shared_ptr<const void>& site, int32_t run_id = 0) {
    std::vector<DeviceArray> arrays;
    for (const auto* leaf : leaves) {
      arrays.push_back({reinterpret_cast<CUdeviceptr>(leaf->data()), leaf->size() * sizeof(float)});
    }
    return staging_.Start(stream_, site, run_id, token, std::move(arrays));
  }

  static size_t BytesOf(const StagedSum& part) {
    size_t bytes = 0;
    for (const DeviceArray& leaf : part.leaves()) bytes += leaf.bytes;
    return bytes;
  }
  static void AwaitAll(StagedSum& part) {
    for (size_t there = 0; there < BytesOf(part);) there = part.AwaitMore(there);
  }
  // The floats of the leaves from the `begin`th byte on.
  static void Multiply(StagedSum& part, size_t begin, size_t end, float factor) {
    size_t leaf_begin = 0;
    for (size_t i = 0; i < part.leaves().size(); leaf_begin += part.leaves()[i++].bytes) {
      auto* values = static_cast<float*>(part.memory()[i]);
      for (size_t j = 0; j < part.leaves()[i].bytes / sizeof(float); ++j) {
        const size_t at = leaf_begin + j * sizeof(float);
        if (at >= begin && at < end) values[j] *= factor;
      }
    }
  }
  // As if all hosts had sent the same `count` times. Goes on as pieces come, and tells of its results.
  static void Sum(StagedSum& part, float count) {
    for (size_t done = 0; done < BytesOf(part);) {
      const size_t there = part.AwaitMore(done);
      Multiply(part, done, there, count);
      part.OnWritten(done = there);
    }
    part.Complete(nullptr);
  }
  // The thread that enqueues copies may let go of a sum a moment later than others do.
  bool AllIsBack() {
    return Eventually([&] { return staging_.pool().bytes_in_use() == 0; });
  }
  static bool IsForgotten(const std::weak_ptr<StagedSum>& part) {
    return Eventually([&] { return part.expired(); });
  }

  // Copies from it may be under way until the staging is gone.
  std::vector<float>& Array(size_t size, float value) { return arrays_.emplace_back(size, value); }

  std::deque<std::vector<float>> arrays_;
  const CudaDriver driver_{FAKE_CUDA_DRIVER};
  const CUstream stream_ = Fake().make_stream(0);
  Staging staging_{driver_, 0};
  const std::shared_ptr<const void> site_ = std::make_shared<int>();
};

}  // namespace passing

#endif  // TESTS_XLA_FFI_CUDA_STAGING_FIXTURE_H_
