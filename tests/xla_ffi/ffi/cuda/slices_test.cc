#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "../tests/xla_ffi/ffi/cuda/sums_fixture.h"
#include "ffi/cuda/sums.h"

namespace passing {
namespace {

using CudaSlicesTest = CudaSumsTest;

TEST_F(CudaSlicesTest, slicesOfTwoDevices) {
  sums_.SetDevices({{.ordinal = 1}, {.ordinal = 0}});
  const auto site = MakeSiteOfSlices(7);
  Device &one = MakeDevice(0, 0), &two = MakeDevice(1, 0);
  std::iota(one.a.begin(), one.a.end(), 0.f);
  std::iota(two.a.begin(), two.a.end(), 1000.f);
  EXPECT_EQ(KindOf(sums_.Start(site, SliceOf(two, 10))), "");
  EXPECT_EQ(KindOf(sums_.Start(site, SliceOf(one, 10))), "");
  for (Device* device : {&one, &two}) {
    EXPECT_EQ(KindOf(sums_.Finish(SliceOf(*device, 10))), "");
    Fake().synchronize(device->stream);
  }
  for (size_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(one.a[i], 2 * i);
    EXPECT_EQ(two.a[i], i == 999 ? 1999 : 2 * (1000 + i));
  }
  EXPECT_EQ(Fake().pinned_bytes(), PinnedPool::SizeClass(8000));
  EXPECT_TRUE(AllIsReturned());
}

TEST_F(CudaSlicesTest, slicesOfDifferentExecutionsDontMeet) {
  sums_.SetDevices({{.ordinal = 0}, {.ordinal = 1}});
  const auto site = MakeSiteOfSlices(7);
  Device &one = MakeDevice(0, 1), &two = MakeDevice(1, 10);
  EXPECT_EQ(KindOf(sums_.Start(site, SliceOf(one, 10))), "");  // breaks off
  EXPECT_EQ(KindOf(sums_.Start(site, SliceOf(two, 11))), "");
  EXPECT_EQ(KindOf(sums_.Finish(SliceOf(two, 11))), "ProgramMismatchError");
  EXPECT_EQ(session_failure(), "ProgramMismatchError");
  EXPECT_EQ(two.a, std::vector<float>(1000, 10));
  rendezvous_.Detach();
  Attach();
  EXPECT_EQ(KindOf(sums_.Start(site, SliceOf(two, 12))), "");
  EXPECT_EQ(KindOf(sums_.Start(site, SliceOf(one, 12))), "");
  for (Device* device : {&one, &two}) {
    EXPECT_EQ(KindOf(sums_.Finish(SliceOf(*device, 12))), "");
    Fake().synchronize(device->stream);
  }
  EXPECT_EQ(one.a, std::vector<float>(1000, 2));
  EXPECT_EQ(two.a[0], 20);
  EXPECT_TRUE(AllIsReturned());
}

TEST_F(CudaSlicesTest, largeSlicesGoInPieces) {
  sums_.SetDevices({{.ordinal = 0}, {.ordinal = 1}});
  const auto site = MakeSiteOfSlices(7, kLarge);
  Device &one = MakeDevice(0, 0, kLarge), &two = MakeDevice(1, 0, kLarge);
  std::vector<float> expected(2 * kLarge);
  for (int32_t run_id = 10; run_id < 14; ++run_id) {
    const auto offset = static_cast<float>(run_id);
    std::iota(one.a.begin(), one.a.end(), offset);
    std::iota(two.a.begin(), two.a.end(), offset + kLarge);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = 2 * (offset + static_cast<float>(i));
    expected.back() /= 2;  // belongs to no leaf
    Fake().hold_copies(run_id % 4);
    for (Device* device : run_id % 2 ? std::array{&one, &two} : std::array{&two, &one}) {
      EXPECT_EQ(KindOf(sums_.Start(site, SliceOf(*device, run_id))), "");
    }
    std::thread gpus([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      Fake().hold_copies(-1);
    });
    for (Device* device : {&one, &two}) {
      EXPECT_EQ(KindOf(sums_.Finish(SliceOf(*device, run_id))), "");
      Fake().synchronize(device->stream);
    }
    gpus.join();
    EXPECT_TRUE(std::equal(one.a.begin(), one.a.end(), expected.begin()));
    EXPECT_TRUE(std::equal(two.a.begin(), two.a.end(), expected.begin() + kLarge));
  }
  EXPECT_EQ(collective_->started_early(), 4);
  EXPECT_TRUE(AllIsReturned());
}

}  // namespace
}  // namespace passing
