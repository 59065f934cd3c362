#include "ffi/rehearsal.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace passing {
namespace {

class RehearsalTest : public testing::Test {
 protected:
  // Returns the kind of the failure, if the sum of one number fails.
  std::optional<std::string> Run(uint32_t execution, uint32_t step = 0) {
    auto spec = std::make_shared<SumSpec>(
        SumSpec{.site_name = "site", .dtype = DType::kInt32, .leaf_elements = {1}, .local_member_count = 1});
    int32_t number = 7;
    Sum sum{.key = {.site = 1, .execution = execution, .step = step},
            .spec = spec,
            .inputs = {&number},
            .outputs = {&number}};
    std::optional<std::string> failed;
    sum.done = [&](const Failure* failure) { failed = failure ? std::optional(failure->kind) : std::nullopt; };
    rehearsal_.Start(std::move(sum));
    EXPECT_EQ(number, 7);
    return failed;
  }

  int64_t now_us_ = 1'000'000'000;
  Rehearsal rehearsal_{4, {"HostJoinedError", "it joins now"}, [this] { return now_us_; }};
};

TEST_F(RehearsalTest, endsWhenAProgramRunsAgainAndNothingWasCompiledForAWhile) {
  EXPECT_EQ(rehearsal_.world_size(), 4u);
  now_us_ += 30'000'000;  // it compiles
  Rehearsal::NoteCompilation(now_us_);
  for (uint32_t execution = 0; execution < 10; ++execution, now_us_ += 90'000) EXPECT_EQ(Run(execution), std::nullopt);
  now_us_ += 25'000'000;  // the next program
  Rehearsal::NoteCompilation(now_us_);
  EXPECT_EQ(Run(10), std::nullopt);
  now_us_ += Rehearsal::kSettledUs;
  EXPECT_EQ(Run(0), std::nullopt);  // another program's first
  EXPECT_EQ(Run(11), "HostJoinedError");
  EXPECT_EQ(Run(0), "HostJoinedError");
}

TEST_F(RehearsalTest, endsWhereOneExecutionGoesOnForEver) {
  Rehearsal::NoteCompilation(now_us_);
  now_us_ += Rehearsal::kQuietUs - 1;
  EXPECT_EQ(Run(0, 1000), std::nullopt);
  now_us_ += 1;
  EXPECT_EQ(Run(0, 1001), "HostJoinedError");
}

TEST_F(RehearsalTest, endsWhereProgramsNeverRunAgain) {
  const int64_t until_us = now_us_ + Rehearsal::kLongestUs;
  for (; now_us_ < until_us; now_us_ += Rehearsal::kQuietUs / 2) {
    EXPECT_EQ(Run(0), std::nullopt);
    Rehearsal::NoteCompilation(now_us_);
  }
  EXPECT_EQ(Run(0), "HostJoinedError");
}

}  // namespace
}  // namespace passing
