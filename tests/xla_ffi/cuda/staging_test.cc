#include "cuda/staging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../tests/xla_ffi/cuda/fake_driver.h"
#include "../tests/xla_ffi/cuda/staging_fixture.h"
#include "cuda/shared_blocks.h"

namespace passing {
namespace {

TEST_F(StagingTest, thereAndBack_behindWhatXlaEnqueuedBefore) {
  auto &a = Array(1000, 0), &b = Array(3, 0);
  Blocker backward(stream_);
  Fake().run(
      stream_, [](void* a) { std::iota(static_cast<float*>(a), static_cast<float*>(a) + 1000, 0.f); }, a.data());
  const auto part = Start(1, {&a, &b}, site_);
  std::atomic<bool> arrived = false;
  std::thread worker([&] {
    AwaitAll(*part);
    arrived = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(arrived);  // nothing is read before the gradients are there
  backward.End();
  worker.join();
  EXPECT_EQ(static_cast<float*>(part->memory()[0])[999], 999);
  EXPECT_EQ(static_cast<float*>(part->memory()[1])[2], 0);
  Sum(*part, 2);
  EXPECT_EQ(a[999], 999);
  const auto same = staging_.Take(1);
  EXPECT_EQ(same, part);
  EXPECT_FALSE(same->CopyBack(stream_, Never));
  Fake().synchronize(stream_);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], 2 * i);
  EXPECT_EQ(b, (std::vector<float>{0, 0, 0}));
}

TEST_F(StagingTest, sumsAreTakenOnceAndInAnyOrder) {
  auto &a = Array(1, 1), &b = Array(1, 2);
  const auto other_site = std::make_shared<int>();
  const auto first = Start(1, {&a}, site_), second = Start(2, {&b}, other_site);
  EXPECT_EQ(staging_.Take(3), nullptr);
  EXPECT_EQ(staging_.Take(2), second);
  EXPECT_EQ(staging_.Take(2), nullptr);
  EXPECT_EQ(staging_.Take(1), first);
  EXPECT_EQ(staging_.pending_count(), 0);
}

TEST_F(StagingTest, whatBrokenExecutionsLeftIsForgotten) {
  auto& a = Array(1, 1);
  const auto other_site = std::make_shared<int>();
  auto gone_site = std::make_shared<int>();
  std::weak_ptr<StagedSum> same_token = Start(1, {&a}, other_site);
  std::weak_ptr<StagedSum> same_site = Start(2, {&a}, site_);
  std::weak_ptr<StagedSum> no_site = Start(3, {&a}, gone_site);
  gone_site.reset();
  auto kept_site = std::make_shared<int>();
  std::weak_ptr<StagedSum> kept = Start(4, {&a}, kept_site);
  EXPECT_TRUE(IsForgotten(no_site));
  EXPECT_FALSE(same_token.expired());
  const auto part = Start(1, {&a}, site_);
  EXPECT_TRUE(IsForgotten(same_token));
  EXPECT_TRUE(IsForgotten(same_site));
  EXPECT_FALSE(kept.expired());
  EXPECT_EQ(staging_.Take(1), part);
  EXPECT_EQ(staging_.pending_count(), 1);
  EXPECT_EQ(staging_.pool().bytes_in_use(), 2 * 4096);
}

TEST_F(StagingTest, whatAnExecutionLeavesIsForgottenWhenItBreaksOff) {
  auto& a = Array(1000, 1);
  const auto other_site = std::make_shared<int>(), third_site = std::make_shared<int>();
  std::weak_ptr<StagedSum> one = Start(1, {&a}, site_, 10), two = Start(2, {&a}, other_site, 10);
  std::weak_ptr<StagedSum> beside = Start(3, {&a}, third_site, 11);
  staging_.Forget(10);
  EXPECT_TRUE(IsForgotten(one));
  EXPECT_TRUE(IsForgotten(two));
  EXPECT_FALSE(beside.expired());
  EXPECT_EQ(staging_.Take(1), nullptr);
  EXPECT_NE(staging_.Take(3), nullptr);
}

TEST_F(StagingTest, memoryIsUsedAgainOnlyBehindTheCopiesFromIt) {
  auto &a = Array(1000, 1), &b = Array(1000, 100);
  auto part = Start(1, {&a}, site_);
  void* const memory = part->memory()[0];
  Sum(*part, 2);
  Blocker forward(stream_);
  EXPECT_FALSE(staging_.Take(1)->CopyBack(stream_, Never));
  part.reset();
  ASSERT_TRUE(AllIsBack());
  // Another stream of XLA's comes along while the first one's copy waits.
  const CUstream other_stream = Fake().make_stream(0);
  const std::vector<DeviceArray> leaves{{reinterpret_cast<CUdeviceptr>(b.data()), 4000}};
  part = staging_.Start(other_stream, site_, 0, 1, leaves);
  EXPECT_EQ(part->memory()[0], memory);
  Fake().synchronize(other_stream);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  forward.End();
  AwaitAll(*part);
  Fake().synchronize(stream_);
  EXPECT_EQ(a, std::vector<float>(1000, 2));
  EXPECT_EQ(static_cast<float*>(memory)[999], 100);
  driver_.StreamDestroy(other_stream);
}

TEST_F(StagingTest, aSharedBlockIsUsedAgainOnlyBehindTheCopiesOfAllGpus) {
  Staging other{driver_, 1};
  SharedBlocks blocks(driver_, {staging_.context(), other.context()});
  const CUstream other_stream = Fake().make_stream(1);
  auto &a = Array(1000, 1), &b = Array(1000, 2), &c = Array(1000, 100), &d = Array(1000, 200);
  const auto start = [&](Staging& staging, CUstream stream, int32_t run_id, size_t gpu, size_t shard,
                         const std::vector<float>& leaf) {
    auto block = blocks.BlockFor(site_, run_id, shard, 2, 8000);
    return staging.Start(stream, site_, run_id, 1, {{reinterpret_cast<CUdeviceptr>(leaf.data()), 4000}},
                         SliceInBlock{std::move(block), gpu, shard * 4000});
  };
  auto one = start(staging_, stream_, 1, 0, 0, a), two = start(other, other_stream, 1, 1, 1, b);
  auto* const memory = static_cast<float*>(one->memory()[0]);
  EXPECT_EQ(two->memory()[0], memory + 1000);
  Sum(*one, 2);
  Sum(*two, 3);
  Blocker forward(other_stream);
  EXPECT_FALSE(staging_.Take(1)->CopyBack(stream_, Never));
  EXPECT_FALSE(other.Take(1)->CopyBack(other_stream, Never));
  one.reset();
  two.reset();
  ASSERT_TRUE(Eventually([&] { return blocks.pool().bytes_in_use() == 0; }));
  // The next sum has its shards the other way round, so each GPU writes where the other one still reads.
  one = start(staging_, stream_, 2, 0, 1, c);
  two = start(other, other_stream, 2, 1, 0, d);
  EXPECT_EQ(two->memory()[0], memory);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  forward.End();
  AwaitAll(*one);
  AwaitAll(*two);
  Fake().synchronize(stream_);
  Fake().synchronize(other_stream);
  EXPECT_EQ(a, std::vector<float>(1000, 2));
  EXPECT_EQ(b, std::vector<float>(1000, 6));
  EXPECT_EQ(memory[0], 200);
  EXPECT_EQ(memory[1999], 100);
  one.reset();
  two.reset();
  staging_.Take(1).reset();
  other.Take(1).reset();
  ASSERT_TRUE(Eventually([&] { return blocks.pool().bytes_in_use() == 0; }));
  driver_.StreamDestroy(other_stream);
}

TEST_F(StagingTest, sumsGoOnWhileIdleMemoryWaitsForTheGpu) {
  auto &a = Array(1000, 1), &b = Array(1, 1);
  {
    Blocker backward(stream_);
    Start(1, {&a}, site_).reset();
    staging_.Take(1).reset();
    ASSERT_TRUE(AllIsBack());
    std::thread releasing([&] { staging_.ReleaseIdle(); });  // waits for the copy, which waits for `backward`
    EXPECT_TRUE(Eventually([&] { return staging_.pool().pinned_bytes() == 0; }));
    EXPECT_NE(Start(2, {&b}, site_), nullptr);
    EXPECT_EQ(Fake().pinned_bytes(), 2 * 4096);
    backward.End();
    releasing.join();
  }
  EXPECT_EQ(Fake().pinned_bytes(), 4096);
  staging_.Take(2).reset();
}

TEST_F(StagingTest, gpusOfOneSumDontWaitForEachOther) {
  Staging other{driver_, 1};
  SharedBlocks blocks(driver_, {staging_.context(), other.context()});
  const CUstream other_stream = Fake().make_stream(1);
  auto &a = Array(1000, 1), &b = Array(1000, 2);
  for (int32_t run_id = 0; run_id < 3; ++run_id) {
    const auto start = [&](Staging& staging, CUstream stream, size_t shard, const std::vector<float>& leaf) {
      return staging.Start(stream, site_, run_id, 1, {{reinterpret_cast<CUdeviceptr>(leaf.data()), 4000}},
                           SliceInBlock{blocks.BlockFor(site_, run_id, shard, 2, 8000), shard, shard * 4000});
    };
    const bool first = run_id % 2 == 0;
    Blocker backward(first ? other_stream : stream_);
    std::shared_ptr<StagedSum> one, two;
    if (!first) one = start(staging_, stream_, 0, a);
    two = start(other, other_stream, 1, b);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (first) one = start(staging_, stream_, 0, a);
    AwaitAll(first ? *one : *two);  // while the other one's arrays aren't there yet
    backward.End();
    Sum(*one, 2);
    Sum(*two, 2);
    EXPECT_FALSE(staging_.Take(1)->CopyBack(stream_, Never));
    EXPECT_FALSE(other.Take(1)->CopyBack(other_stream, Never));
    one.reset();
    two.reset();
    ASSERT_TRUE(Eventually([&] { return blocks.pool().bytes_in_use() == 0; }));
    Fake().synchronize(stream_);
    Fake().synchronize(other_stream);
  }
  EXPECT_EQ(a, std::vector<float>(1000, 8));
  EXPECT_EQ(b, std::vector<float>(1000, 16));
  EXPECT_EQ(blocks.pool().pinned_bytes(), 8192);
  driver_.StreamDestroy(other_stream);
}

TEST_F(StagingTest, failuresOfTheDriverHaveNames_andLeaveNothingBehind) {
  auto &a = Array(1000, 1), &b = Array(1000, 2);
  for (const char* symbol : {"cuMemHostAlloc", "cuEventRecord", "cuStreamWaitEvent", "cuMemcpyDtoHAsync_v2"}) {
    for (const int after : {0, 1}) {
      if (after == 1 && symbol == std::string("cuEventRecord")) continue;  // then nobody knows when the copies are over
      Fake().fail(symbol, kFakeOutOfMemory, after);
      const std::string error = ErrorOf([&] {
        const auto part = Start(1, {&a, &b}, site_);
        const auto other = Start(2, {&a, &b}, std::make_shared<int>());  // a second allocation
        AwaitAll(*part);
        AwaitAll(*other);
      });
      EXPECT_NE(error.find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos) << symbol << ": " << error;
      for (const CUdeviceptr token : {1, 2}) staging_.Take(token);
      EXPECT_TRUE(AllIsBack());
      Fake().fail(symbol, 0, 0);
      EXPECT_EQ(staging_.pending_count(), 0);
      staging_.ReleaseIdle();
      EXPECT_EQ(Fake().pinned_bytes(), 0);
    }
  }
  const auto part = Start(1, {&a}, site_);
  Fake().fail("cuEventSynchronize", kFakeLaunchFailed, 0);
  EXPECT_NE(ErrorOf([&] { part->AwaitMore(0); }).find("CUDA_ERROR_LAUNCH_FAILED"), std::string::npos);
  Fake().fail("cuEventSynchronize", 0, 0);
  Sum(*part, 2);
  Fake().fail("cuMemcpyHtoDAsync_v2", kFakeLaunchFailed, 0);
  EXPECT_NE(ErrorOf([&] { part->CopyBack(stream_, Never); }).find("CUDA_ERROR_LAUNCH_FAILED"), std::string::npos);
  Fake().fail("cuMemcpyHtoDAsync_v2", 0, 0);
}

TEST_F(StagingTest, aGpuThatFails_endsAllWaits_andNothingIsWrittenToItsArrays) {
  auto& a = Array(1000, 1);
  const auto copied = Start(1, {&a}, site_);
  Sum(*copied, 2);
  Blocker backward(stream_);
  const auto waiting = Start(2, {&a}, std::make_shared<int>());
  std::string awaited;
  std::thread worker([&] { awaited = ErrorOf([&] { AwaitAll(*waiting); }); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  Fake().break_context(0, kFakeLaunchFailed);
  worker.join();  // though the kernel before the copy never comes to its end
  const std::string started = ErrorOf([&] { Start(3, {&a}, std::make_shared<int>()); });
  const std::string copied_back = ErrorOf([&] { staging_.Take(1)->CopyBack(stream_, Never); });
  backward.End();
  Fake().synchronize(stream_);
  Fake().break_context(0, 0);
  for (const std::string& error : {awaited, started, copied_back}) {
    EXPECT_NE(error.find("CUDA_ERROR_LAUNCH_FAILED"), std::string::npos) << error;
  }
  EXPECT_EQ(a, std::vector<float>(1000, 1));
}

TEST_F(StagingTest, aStreamOfAnotherGpuIsRefused) {
  auto& a = Array(1, 1);
  const CUstream elsewhere = Fake().make_stream(1);
  const std::vector<DeviceArray> leaves{{reinterpret_cast<CUdeviceptr>(a.data()), 4}};
  const std::string error = ErrorOf([&] { staging_.Start(elsewhere, site_, 0, 1, leaves); });
  EXPECT_NE(error.find("CUDA_ERROR_INVALID_HANDLE"), std::string::npos) << error;
  Fake().destroy_stream(elsewhere);
}

TEST_F(StagingTest, aGpuThatCantBeUsedIsLetGoOf) {
  const int retained = Fake().retained(1);
  Fake().fail("cuStreamCreate", kFakeOutOfMemory, 0);
  EXPECT_THROW(Staging(driver_, 1), CudaError);
  Fake().fail("cuStreamCreate", 0, 0);
  EXPECT_EQ(Fake().retained(1), retained);
  { const Staging staging(driver_, 1); }
  EXPECT_EQ(Fake().retained(1), retained);
}

TEST_F(StagingTest, waitsNoLongerThanTheSession) {
  auto& a = Array(1, 1);
  const auto part = Start(1, {&a}, site_);
  const auto failure = part->CopyBack(stream_, HostLost);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, "HostLostError");
  const Failure late{"ClosedError", "late"};
  part->Complete(&late);
  EXPECT_EQ(part->CopyBack(stream_, Never)->kind, "ClosedError");
}

}  // namespace
}  // namespace passing
