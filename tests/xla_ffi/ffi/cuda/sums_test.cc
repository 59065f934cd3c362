#include "ffi/cuda/sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../tests/xla_ffi/ffi/cuda/sums_fixture.h"

namespace passing {
namespace {

TEST_F(CudaSumsTest, sumsOfTwoDevices) {
  const auto site = MakeSiteOfTwoLeaves(7, 2);
  Device &one = MakeDevice(0, 1), &two = MakeDevice(1, 10);
  EXPECT_EQ(KindOf(sums_.Start(site, two.MakeCall(10))), "");
  EXPECT_EQ(KindOf(sums_.Start(site, one.MakeCall(10))), "");
  for (Device* device : {&one, &two}) {
    EXPECT_EQ(KindOf(sums_.Finish(device->MakeCall(10))), "");
    Fake().synchronize(device->stream);
    EXPECT_EQ(device->a, std::vector<float>(1000, 22));
    EXPECT_EQ(device->b, std::vector<float>(10, 26));
  }
  EXPECT_TRUE(AllIsReturned());
}

// The sum begins while parts of both devices' arrays are still to come.
TEST_F(CudaSumsTest, largeSumsGoInPieces) {
  const auto site = MakeSiteOfTwoLeaves(7, 2, kLarge);
  Device &one = MakeDevice(0, 1, kLarge), &two = MakeDevice(1, 10, kLarge);
  Fake().hold_copies(3);  // at least one of each device waits
  EXPECT_EQ(KindOf(sums_.Start(site, two.MakeCall(10))), "");
  EXPECT_EQ(KindOf(sums_.Start(site, one.MakeCall(10))), "");
  std::thread gpus([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    Fake().hold_copies(-1);
  });
  for (Device* device : {&one, &two}) {
    EXPECT_EQ(KindOf(sums_.Finish(device->MakeCall(10))), "");
    Fake().synchronize(device->stream);
    EXPECT_EQ(device->a, std::vector<float>(kLarge, 22));
    EXPECT_EQ(device->b, std::vector<float>(10, 26));
  }
  gpus.join();
  EXPECT_EQ(collective_->started_early(), 1);
  EXPECT_TRUE(AllIsReturned());
}

// Nobody waits for a GPU that stops when a part of the sum is there, and its memory stays until it goes on.
TEST_F(CudaSumsTest, aGpuThatStopsInTheMidst) {
  Device& device = MakeDevice(0, 1, kLarge);
  Fake().hold_copies(1);
  ASSERT_FALSE(sums_.Start(MakeSiteOfTwoLeaves(7, 1, kLarge), device.MakeCall(10)));
  while (collective_->count() == 0) std::this_thread::yield();
  rendezvous_.FailSession({"HostLostError", "rank 1"});
  collective_->FailAll({"HostLostError", "rank 1"});
  EXPECT_EQ(KindOf(sums_.Finish(device.MakeCall(10))), "HostLostError");
  EXPECT_GT(Fake().pinned_bytes(), 0);
  Fake().hold_copies(-1);
  EXPECT_TRUE(AllIsReturned());
}

TEST_F(CudaSumsTest, failuresInTheMidstOfTheCopiesFailTheSession) {
  for (const auto& [symbol, after] :
       {std::pair("cuMemcpyDtoHAsync_v2", 1), {"cuEventSynchronize", 1}, {"cuMemcpyHtoDAsync_v2", 1}}) {
    SCOPED_TRACE(symbol);
    Device& device = MakeDevice(0, 1, kLarge);
    Fake().fail(symbol, kFakeLaunchFailed, after);
    ASSERT_FALSE(sums_.Start(MakeSiteOfTwoLeaves(7, 1, kLarge), device.MakeCall(10)));
    const auto failure = sums_.Finish(device.MakeCall(10));
    Fake().fail(symbol, 0, 0);
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->kind, "AcceleratorError");
    EXPECT_NE(failure->message.find("CUDA_ERROR_LAUNCH_FAILED"), std::string::npos) << failure->message;
    EXPECT_EQ(session_failure(), "AcceleratorError");
    rendezvous_.Detach();
    pool_.reset();  // its tasks hold parts of sums
    pool_.emplace();
    Attach();
  }
  EXPECT_TRUE(AllIsReturned());
}

TEST_F(CudaSumsTest, startsAreQuickToReturn_andFinishWaits) {
  const auto site = MakeSiteOfTwoLeaves(7, 1);
  collective_->Hold();
  Device& device = MakeDevice(0, 1);
  ASSERT_FALSE(sums_.Start(site, device.MakeCall(10)));
  std::atomic<bool> finished = false;
  std::string kind;
  std::thread xla([&] {
    kind = KindOf(sums_.Finish(device.MakeCall(10)));
    finished = true;
  });
  while (collective_->count() == 0) std::this_thread::yield();
  EXPECT_FALSE(finished);
  collective_->FailAll({"HostLostError", "rank 1"});
  xla.join();
  EXPECT_EQ(kind, "HostLostError");
  EXPECT_EQ(device.a, std::vector<float>(1000, 1));  // nothing is written over the arrays of a sum that failed
  EXPECT_TRUE(AllIsReturned());
}

TEST_F(CudaSumsTest, sumsThatAreRefusedFailWhenTheyFinish) {
  rendezvous_.Detach();
  Device& device = MakeDevice(0, 1);
  EXPECT_EQ(KindOf(sums_.Start(MakeSiteOfTwoLeaves(7, 1), device.MakeCall(10))), "");
  EXPECT_EQ(KindOf(sums_.Finish(device.MakeCall(10))), "UsageError");
  EXPECT_TRUE(AllIsReturned());
}

TEST_F(CudaSumsTest, unknownTokensAndMovedArraysFailTheSession) {
  Device& device = MakeDevice(0, 1);
  EXPECT_EQ(KindOf(sums_.Finish(device.MakeCall(10))), "AcceleratorError");
  EXPECT_EQ(session_failure(), "AcceleratorError");
  rendezvous_.Detach();
  Attach();
  ASSERT_FALSE(sums_.Start(MakeSiteOfTwoLeaves(7, 1), device.MakeCall(11)));
  CudaCall moved = device.MakeCall(11);
  moved.leaves[1] += 4;
  EXPECT_EQ(KindOf(sums_.Finish(moved)), "AcceleratorError");
  EXPECT_EQ(session_failure(), "AcceleratorError");
  EXPECT_EQ(device.a, std::vector<float>(1000, 1));
  EXPECT_TRUE(AllIsReturned());
}

TEST_F(CudaSumsTest, aGpuThatNeverComesToAnEndHoldsNobodyBack) {
  Device& device = MakeDevice(0, 1);
  std::atomic<bool> ended = false;
  Fake().run(
      device.stream, [](void* ended) { static_cast<std::atomic<bool>*>(ended)->wait(false); }, &ended);
  ASSERT_FALSE(sums_.Start(MakeSiteOfTwoLeaves(7, 1), device.MakeCall(10)));
  std::thread others([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    rendezvous_.FailSession({"DeadlineExceededError", "rank 0 didn't come"});
  });
  EXPECT_EQ(KindOf(sums_.Finish(device.MakeCall(10))), "DeadlineExceededError");
  others.join();
  EXPECT_GT(Fake().pinned_bytes(), 0);  // the copy may still come
  ended = true;
  ended.notify_all();
  EXPECT_TRUE(AllIsReturned());
}

TEST_F(CudaSumsTest, shutdownEndsSums) {
  Device& one = MakeDevice(0, 1);
  ASSERT_FALSE(sums_.Start(MakeSiteOfTwoLeaves(7, 2), one.MakeCall(10)));  // the other device never comes
  rendezvous_.Detach();
  EXPECT_EQ(KindOf(sums_.Finish(one.MakeCall(10))), "ClosedError");
  EXPECT_TRUE(AllIsReturned());
}

TEST_F(CudaSumsTest, failuresOfTheDriverFailTheSessionByName) {
  for (const char* symbol : {"cuDeviceGet", "cuStreamCreate", "cuMemHostAlloc", "cuMemcpyDtoHAsync_v2",
                             "cuEventSynchronize", "cuMemcpyHtoDAsync_v2", "cuMemsetD32Async"}) {
    SCOPED_TRACE(symbol);
    CudaSums sums(rendezvous_, FAKE_CUDA_DRIVER);
    Device &one = MakeDevice(0, 1), &two = MakeDevice(1, 1);
    const auto site = MakeSiteOfTwoLeaves(7, 2);
    std::optional<Failure> failed, other;
    if (std::string(symbol) != "cuMemsetD32Async") other = sums.Start(site, two.MakeCall(10));
    ASSERT_FALSE(other);
    Fake().fail(symbol, kFakeLaunchFailed, 0);
    if (std::string(symbol) == "cuMemsetD32Async") {
      failed = sums.Write(0, one.stream, reinterpret_cast<CUdeviceptr>(&one.token), 3);
    } else {
      failed = sums.Start(site, one.MakeCall(10));
      if (!failed) failed = sums.Finish(one.MakeCall(10));
      other = sums.Finish(two.MakeCall(10));
    }
    Fake().fail(symbol, 0, 0);
    ASSERT_TRUE(failed);
    EXPECT_EQ(failed->kind, "AcceleratorError");
    EXPECT_NE(failed->message.find("CUDA_ERROR_LAUNCH_FAILED"), std::string::npos) << failed->message;
    EXPECT_EQ(session_failure(), "AcceleratorError");
    EXPECT_EQ(KindOf(other), std::string(symbol) == "cuMemsetD32Async" ? "" : "AcceleratorError");
    rendezvous_.Detach();
    pool_.reset();  // its tasks hold parts of sums
    pool_.emplace();
    sums.ReleaseIdle();  // also of GPUs that weren't found
    Attach();
  }
  EXPECT_TRUE(AllIsReturned());
}

TEST_F(CudaSumsTest, withoutADriverThereIsAnError) {
  CudaSums sums(rendezvous_, "libnocuda.so.1");
  Device& device = MakeDevice(0, 1);
  const auto failure = sums.Start(MakeSiteOfTwoLeaves(7, 1), device.MakeCall(10));
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, "AcceleratorError");
  EXPECT_NE(failure->message.find("libnocuda.so.1"), std::string::npos);
  EXPECT_EQ(KindOf(sums.Finish(device.MakeCall(10))), "AcceleratorError");
}

TEST_F(CudaSumsTest, aThousandSumsOfTwoDevicesAtOnce) {
  constexpr uint64_t kSeed = 29;
  SCOPED_TRACE(kSeed);
  Fake().seed(kSeed);
  constexpr int kSteps = 125, kSites = 8;
  std::vector<std::shared_ptr<SumSite>> sites;
  for (int i = 0; i < kSites; ++i) sites.push_back(MakeSiteOfTwoLeaves(100 + i, 2));
  std::atomic<int> wrong = 0;
  const auto train = [&](int32_t ordinal) {
    std::mt19937_64 random(kSeed + ordinal);
    std::vector<Device*> layers;
    for (int i = 0; i < kSites; ++i) layers.push_back(&MakeDevice(ordinal, 0));
    for (int step = 1; step <= kSteps; ++step) {
      for (int i = 0; i < kSites; ++i) {
        layers[i]->a.assign(1000, static_cast<float>(step + i + ordinal));
        wrong += sums_.Start(sites[i], layers[i]->MakeCall(step)).has_value();
      }
      std::vector<int> order;
      for (int i = 0; i < kSites; ++i) order.push_back(i);
      std::shuffle(order.begin(), order.end(), random);
      for (const int i : order) wrong += sums_.Finish(layers[i]->MakeCall(step)).has_value();
      for (int i = 0; i < kSites; ++i) {
        Fake().synchronize(layers[i]->stream);
        wrong += layers[i]->a != std::vector<float>(1000, 2.f * static_cast<float>(2 * (step + i) + 1));
      }
    }
  };
  std::thread other([&] { train(1); });
  train(0);
  other.join();
  EXPECT_EQ(wrong, 0);
  // The thread of each device that enqueues copies may still hold one of the last step when the next one begins.
  EXPECT_LE(Fake().pinned_bytes(), 2 * (kSites + 1) * PinnedPool::SizeClass(4096 + 256));
  EXPECT_TRUE(AllIsReturned());
}

}  // namespace
}  // namespace passing
