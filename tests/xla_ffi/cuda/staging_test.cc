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
#include "cuda/shared_blocks.h"

namespace passing {
namespace {

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

constexpr size_t kPieceFloats = PinnedBlock::kPieceBytes / sizeof(float);

std::optional<Failure> Never() { return std::nullopt; }
std::optional<Failure> HostLost() { return Failure{"HostLostError", "rank 1"}; }

template <typename Condition>
bool Eventually(const Condition& condition) {
  for (int i = 0; i < 5000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

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
    auto block = blocks.Join(site_, run_id, shard, 2, 8000);
    return staging.Start(stream, site_, run_id, 1, {{reinterpret_cast<CUdeviceptr>(leaf.data()), 4000}},
                         PlaceInBlock{std::move(block), gpu, shard * 4000});
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
                           PlaceInBlock{blocks.Join(site_, run_id, shard, 2, 8000), shard, shard * 4000});
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

// Each piece is there before the next one, wherever leaves end, and nothing behind it is read or needed.
TEST_F(StagingTest, piecesComeOneAfterTheOther) {
  auto &a = Array(kPieceFloats + 100, 1), &b = Array(7, 2), &c = Array(kPieceFloats, 3);
  Fake().hold_copies(1);
  const auto part = Start(1, {&a, &b, &c}, site_);
  EXPECT_EQ(part->AwaitMore(0), PinnedBlock::kPieceBytes);
  const auto* memory = static_cast<float*>(part->memory()[0]);
  EXPECT_EQ(std::vector<float>(memory, memory + kPieceFloats), std::vector<float>(kPieceFloats, 1));
  EXPECT_NE(memory[kPieceFloats], 1);
  Fake().hold_copies(-1);
  EXPECT_EQ(part->AwaitMore(PinnedBlock::kPieceBytes), 2 * PinnedBlock::kPieceBytes);
  EXPECT_EQ(memory[kPieceFloats + 99], 1);
  EXPECT_EQ(static_cast<float*>(part->memory()[1])[6], 2);
  EXPECT_EQ(static_cast<float*>(part->memory()[2])[kPieceFloats - 108], 3);
  EXPECT_EQ(part->AwaitMore(2 * PinnedBlock::kPieceBytes), BytesOf(*part));
  EXPECT_EQ(static_cast<float*>(part->memory()[2])[kPieceFloats - 1], 3);
  const Failure failure{"ClosedError", "the test is over"};
  part->Complete(&failure);
}

// Results go back before the sum is complete: whole pieces, also of a sum that fails later.
TEST_F(StagingTest, resultsGoBackAsTheyCome) {
  auto& a = Array(3 * kPieceFloats, 1);
  auto part = Start(1, {&a}, site_);
  void* const memory = part->memory()[0];
  AwaitAll(*part);
  Multiply(*part, 0, 2 * PinnedBlock::kPieceBytes, 5);
  part->OnWritten(2 * PinnedBlock::kPieceBytes - 4);
  Blocker forward(stream_);
  EXPECT_EQ(part->CopyBack(stream_, HostLost)->kind, "HostLostError");
  const Failure failure{"HostLostError", "rank 1"};
  part->Complete(&failure);
  staging_.Take(1);
  part.reset();
  ASSERT_TRUE(AllIsBack());
  // The next sum that has the block doesn't write over what is still to be copied.
  auto& b = Array(3 * kPieceFloats, 7);
  const CUstream other_stream = Fake().make_stream(0);
  const std::vector<DeviceArray> leaves{{reinterpret_cast<CUdeviceptr>(b.data()), b.size() * sizeof(float)}};
  part = staging_.Start(other_stream, site_, 0, 1, leaves);
  EXPECT_EQ(part->memory()[0], memory);
  Fake().synchronize(other_stream);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  forward.End();
  AwaitAll(*part);
  Fake().synchronize(stream_);
  EXPECT_EQ(std::vector<float>(a.begin(), a.begin() + kPieceFloats), std::vector<float>(kPieceFloats, 5));
  EXPECT_EQ(std::vector<float>(a.begin() + kPieceFloats, a.end()), std::vector<float>(2 * kPieceFloats, 1));
  EXPECT_EQ(static_cast<float*>(memory)[0], 7);
  part->Complete(&failure);
  driver_.StreamDestroy(other_stream);
}

// Whichever piece it is, and whoever notices it.
TEST_F(StagingTest, failuresInTheMidstOfTheCopies) {
  auto& a = Array(4 * kPieceFloats, 1);
  const auto fails = [](const auto& action) {
    return ErrorOf(action).find("CUDA_ERROR_LAUNCH_FAILED") != std::string::npos;
  };
  for (const int piece : {0, 1, 3}) {
    SCOPED_TRACE(piece);
    for (const char* symbol : {"cuMemcpyDtoHAsync_v2", "cuEventSynchronize"}) {
      SCOPED_TRACE(symbol);
      Fake().fail(symbol, kFakeLaunchFailed, piece);
      const auto part = Start(1, {&a}, site_);
      size_t there = 0;
      for (int i = 0; i < piece; ++i) there = part->AwaitMore(there);
      EXPECT_EQ(there, piece * PinnedBlock::kPieceBytes);
      EXPECT_TRUE(fails([&] { part->AwaitMore(there); }));
      part->OnWritten(there);
      if (std::string(symbol) == "cuMemcpyDtoHAsync_v2") {
        EXPECT_TRUE(fails([&] { part->CopyBack(stream_, Never); }));
      }
      const Failure failure{"AcceleratorError", "told"};
      part->Complete(&failure);
      EXPECT_EQ(part->CopyBack(stream_, Never)->kind, "AcceleratorError");
      Fake().fail(symbol, 0, 0);
    }
  }
  {
    const auto part = Start(1, {&a}, site_);
    AwaitAll(*part);
    part->OnWritten(PinnedBlock::kPieceBytes);
    Fake().fail("cuMemcpyHtoDAsync_v2", kFakeLaunchFailed, 1);
    const auto complete = [&] {
      part->Complete(nullptr);  // after the first piece
      return Never();
    };
    EXPECT_TRUE(fails([&] { part->CopyBack(stream_, complete); }));
    Fake().fail("cuMemcpyHtoDAsync_v2", 0, 0);
  }
  staging_.Take(1);
  EXPECT_TRUE(AllIsBack());
  Fake().synchronize(stream_);
  EXPECT_EQ(a, std::vector<float>(4 * kPieceFloats, 1));
}

// Large and small sums, of which each has its results before the next one begins, or all at once.
TEST_F(StagingTest, piecesBothWaysAtOnce) {
  constexpr uint64_t kSeed = 5;
  SCOPED_TRACE(kSeed);
  Fake().seed(kSeed);
  std::mt19937_64 random(kSeed);
  std::vector<std::shared_ptr<int>> sites;
  std::vector<std::vector<std::vector<float>*>> sums;
  for (int i = 0; i < 4; ++i) {
    sites.push_back(std::make_shared<int>());
    auto& leaves = sums.emplace_back();
    for (uint64_t leaf = 0; leaf <= random() % 5; ++leaf) {
      leaves.push_back(&Array(1 + random() % (random() % 2 == 0 ? 3000 : 2 * kPieceFloats), 0));
    }
  }
  for (int step = 1; step <= 8; ++step) {
    ASSERT_TRUE(AllIsBack());
    std::vector<std::shared_ptr<StagedSum>> parts;
    for (size_t i = 0; i < sums.size(); ++i) {
      for (auto* leaf : sums[i]) std::fill(leaf->begin(), leaf->end(), static_cast<float>(step + i));
      parts.push_back(Start(i + 1, sums[i], sites[i]));
    }
    std::vector<std::thread> transports;
    for (const auto& part : parts) transports.emplace_back([&part] { Sum(*part, 3); });
    for (size_t i = 0; i < sums.size(); ++i) ASSERT_FALSE(staging_.Take(i + 1)->CopyBack(stream_, Never));
    for (auto& transport : transports) transport.join();
    Fake().synchronize(stream_);
    for (size_t i = 0; i < sums.size(); ++i) {
      for (const auto* leaf : sums[i]) {
        ASSERT_EQ(*leaf, std::vector<float>(leaf->size(), 3 * static_cast<float>(step + i)));
      }
    }
  }
}

TEST_F(StagingTest, aSumThatIsThereWhenTheSessionFails_isTaken) {
  auto& a = Array(1, 1);
  const auto part = Start(1, {&a}, site_);
  AwaitAll(*part);
  EXPECT_FALSE(part->CopyBack(stream_, [&]() -> std::optional<Failure> {
    part->Complete(nullptr);  // the devices of a sum are told one after the other
    return Failure{"HostLostError", "rank 1"};
  }));
}

TEST_F(StagingTest, aThousandSumsWithoutGrowth) {
  constexpr uint64_t kSeed = 17;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  std::deque<std::vector<float>>& leaves = arrays_;
  std::vector<std::shared_ptr<int>> sites;
  for (int i = 0; i < 8; ++i) {
    leaves.emplace_back(100 + random() % 3000, 1.f);
    sites.push_back(std::make_shared<int>());
  }
  size_t handles = 0, pinned = 0;
  for (int step = 0; step < 125; ++step) {
    ASSERT_TRUE(AllIsBack());
    for (auto& leaf : leaves) leaf.assign(leaf.size(), static_cast<float>(step));
    std::vector<std::shared_ptr<StagedSum>> parts;
    for (size_t i = 0; i < leaves.size(); ++i) parts.push_back(Start(i + 1, {&leaves[i]}, sites[i]));
    std::thread transport([&] {
      for (const auto& part : parts) Sum(*part, 3);
    });
    for (size_t i = 0; i < leaves.size(); ++i) {
      ASSERT_FALSE(staging_.Take(i + 1)->CopyBack(stream_, Never));
    }
    transport.join();
    Fake().synchronize(stream_);
    for (const auto& leaf : leaves) ASSERT_EQ(leaf, std::vector<float>(leaf.size(), 3.f * static_cast<float>(step)));
    if (step == 4) handles = Fake().handles(), pinned = Fake().pinned_bytes();
  }
  EXPECT_EQ(Fake().handles(), handles);
  EXPECT_EQ(Fake().pinned_bytes(), pinned);
}

TEST_F(StagingTest, numbersAreWrittenInOrder) {
  int32_t number = 0;
  Blocker before(stream_);
  staging_.Write(stream_, reinterpret_cast<CUdeviceptr>(&number), -7);
  EXPECT_EQ(number, 0);
  before.End();
  Fake().synchronize(stream_);
  EXPECT_EQ(number, -7);
}

TEST_F(StagingTest, idleMemoryIsReleased_andTheCallersContextStays) {
  auto& a = Array(1, 1);
  {
    const auto part = Start(1, {&a}, site_);
    staging_.Take(1);
  }
  ASSERT_TRUE(AllIsBack());
  driver_.ContextSetCurrent(nullptr);
  staging_.ReleaseIdle();
  EXPECT_EQ(Fake().pinned_bytes(), 0);
  CUcontext context = nullptr;
  driver_.ContextGetCurrent(&context);
  EXPECT_EQ(context, nullptr);
}

}  // namespace
}  // namespace passing
