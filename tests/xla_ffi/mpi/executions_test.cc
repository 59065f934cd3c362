#include "mpi/executions.h"

#include <gtest/gtest.h>

namespace passing::mpi {
namespace {

TEST(ExecutionsTest, countsProgramsExecutionsAndCalls) {
  Executions executions;
  constexpr uint32_t kTrain = 5'000'000, kEvaluate = 17;
  EXPECT_EQ(executions.Next(kTrain), (Origin{0, 0, 0}));
  EXPECT_EQ(executions.Next(kTrain), (Origin{0, 0, 1}));
  EXPECT_EQ(executions.Next(kTrain + 1), (Origin{0, 1, 0}));
  EXPECT_EQ(executions.Next(kEvaluate), (Origin{1, 0, 0}));
  EXPECT_EQ(executions.Next(kTrain + 2), (Origin{0, 2, 0}));
  EXPECT_EQ(executions.Next(kEvaluate + 1), (Origin{1, 1, 0}));
  EXPECT_EQ(NameOf(executions.Next(kEvaluate + 1)), "call 1 of execution 1 of program 1");
}

TEST(ExecutionsTest, executionsWithoutCallsAreNoProgram) {
  Executions executions;
  executions.Next(100);
  EXPECT_EQ(executions.Next(150), (Origin{0, 1, 0}));
  EXPECT_EQ(executions.Next(150'000), (Origin{1, 0, 0}));
}

TEST(ExecutionsTest, numbersGoOnAtZero) {
  Executions executions;
  executions.Next(50'000);
  executions.Next(UINT32_MAX);
  EXPECT_EQ(executions.Next(0), (Origin{1, 1, 0}));
  EXPECT_EQ(executions.Next(1), (Origin{1, 2, 0}));
}

TEST(ExecutionsTest, programsWhoseNumbersCrossStayApart) {
  Executions executions;
  executions.Next(1000);
  executions.Next(1'003'000);
  for (uint32_t i = 1; i < 5000; ++i) {
    EXPECT_EQ(executions.Next(1000 + 500 * i), (Origin{0, i, 0}));
    if (1000 + 500 * i > 900'000) break;
  }
  EXPECT_EQ(executions.Next(1'003'001), (Origin{1, 1, 0}));
}

}  // namespace
}  // namespace passing::mpi
