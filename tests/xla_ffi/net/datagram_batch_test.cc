#include "net/datagram_batch.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace passing {
namespace {

TEST(GroupRuns, table) {
  struct Case {
    const char* description;
    std::vector<uint16_t> sizes;
    std::vector<DatagramRun> runs;
  };
  const Case cases[] = {
      {"nothing", {}, {}},
      {"one", {100}, {{0, 100, 100}}},
      {"equal sizes", {100, 100, 100}, {{0, 300, 100}}},
      {"the last may be shorter", {100, 100, 40}, {{0, 240, 100}}},
      {"nothing follows a shorter one", {100, 40, 40, 100}, {{0, 140, 100}, {140, 40, 40}, {180, 100, 100}}},
      {"a longer one starts anew", {40, 100, 100}, {{0, 40, 40}, {40, 200, 100}}},
      {"empty ones stand alone", {100, 0, 0, 100}, {{0, 100, 100}, {100, 0, 0}, {100, 0, 0}, {100, 100, 100}}},
      {"64 segments at most", std::vector<uint16_t>(65, 24), {{0, 64 * 24, 24}, {64 * 24, 24, 24}}},
      {"65,507 bytes at most", std::vector<uint16_t>(45, 1460), {{0, 44 * 1460, 1460}, {44 * 1460, 1460, 1460}}},
  };
  for (const Case& test : cases) {
    std::vector<DatagramRun> runs = {{1, 2, 3}};
    GroupRuns(test.sizes, runs);
    EXPECT_EQ(runs, test.runs) << test.description;
  }
}

}  // namespace
}  // namespace passing
