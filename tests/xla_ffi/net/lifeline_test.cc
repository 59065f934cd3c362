#include "net/lifeline.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>

namespace passing {
namespace {

using std::chrono_literals::operator""ms;

// The connection's ends: the first is the lifeline's.
std::array<int, 2> Ends() {
  std::array<int, 2> ends;
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  return ends;
}

TEST(Lifeline, saysEmptyLinesUntilItIsDestroyed) {
  const auto ends = Ends();
  {
    const Lifeline lifeline(ends[0], 5ms);
    std::array<char, 3> heard;
    ASSERT_EQ(recv(ends[1], heard.data(), heard.size(), MSG_WAITALL), 3);
    EXPECT_EQ(heard, (std::array{'\n', '\n', '\n'}));
  }
  std::array<char, 64> rest;
  ssize_t count;
  while ((count = recv(ends[1], rest.data(), rest.size(), 0)) > 0) {
  }
  EXPECT_EQ(count, 0);  // the end of the connection
  close(ends[1]);
}

TEST(Lifeline, isDestroyedAtOnceBetweenTwoLines) {
  const auto ends = Ends();
  { const Lifeline lifeline(ends[0], 3'600'000ms); }
  char heard;
  EXPECT_EQ(recv(ends[1], &heard, 1, 0), 0);
  close(ends[1]);
}

TEST(Lifeline, survivesAnEndThatIsGone) {
  const auto ends = Ends();
  close(ends[1]);
  const Lifeline lifeline(ends[0], 1ms);
  usleep(20'000);
}

}  // namespace
}  // namespace passing
