#include "cuda/pinned_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../tests/xla_ffi/cuda/fake_driver.h"

namespace passing {
namespace {

constexpr size_t kMiB = 1 << 20;

class PinnedPoolTest : public testing::Test {
 protected:
  PinnedPoolTest() {
    CUcontext context = nullptr;
    driver_.PrimaryContextRetain(&context, 0);
    driver_.ContextSetCurrent(context);
  }

  const CudaDriver driver_{FAKE_CUDA_DRIVER};
  const size_t handles_before_ = Fake().handles();
};

TEST_F(PinnedPoolTest, sizeClassesAreQuartersOfPowersOfTwo) {
  EXPECT_EQ(PinnedPool::SizeClass(0), 4096);
  EXPECT_EQ(PinnedPool::SizeClass(4096), 4096);
  EXPECT_EQ(PinnedPool::SizeClass(4097), 5120);
  EXPECT_EQ(PinnedPool::SizeClass(7169), 8192);
  EXPECT_EQ(PinnedPool::SizeClass(kMiB), kMiB);
  EXPECT_EQ(PinnedPool::SizeClass(kMiB + 1), kMiB + kMiB / 4);
}

TEST_F(PinnedPoolTest, eachPieceHasAnEvent) {
  PinnedPool pool(driver_);
  for (const auto& [bytes, pieces] : {std::pair<size_t, size_t>{1, 1},
                                      {PinnedBlock::kPieceBytes, 1},
                                      {PinnedBlock::kPieceBytes + 1, 2},
                                      {5 * PinnedBlock::kPieceBytes, 5}}) {
    EXPECT_EQ(pool.Acquire(bytes)->gpus[0].there.size(), pieces) << bytes;
  }
}

TEST_F(PinnedPoolTest, blocksAreUsedAgain_theLongestIdleFirst) {
  PinnedPool pool(driver_);
  auto a = pool.Acquire(kMiB), b = pool.Acquire(kMiB);
  void *const memory_a = a->memory, *const memory_b = b->memory;
  EXPECT_NE(memory_a, memory_b);
  EXPECT_EQ(pool.bytes_in_use(), 2 * kMiB);
  b.reset();
  a.reset();
  EXPECT_EQ(pool.bytes_in_use(), 0);
  EXPECT_EQ(pool.Acquire(kMiB - 1)->memory, memory_b);
  EXPECT_EQ(pool.Acquire(kMiB)->memory, memory_a);
  EXPECT_EQ(Fake().pinned_bytes(), 2 * kMiB);
}

TEST_F(PinnedPoolTest, pinsNoMoreThanWasInUseAtOnce) {
  PinnedPool pool(driver_);
  { const auto a = pool.Acquire(4 * kMiB), b = pool.Acquire(4 * kMiB); }
  EXPECT_EQ(Fake().pinned_bytes(), 8 * kMiB);
  {
    const auto small = pool.Acquire(kMiB);  // one of the large ones goes
    EXPECT_EQ(Fake().pinned_bytes(), 5 * kMiB);
    const auto large = pool.Acquire(16 * kMiB);
    EXPECT_EQ(Fake().pinned_bytes(), 17 * kMiB);
  }
  for (size_t i = 1; i < 16; ++i) {
    pool.Acquire(i * kMiB / 4);
    EXPECT_LE(Fake().pinned_bytes(), 17 * kMiB);
    EXPECT_EQ(Fake().pinned_bytes(), pool.pinned_bytes());
  }
}

TEST_F(PinnedPoolTest, whatIsReservedNeedntBePinned) {
  PinnedPool pool(driver_);
  pool.Reserve({kMiB, 2 * kMiB - 1, 2 * kMiB});
  EXPECT_EQ(Fake().pinned_bytes(), 5 * kMiB);
  EXPECT_EQ(pool.bytes_in_use(), 0);
  Fake().fail("cuMemHostAlloc", kFakeOutOfMemory, 0);
  {
    pool.Reserve({2 * kMiB, kMiB});
    const auto a = pool.Acquire(2 * kMiB), b = pool.Acquire(kMiB), c = pool.Acquire(2 * kMiB);
    pool.Reserve({2 * kMiB, kMiB, 2 * kMiB});
    EXPECT_THROW(pool.Reserve({kMiB, kMiB}), CudaError);
  }
  Fake().fail("cuMemHostAlloc", 0, 0);
  EXPECT_EQ(Fake().pinned_bytes(), 5 * kMiB);
}

TEST_F(PinnedPoolTest, whatIsReservedStays_whateverElseIsNeeded) {
  PinnedPool pool(driver_);
  { const auto a = pool.Acquire(4 * kMiB), b = pool.Acquire(4 * kMiB); }
  pool.Reserve({kMiB, 2 * kMiB});  // one of them goes
  EXPECT_EQ(Fake().pinned_bytes(), 7 * kMiB);
  pool.Reserve({8 * kMiB});  // the other one, too: all that is reserved has more than was ever in use
  EXPECT_EQ(Fake().pinned_bytes(), 11 * kMiB);
  for (size_t i = 1; i < 32; ++i) pool.Acquire(i * kMiB / 4);
  Fake().fail("cuMemHostAlloc", kFakeOutOfMemory, 0);
  { const auto a = pool.Acquire(kMiB), b = pool.Acquire(2 * kMiB), c = pool.Acquire(8 * kMiB); }
  Fake().fail("cuMemHostAlloc", 0, 0);
  EXPECT_EQ(Fake().pinned_bytes(), 18 * kMiB);  // the last one that wasn't reserved has 7
}

TEST_F(PinnedPoolTest, idleBlocksGoWhereMemoryIsScarce) {
  PinnedPool pool(driver_);
  pool.Reserve({4 * kMiB, 4 * kMiB});
  Fake().limit_pinned(10 * kMiB);
  pool.Reserve({6 * kMiB});  // of a program that takes turns with the first
  EXPECT_EQ(Fake().pinned_bytes(), 6 * kMiB);
  pool.Reserve({4 * kMiB, 4 * kMiB});
  EXPECT_EQ(Fake().pinned_bytes(), 8 * kMiB);
  EXPECT_EQ(pool.Acquire(6 * kMiB)->bytes, 6 * kMiB);
  EXPECT_EQ(Fake().pinned_bytes(), 6 * kMiB);
  EXPECT_THROW(pool.Acquire(11 * kMiB), CudaError);
  EXPECT_THROW(pool.Reserve({4 * kMiB, 4 * kMiB, 4 * kMiB}), CudaError);
  EXPECT_EQ(Fake().pinned_bytes(), 8 * kMiB);  // what could be pinned
  EXPECT_EQ(pool.Acquire(5 * kMiB)->bytes, 5 * kMiB);
  Fake().limit_pinned(SIZE_MAX);
  EXPECT_EQ(pool.bytes_in_use(), 0);
  EXPECT_EQ(Fake().pinned_bytes(), pool.pinned_bytes());
}

// As the pool that GPUs share is told by the thread of each.
TEST_F(PinnedPoolTest, threadsThatReserveTheSameHaveIt_howeverScarceMemoryIs) {
  CUcontext context = nullptr;
  driver_.ContextGetCurrent(&context);
  PinnedPool pool(driver_);
  Fake().limit_pinned(10 * kMiB);
  std::atomic<int> failed = 0;
  for (int i = 0; i < 100; ++i) {
    const std::vector<size_t> bytes(2, (i % 2 ? 3 : 4) * kMiB);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&] {
        driver_.ContextSetCurrent(context);
        try {
          pool.Reserve(bytes);
        } catch (const CudaError&) {
          ++failed;
        }
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(Fake().pinned_bytes(), 2 * bytes[0]);
  }
  Fake().limit_pinned(SIZE_MAX);
  EXPECT_EQ(failed, 0);
}

// Another thread may have the last sum's block a little longer, and pinning isn't for the midst of an execution.
TEST_F(PinnedPoolTest, waitsForABlockThatComesBackSoon) {
  PinnedPool pool(driver_);
  pool.Reserve({kMiB});
  auto used = pool.Acquire(kMiB);
  void* const memory = used->memory;
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    used.reset();
  });
  const auto next = pool.Acquire(kMiB);
  other.join();
  EXPECT_EQ(next->memory, memory);
  EXPECT_EQ(Fake().pinned_bytes(), kMiB);
  const auto beside = pool.Acquire(kMiB);  // but not for ever
  EXPECT_NE(beside->memory, memory);
}

TEST_F(PinnedPoolTest, idleMemoryIsReleased) {
  PinnedPool pool(driver_);
  const auto used = pool.Acquire(kMiB);
  pool.Acquire(2 * kMiB);
  pool.ReleaseIdle();
  EXPECT_EQ(Fake().pinned_bytes(), kMiB);
  EXPECT_EQ(Fake().handles(), handles_before_ + 6);
}

TEST_F(PinnedPoolTest, allIsGoneWithThePool) {
  {
    PinnedPool pool(driver_);
    pool.Acquire(kMiB);
    pool.Acquire(2 * kMiB);
  }
  EXPECT_EQ(Fake().pinned_bytes(), 0);
  EXPECT_EQ(Fake().handles(), handles_before_);
}

TEST_F(PinnedPoolTest, failuresLeaveNothingBehind) {
  PinnedPool pool(driver_);
  for (const char* symbol : {"cuMemHostAlloc", "cuEventCreate"}) {
    for (const int after : {0, 6}) {
      if (after == 6 && symbol == std::string("cuMemHostAlloc")) continue;  // it is called once
      Fake().fail(symbol, kFakeOutOfMemory, after);
      EXPECT_THROW(pool.Acquire(8 * kMiB), CudaError);
      Fake().fail(symbol, 0, 0);
      EXPECT_EQ(pool.bytes_in_use(), 0);
      EXPECT_EQ(Fake().pinned_bytes(), 0);
      EXPECT_EQ(Fake().handles(), handles_before_);
    }
  }
  EXPECT_NE(pool.Acquire(kMiB)->memory, nullptr);
}

TEST_F(PinnedPoolTest, threadsShareIt) {
  PinnedPool pool(driver_);
  CUcontext context = nullptr;
  driver_.ContextGetCurrent(&context);
  std::vector<std::thread> threads;
  for (size_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      driver_.ContextSetCurrent(context);
      for (size_t i = 0; i < 200; ++i) pool.Acquire((seed + i) % 7 * 4096);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pool.bytes_in_use(), 0);
  EXPECT_LE(Fake().pinned_bytes(), 4 * 7 * 4096);
}

}  // namespace
}  // namespace passing
