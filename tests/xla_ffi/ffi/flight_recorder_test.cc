#include "ffi/flight_recorder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace passing {
namespace {

SumSpec Spec(std::string name) {
  return {.site_name = std::move(name), .dtype = DType::kWideBFloat16, .leaf_elements = {3, 5}};
}

TEST(FlightRecorder, aSumIsRememberedWithItsStates) {
  FlightRecorder recorder;
  const auto first = recorder.Start({.site = 1, .execution = 2, .step = 3}, Spec("train.py:4 psum"), 2, 7);
  const auto second = recorder.Start({.site = 1, .execution = 2, .step = 4}, Spec("train.py:4 psum"), 2);
  const auto third = recorder.Start({.site = 1, .execution = 2, .step = 5}, Spec("train.py:4 psum"), 2);
  recorder.End(second, nullptr);
  const Failure failure{"HostLostError", "gone"};
  recorder.End(third, &failure);
  const auto sums = recorder.Sums();
  ASSERT_EQ(sums.size(), 3u);
  EXPECT_EQ(sums[0].number, first);
  EXPECT_EQ(sums[0].key, (SumKey{.site = 1, .execution = 2, .step = 3}));
  EXPECT_EQ(sums[0].site_name(), "train.py:4 psum");
  EXPECT_EQ(sums[0].elements, 8u);
  EXPECT_EQ(sums[0].bytes, 16u);
  EXPECT_EQ(NameOf(sums[0].dtype), "bfloat16");
  EXPECT_EQ(sums[0].scheduled_us, 7);
  EXPECT_EQ(NameOf(sums[0].state), "started");
  EXPECT_EQ(sums[0].ended_us, 0);
  EXPECT_EQ(NameOf(sums[1].state), "completed");
  EXPECT_GE(sums[1].ended_us, sums[1].started_us);
  EXPECT_EQ(NameOf(sums[2].state), "failed");
}

TEST(FlightRecorder, theOldestMakeRoom) {
  FlightRecorder recorder;
  const SumSpec spec = Spec("a");
  for (uint32_t i = 0; i < FlightRecorder::kSums + 10; ++i) recorder.Start({.site = 1, .execution = i}, spec, 2);
  recorder.End(3, nullptr);  // its cell has another sum
  const auto sums = recorder.Sums();
  ASSERT_EQ(sums.size(), FlightRecorder::kSums);
  EXPECT_EQ(sums.front().number, 10u);
  EXPECT_EQ(sums.back().number, FlightRecorder::kSums + 9);
  for (const RecordedSum& sum : sums) EXPECT_EQ(sum.state, SumState::kStarted);
}

TEST(FlightRecorder, aNewSessionBeginsWithoutSums) {
  FlightRecorder recorder;
  const auto earlier = recorder.Start({.site = 1}, Spec("a"), 2);
  recorder.BeginSession();
  recorder.Start({.site = 2}, Spec("b"), 2);
  recorder.End(earlier, nullptr);
  const auto sums = recorder.Sums();
  ASSERT_EQ(sums.size(), 1u);
  EXPECT_EQ(sums[0].key.site, 2u);
}

TEST(FlightRecorder, aLongNameIsCutBetweenCharacters) {
  FlightRecorder recorder;
  const std::string fits(RecordedSum::kNameBytes - 1, 'a');
  recorder.Start({}, Spec(fits + "\u00e9 psum"), 2);
  recorder.Start({}, Spec("short"), 2);
  EXPECT_EQ(recorder.Sums()[0].site_name(), fits);
  EXPECT_EQ(recorder.Sums()[1].site_name(), "short");
}

// The thread sanitizer watches.
TEST(FlightRecorder, threadsStartEndAndLook) {
  FlightRecorder recorder;
  std::atomic<bool> over = false;
  std::thread looking([&] {
    while (!over) {
      for (const RecordedSum& sum : recorder.Sums()) {
        ASSERT_EQ(sum.key.execution, sum.key.step);
        ASSERT_EQ(sum.site_name(), std::to_string(sum.key.step));
      }
    }
  });
  std::vector<std::thread> summing;
  for (int thread = 0; thread < 3; ++thread) {
    summing.emplace_back([&] {
      for (uint32_t i = 0; i < 5000; ++i) {
        recorder.End(recorder.Start({.site = 1, .execution = i, .step = i}, Spec(std::to_string(i)), 2), nullptr);
      }
    });
  }
  for (std::thread& each : summing) each.join();
  over = true;
  looking.join();
  for (const RecordedSum& sum : recorder.Sums()) EXPECT_EQ(sum.state, SumState::kCompleted);
}

}  // namespace
}  // namespace passing
