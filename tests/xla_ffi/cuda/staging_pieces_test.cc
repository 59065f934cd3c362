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
#include "cuda/staging.h"

namespace passing {
namespace {

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
