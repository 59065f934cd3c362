#include "wire/lanes.h"

#include <gtest/gtest.h>

namespace passing::wire {
namespace {

TEST(Lanes, standInNetworkOrder) {
  uint8_t bytes[9] = {};
  uint8_t* const odd = bytes + 1;  // no lane needs to be aligned
  StoreLane(odd, 1, 0x80010203);
  EXPECT_EQ(odd[3], 0);
  EXPECT_EQ(odd[4], 0x80);
  EXPECT_EQ(odd[7], 3);
  EXPECT_EQ(LoadLane(odd, 1), 0x80010203u);
  EXPECT_EQ(LoadLane(odd, 0), 0u);
}

}  // namespace
}  // namespace passing::wire
