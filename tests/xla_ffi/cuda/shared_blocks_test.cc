#include "cuda/shared_blocks.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../tests/xla_ffi/cuda/fake_driver.h"

namespace passing {
namespace {

constexpr size_t kMiB = 1 << 20;

class SharedBlocksTest : public testing::Test {
 protected:
  static std::vector<CUcontext> Contexts(const CudaDriver& driver) {
    std::vector<CUcontext> contexts(2);
    for (int i = 0; i < 2; ++i) driver.PrimaryContextRetain(&contexts[i], i);
    return contexts;
  }

  const CudaDriver driver_{FAKE_CUDA_DRIVER};
  SharedBlocks blocks_{driver_, Contexts(driver_)};
  const std::shared_ptr<const void> site_ = std::make_shared<int>(), other_site_ = std::make_shared<int>();
};

TEST_F(SharedBlocksTest, shardsOfOneSumMeetInOneBlock) {
  auto one = blocks_.BlockFor(site_, 10, 1, 2, kMiB);
  const auto other = blocks_.BlockFor(other_site_, 10, 0, 2, kMiB);
  auto two = blocks_.BlockFor(site_, 10, 0, 2, kMiB);
  EXPECT_EQ(one, two);
  EXPECT_NE(one, other);
  EXPECT_EQ(one->gpus.size(), 2);
  // The same site again, as in a loop.
  auto again = blocks_.BlockFor(site_, 10, 0, 2, kMiB);
  EXPECT_NE(again, one);
  EXPECT_EQ(blocks_.BlockFor(site_, 10, 1, 2, kMiB), again);
  void* const memory = one->memory;
  one.reset();
  EXPECT_EQ(blocks_.pool().bytes_in_use(), 3 * kMiB);
  two.reset();
  EXPECT_EQ(blocks_.pool().bytes_in_use(), 2 * kMiB);
  EXPECT_EQ(blocks_.BlockFor(site_, 11, 0, 2, kMiB)->memory, memory);
}

TEST_F(SharedBlocksTest, whatBrokenExecutionsLeftIsForgotten) {
  const auto broken = blocks_.BlockFor(site_, 10, 0, 2, kMiB);
  const auto next = blocks_.BlockFor(site_, 11, 0, 2, kMiB);
  EXPECT_NE(next, broken);
  EXPECT_EQ(blocks_.BlockFor(site_, 11, 1, 2, kMiB), next);
  // Nobody has the block of a part that is gone.
  blocks_.BlockFor(site_, 12, 0, 2, kMiB);
  const auto alone = blocks_.BlockFor(site_, 12, 1, 2, kMiB);
  EXPECT_EQ(blocks_.BlockFor(site_, 12, 0, 2, kMiB), alone);
  auto gone = std::make_shared<int>();
  blocks_.BlockFor(gone, 13, 0, 2, kMiB);
  gone.reset();
  EXPECT_EQ(blocks_.pool().bytes_in_use(), 3 * kMiB);
}

// As the GPU that waits for a block, or pins it, may wait for what another one does behind its own sum.
TEST_F(SharedBlocksTest, whoWaitsForABlockHoldsUpNoOtherSum) {
  blocks_.Reserve({kMiB});
  auto one = blocks_.BlockFor(site_, 10, 0, 2, kMiB);
  std::shared_ptr<PinnedBlock> next;
  std::thread ahead([&] { next = blocks_.BlockFor(other_site_, 10, 0, 2, kMiB); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(blocks_.BlockFor(site_, 10, 1, 2, kMiB), one);
  one.reset();
  ahead.join();
  EXPECT_EQ(blocks_.BlockFor(other_site_, 10, 1, 2, kMiB), next);
  EXPECT_EQ(Fake().pinned_bytes(), kMiB);
}

TEST_F(SharedBlocksTest, theCallersContextStays) {
  driver_.ContextSetCurrent(nullptr);
  {
    blocks_.Reserve({kMiB});
    const auto block = blocks_.BlockFor(site_, 10, 0, 2, kMiB);
    blocks_.ReleaseIdle();
    EXPECT_EQ(Fake().pinned_bytes(), kMiB);
  }
  blocks_.ReleaseIdle();
  EXPECT_EQ(Fake().pinned_bytes(), 0);
  CUcontext context = nullptr;
  driver_.ContextGetCurrent(&context);
  EXPECT_EQ(context, nullptr);
}

TEST_F(SharedBlocksTest, failuresLeaveNothingBehind) {
  const size_t handles = Fake().handles();
  for (const char* symbol : {"cuMemHostAlloc", "cuEventCreate", "cuCtxSetCurrent"}) {
    for (const int after : {0, 1}) {
      if (after == 1 && symbol == std::string("cuMemHostAlloc")) continue;  // there is but one
      Fake().fail(symbol, kFakeOutOfMemory, after);
      EXPECT_THROW(blocks_.BlockFor(site_, 10, 0, 2, kMiB), CudaError) << symbol << after;
      Fake().fail(symbol, 0, 0);
      EXPECT_EQ(Fake().handles(), handles);
      EXPECT_EQ(Fake().pinned_bytes(), 0);
    }
  }
  const auto block = blocks_.BlockFor(site_, 10, 0, 2, kMiB);
  EXPECT_EQ(blocks_.BlockFor(site_, 10, 1, 2, kMiB), block);
}

TEST_F(SharedBlocksTest, threadsMeet) {
  constexpr int kSums = 300;
  std::vector<std::vector<std::shared_ptr<PinnedBlock>>> joined(2);
  std::vector<std::thread> threads;
  for (size_t shard = 0; shard < 2; ++shard) {
    threads.emplace_back([&, shard] {
      for (int i = 0; i < kSums; ++i) {
        joined[shard].push_back(blocks_.BlockFor(i % 2 ? site_ : other_site_, i, shard, 2, 4096));
        // As no device comes to the next sum before all have come to this one.
        for (int k = 0; k < 10'000'000 && joined[shard].back().use_count() == 1; ++k) std::this_thread::yield();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(joined[0], joined[1]);
}

}  // namespace
}  // namespace passing
