#include "wire/group_watch.h"

#include <gtest/gtest.h>

namespace passing::wire {
namespace {

TEST(GroupWatch, isLostOnceAfterSoManyResultsInARow) {
  GroupWatch watch;
  EXPECT_FALSE(watch.OnOwnResults(GroupWatch::kLostResults - 1));
  EXPECT_FALSE(watch.lost());
  EXPECT_TRUE(watch.OnOwnResults(1));
  EXPECT_FALSE(watch.OnOwnResults(100));
  EXPECT_TRUE(watch.lost());
}

TEST(GroupWatch, aResultOfTheGroupBeginsAnew) {
  GroupWatch watch;
  EXPECT_FALSE(watch.OnOwnResults(GroupWatch::kLostResults - 1));
  watch.OnGroupResults(0);  // only packets that nobody waited for
  EXPECT_TRUE(watch.OnOwnResults(1));
  watch.OnGroupResults(1);
  EXPECT_FALSE(watch.lost());
  EXPECT_FALSE(watch.OnOwnResults(GroupWatch::kLostResults - 1));
  EXPECT_TRUE(watch.OnOwnResults(30));
}

}  // namespace
}  // namespace passing::wire
