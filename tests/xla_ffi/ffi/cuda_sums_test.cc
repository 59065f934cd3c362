#include "ffi/cuda_sums.h"

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

namespace passing {
namespace {

// Sums what is there at once, as if another host had sent the same, or keeps the sums until the test says what becomes
// of them.
class TestCollective : public Collective {
 public:
  uint32_t world_size() const override { return 2; }
  void Start(Sum sum) override {
    std::lock_guard lock(mutex_);
    if (sum.ready_elements < sum.shape->bytes() / sizeof(float)) ++started_early_;
    sums_.push_back({std::move(sum)});
    GoOn(std::prev(sums_.end()), sums_.back().sum.ready_elements);
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
    const size_t leaf_count = sum.shape->leaf_elements.size();
    uint64_t leaf_begin = 0;
    for (size_t leaf = 0; leaf < leaf_count; leaf_begin += sum.shape->leaf_elements[leaf++]) {
      for (uint64_t i = 0; i < sum.shape->leaf_elements[leaf]; ++i) {
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
    if (sum.written) sum.written(under_way->summed);
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

std::shared_ptr<SumSite> MakeSiteOfTwoLeaves(uint64_t hash, uint32_t members, size_t size = 1000) {
  const auto site = MakeSite(hash, members);
  site->shape = std::make_shared<SumShape>(SumShape{"train.py:41", DType::kFloat32, {size, 10}, members});
  return site;
}

constexpr size_t kLarge = 5 * PinnedBlock::kPieceBytes / sizeof(float) / 2;  // two and a half pieces

// Each of two devices brings half of the elements, which they added up before, in its array `a`: as many as there are
// with one more, which belongs to no leaf.
std::shared_ptr<SumSite> MakeSiteOfSlices(uint64_t hash, size_t slice_elements = 1000) {
  const auto site = MakeSite(hash, 1);
  site->shape =
      std::make_shared<SumShape>(SumShape{"train.py:41", DType::kFloat32, {700, 2 * slice_elements - 701}, 1});
  site->slice_count = 2;
  site->slice_elements = slice_elements;
  return site;
}

CudaCall SliceOf(Device& device, int32_t run_id) {
  CudaCall call = device.MakeCall(run_id);
  call.slice = call.member;
  call.leaves.resize(1);
  return call;
}

std::string KindOf(const std::optional<Failure>& failure) { return failure ? failure->kind : ""; }

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

TEST_F(CudaSumsTest, slicesOfTwoDevices) {
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

TEST_F(CudaSumsTest, slicesOfDifferentExecutionsDontMeet) {
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

TEST_F(CudaSumsTest, largeSlicesGoInPieces) {
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
  EXPECT_EQ(KindOf(sums_.Finish(device.MakeCall(10))), "NotInitializedError");
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

TEST_F(CudaSumsTest, executionsThatBreakOffLeaveNothingBehind) {
  const auto site = MakeSiteOfTwoLeaves(7, 1);
  Device& device = MakeDevice(0, 1);
  for (int32_t run_id = 1; run_id <= 100; ++run_id) {
    Device& elsewhere = MakeDevice(0, 1);  // the token, too
    ASSERT_FALSE(sums_.Start(site, (run_id % 2 ? device : elsewhere).MakeCall(run_id)));
    // XLA aborts; the sum itself goes on, as other hosts take part in it.
  }
  Device& last = MakeDevice(0, 1);
  ASSERT_FALSE(sums_.Start(site, last.MakeCall(101)));
  EXPECT_EQ(KindOf(sums_.Finish(last.MakeCall(101))), "");
  Fake().synchronize(last.stream);
  EXPECT_EQ(last.a, std::vector<float>(1000, 2));
  EXPECT_TRUE(AllIsReturned());
}

// As XLA breaks them off, too; the blocks of those that aren't finished are the next execution's.
TEST_F(CudaSumsTest, executionsOfWhichASumFailsLeaveNothingBehind) {
  sums_.SetDevices({{.ordinal = 0}, {.ordinal = 1}});
  const std::vector<std::shared_ptr<SumSite>> sites{MakeSiteOfSlices(7), MakeSiteOfSlices(8), MakeSiteOfSlices(9)};
  PinnedNeeds needs;
  for (const auto& site : sites) needs.shared.push_back(2 * site->slice_elements * sizeof(float));
  collective_->Hold();
  std::vector<std::vector<CudaCall>> calls(2);  // by ordinal
  for (const int32_t ordinal : {0, 1}) {
    for (size_t i = 0; i < sites.size(); ++i) calls[ordinal].push_back(SliceOf(MakeDevice(ordinal, 1), 10));
    sums_.Reserve(needs, ordinal);
  }
  for (size_t i = 0; i < sites.size(); ++i) {
    for (const auto& of_device : calls) ASSERT_FALSE(sums_.Start(sites[i], of_device[i]));
  }
  const auto fail = [&](size_t finished) {
    const Failure lost{"HostLostError", "rank 1"};
    while (collective_->count() < sites.size()) std::this_thread::yield();
    rendezvous_.FailSession(lost);
    collective_->FailAll(lost);
    for (const auto& of_device : calls) EXPECT_EQ(KindOf(sums_.Finish(of_device[finished])), "HostLostError");
  };
  fail(0);
  rendezvous_.Detach();
  pool_.reset();  // its tasks hold parts of sums
  pool_.emplace();
  Attach();
  const size_t pinned = Fake().pinned_bytes();
  for (const int32_t ordinal : {0, 1}) sums_.Reserve(needs, ordinal);
  Fake().fail("cuMemHostAlloc", kFakeOutOfMemory, 0);
  for (size_t i = 0; i < sites.size(); ++i) {
    for (auto& of_device : calls) {
      of_device[i].run_id = 11;
      EXPECT_EQ(KindOf(sums_.Start(sites[i], of_device[i])), "");
    }
  }
  Fake().fail("cuMemHostAlloc", 0, 0);
  EXPECT_EQ(Fake().pinned_bytes(), pinned);
  fail(2);
  EXPECT_TRUE(AllIsReturned());
}

// Pinning memory beside NCCL's kernels may wait for ever.
TEST_F(CudaSumsTest, whatIsReservedIsNotPinnedInTheMidst) {
  constexpr uint64_t kSeed = 37;
  SCOPED_TRACE(kSeed);
  Fake().seed(kSeed);
  sums_.SetDevices({{.ordinal = 0}, {.ordinal = 1}});
  constexpr int kSteps = 50;
  const std::vector<std::shared_ptr<SumSite>> whole{MakeSiteOfTwoLeaves(100, 2), MakeSiteOfTwoLeaves(101, 2)};
  const std::vector<std::shared_ptr<SumSite>> by_slices{MakeSiteOfSlices(102), MakeSiteOfSlices(103)};
  Executable executable;
  for (const auto& site : whole) {
    executable.sums.push_back(
        std::make_shared<SumSpec>(SumSpec{.leaf_elements = site->shape->leaf_elements, .local_member_count = 2}));
  }
  for (const auto& site : by_slices) {
    executable.sums.push_back(std::make_shared<SumSpec>(SumSpec{.leaf_elements = site->shape->leaf_elements,
                                                                .local_member_count = 2,
                                                                .slice_elements = site->slice_elements,
                                                                .gpus = {-1},
                                                                .gpu_groups = {0},
                                                                .gpu_members = {0},
                                                                .gpu_slices = {0}}));
  }
  const PinnedNeeds needs = sums_.NeedsOf(executable);
  const auto pinned = 2 * 2 * PinnedPool::SizeClass(4096 + 256) + 2 * PinnedPool::SizeClass(8000);
  for (const int32_t ordinal : {0, 1, 0}) sums_.Reserve(needs, ordinal);
  EXPECT_EQ(Fake().pinned_bytes(), pinned);
  Fake().fail("cuMemHostAlloc", kFakeOutOfMemory, 0);
  std::mutex mutex;
  std::set<std::string> failures;
  const auto train = [&](int32_t ordinal) {
    std::vector<std::pair<std::shared_ptr<SumSite>, CudaCall>> calls;
    for (const auto& site : whole) calls.emplace_back(site, MakeDevice(ordinal, 1).MakeCall(0));
    for (const auto& site : by_slices) calls.emplace_back(site, SliceOf(MakeDevice(ordinal, 1), 0));
    for (int step = 1; step <= kSteps; ++step) {
      for (auto& [site, call] : calls) {
        call.run_id = step;
        const auto failure = sums_.Start(site, call);
        std::lock_guard lock(mutex);
        if (failure) failures.insert(failure->message);
      }
      for (const auto& [site, call] : calls) {
        const auto failure = sums_.Finish(call);
        std::lock_guard lock(mutex);
        if (failure) failures.insert(failure->message);
      }
    }
  };
  std::thread other([&] { train(1); });
  train(0);
  other.join();
  Fake().fail("cuMemHostAlloc", 0, 0);
  EXPECT_EQ(failures, std::set<std::string>{});
  EXPECT_EQ(Fake().pinned_bytes(), pinned);
  EXPECT_TRUE(AllIsReturned());
}

// XLA has made a context current, and goes on in it.
TEST_F(CudaSumsTest, reservingKeepsTheCallersContext) {
  sums_.SetDevices({{.ordinal = 0}, {.ordinal = 1}, {.ordinal = 2}});
  MakeDevice(0, 1);
  const CudaDriver driver(FAKE_CUDA_DRIVER);
  CUcontext before = nullptr, after = nullptr;
  driver.ContextGetCurrent(&before);
  const PinnedNeeds needs{.of_each_device = {4000}, .shared = {8000}};
  sums_.Reserve(needs, 1);
  driver.ContextGetCurrent(&after);
  EXPECT_NE(before, nullptr);
  EXPECT_EQ(after, before);
  EXPECT_TRUE(AllIsReturned());
}

TEST_F(CudaSumsTest, needsAreThoseOfEachSumAndGroup) {
  sums_.SetDevices({{.ordinal = 0, .id = 30, .index = 0}, {.ordinal = 1, .id = 31, .index = 1}});
  SumSpec whole{.leaf_elements = {1000, 10}};
  SumSpec slices{.dtype = DType::kBFloat16, .leaf_elements = {13}, .local_member_count = 2, .slice_elements = 7};
  slices.gpus = {0, 1, 2};
  slices.gpu_groups = {5, 6, 7};  // the last one is another process's
  slices.gpu_members = slices.gpu_slices = {0, 0, 0};
  SumSpec by_id = slices;
  by_id.devices = "30,31";
  by_id.gpus = {30, 31, 32};
  by_id.gpu_groups = {5, 5, 6};
  Executable executable;
  for (const SumSpec& spec : {whole, slices, by_id}) executable.sums.push_back(std::make_shared<SumSpec>(spec));
  const PinnedNeeds needs = sums_.NeedsOf(executable);
  EXPECT_EQ(needs.of_each_device, std::vector<size_t>{StagedSum::BlockBytes({4000, 40})});
  EXPECT_EQ(needs.shared, std::vector<size_t>(3, 2 * 7 * sizeof(float)));  // bfloat16 is added up as float32
}

TEST_F(CudaSumsTest, whatCantBeReservedIsSaidByTheSum) {
  Device& device = MakeDevice(0, 1);
  Fake().fail("cuMemHostAlloc", kFakeOutOfMemory, 0);
  const PinnedNeeds needs{.of_each_device = {4096 + 256}, .shared = {}};
  sums_.Reserve(needs, 0);
  EXPECT_EQ(session_failure(), "");
  EXPECT_EQ(KindOf(sums_.Start(MakeSiteOfTwoLeaves(7, 1), device.MakeCall(10))), "AcceleratorError");
  Fake().fail("cuMemHostAlloc", 0, 0);
  EXPECT_EQ(session_failure(), "AcceleratorError");
  EXPECT_TRUE(AllIsReturned());
}

TEST_F(CudaSumsTest, sumsOfSlicesWithoutGrowth) {
  constexpr uint64_t kSeed = 31;
  SCOPED_TRACE(kSeed);
  Fake().seed(kSeed);
  sums_.SetDevices({{.ordinal = 0}, {.ordinal = 1}});
  constexpr int kSteps = 100, kSites = 4;
  std::vector<std::shared_ptr<SumSite>> sites;
  for (int i = 0; i < kSites; ++i) sites.push_back(MakeSiteOfSlices(100 + i));
  std::atomic<int> wrong = 0;
  const auto train = [&](int32_t ordinal) {
    std::vector<Device*> layers;
    for (int i = 0; i < kSites; ++i) layers.push_back(&MakeDevice(ordinal, 0));
    for (int step = 1; step <= kSteps; ++step) {
      for (int i = 0; i < kSites; ++i) {
        layers[i]->a.assign(1000, static_cast<float>(step + i + ordinal));
        wrong += sums_.Start(sites[i], SliceOf(*layers[i], step)).has_value();
      }
      for (int i = kSites - 1; i >= 0; --i) {
        wrong += sums_.Finish(SliceOf(*layers[i], step)).has_value();
        Fake().synchronize(layers[i]->stream);
        for (size_t j = 0; j < 999; ++j) wrong += layers[i]->a[j] != 2 * static_cast<float>(step + i + ordinal);
      }
    }
  };
  std::thread other([&] { train(1); });
  train(0);
  other.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(Fake().pinned_bytes(), 2 * kSites * PinnedPool::SizeClass(8000));
  EXPECT_TRUE(AllIsReturned());
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
