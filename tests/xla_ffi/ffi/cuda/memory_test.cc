#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../tests/xla_ffi/ffi/cuda/sums_fixture.h"
#include "ffi/cuda/sums.h"

namespace passing {
namespace {

using CudaMemoryTest = CudaSumsTest;

TEST_F(CudaMemoryTest, needsAreThoseOfEachSumAndGroup) {
  sums_.SetDevices({{.ordinal = 0, .id = 30, .index = 0}, {.ordinal = 1, .id = 31, .index = 1}});
  const CudaSpec whole(SumSpec{.leaf_elements = {1000, 10}});
  CudaSpec slices(SumSpec{.dtype = DType::kBFloat16, .leaf_elements = {13}, .local_member_count = 2});
  slices.slice_elements = 7;
  slices.gpus = {0, 1, 2};
  slices.groups = {5, 6, 7};  // the last one is another process's
  slices.members = slices.slices = {0, 0, 0};
  CudaSpec by_id = slices;
  by_id.devices = "30,31";
  by_id.gpus = {30, 31, 32};
  by_id.groups = {5, 5, 6};
  Executable executable;
  for (const CudaSpec& spec : {whole, slices, by_id}) executable.sums.push_back(std::make_shared<CudaSpec>(spec));
  const PinnedNeeds needs = sums_.NeedsOf(executable);
  EXPECT_EQ(needs.of_each_device, std::vector<size_t>{StagedSum::BlockBytes({4000, 40})});
  EXPECT_EQ(needs.shared, std::vector<size_t>(3, 2 * 7 * sizeof(float)));  // bfloat16 is added up as float32
}

// Pinning memory beside NCCL's kernels may wait for ever.
TEST_F(CudaMemoryTest, whatIsReservedIsNotPinnedInTheMidst) {
  constexpr uint64_t kSeed = 37;
  SCOPED_TRACE(kSeed);
  Fake().seed(kSeed);
  sums_.SetDevices({{.ordinal = 0}, {.ordinal = 1}});
  constexpr int kSteps = 50;
  const std::vector<std::shared_ptr<SumSite>> whole{MakeSiteOfTwoLeaves(100, 2), MakeSiteOfTwoLeaves(101, 2)};
  const std::vector<std::shared_ptr<SumSite>> by_slices{MakeSiteOfSlices(102), MakeSiteOfSlices(103)};
  Executable executable;
  for (const auto& site : whole) executable.sums.push_back(site->spec);
  for (const auto& site : by_slices) {
    auto& spec = static_cast<CudaSpec&>(ChangeSpec(site));
    spec.gpus = {-1};
    spec.groups = spec.members = spec.slices = {0};
    executable.sums.push_back(site->spec);
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
TEST_F(CudaMemoryTest, reservingKeepsTheCallersContext) {
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

TEST_F(CudaMemoryTest, whatCantBeReservedIsSaidByTheSum) {
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

TEST_F(CudaMemoryTest, executionsThatBreakOffLeaveNothingBehind) {
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
TEST_F(CudaMemoryTest, executionsOfWhichASumFailsLeaveNothingBehind) {
  sums_.SetDevices({{.ordinal = 0}, {.ordinal = 1}});
  const std::vector<std::shared_ptr<SumSite>> sites{MakeSiteOfSlices(7), MakeSiteOfSlices(8), MakeSiteOfSlices(9)};
  PinnedNeeds needs;
  for (const auto& site : sites) needs.shared.push_back(2 * CudaSpecOf(*site).slice_elements * sizeof(float));
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

}  // namespace
}  // namespace passing
