// Callers of small sums that wait for their results themselves.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../tests/xla_ffi/host/support/loopback_cluster.h"
#include "host/transport/transport.h"

namespace passing {
namespace {

constexpr size_t kSmall = 256, kLarge = 100'000;

FloatCall CallOf(uint64_t site, uint32_t execution, size_t count = kSmall) {
  return {site, execution, DType::kFloat32, Ramp(count, 1)};
}

void ExpectSum(FloatCall& call, size_t count = kSmall) {
  ASSERT_TRUE(call.Wait());
  ASSERT_FALSE(call.failure().has_value()) << call.failure()->message;
  ASSERT_EQ(call.values(), Ramp(count, 2));
  ASSERT_EQ(call.times_done(), 1);
}

// Sums on both hosts at the same time, one sum after the other. Returns how many were done before Start returned.
int SumInTurn(LoopbackCluster& cluster, uint32_t first, uint32_t sums) {
  std::atomic<int> at_once = 0;
  std::vector<std::thread> programs;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    programs.emplace_back([&, rank] {
      for (uint32_t execution = first; execution < first + sums; ++execution) {
        FloatCall call = CallOf(7, execution);
        call.Start(cluster.host(rank), /*caller_waits=*/true);
        at_once += call.times_done();
        ExpectSum(call);
      }
    });
  }
  for (std::thread& program : programs) program.join();
  return at_once;
}

TEST(TransportCaller, smallSumsAreDoneWhenStartReturns) {
  LoopbackCluster cluster(2);
  uint32_t first = 0;
  // A busy machine may keep a peer from its core for long, but not always.
  ASSERT_TRUE(Eventually([&] {
    first += 100;
    return SumInTurn(cluster, first, 100) > 100;
  }));
  EXPECT_TRUE(cluster.host(0).Drain(0));
}

TEST(TransportCaller, whoHasOtherThingsToDoIsntHeldUp) {
  LoopbackCluster cluster(2);
  SumInTurn(cluster, 0, 20);
  for (uint32_t execution = 20; execution < 40; ++execution) {
    FloatCall one = CallOf(7, execution), two = CallOf(7, execution);
    one.Start(cluster.host(0));
    EXPECT_EQ(one.times_done(), 0);
    two.Start(cluster.host(1));
    ExpectSum(one);
    ExpectSum(two);
  }
}

// The peer comes only after Start has returned: the thread must listen from then on.
TEST(TransportCaller, aLatePeerIsLeftToTheThread) {
  LoopbackCluster cluster(2);
  for (uint32_t execution = 0; execution < 60; execution += 20) {
    SumInTurn(cluster, execution, 10);
    for (uint32_t late = execution + 10; late < execution + 20; ++late) {
      FloatCall one = CallOf(7, late), two = CallOf(7, late);
      one.Start(cluster.host(0), /*caller_waits=*/true);
      EXPECT_EQ(one.times_done(), 0);
      two.Start(cluster.host(1), /*caller_waits=*/true);
      ExpectSum(one);
      ExpectSum(two);
    }
  }
}

// A parked thread listens to nobody; the next sum isn't small, or its caller doesn't wait.
TEST(TransportCaller, aParkedThreadServesOtherSums) {
  LoopbackCluster cluster(2);
  for (uint32_t execution = 0; execution < 60; execution += 20) {
    SumInTurn(cluster, execution, 18);
    FloatCall one = CallOf(8, execution, kLarge), two = CallOf(8, execution, kLarge);
    one.Start(cluster.host(0), /*caller_waits=*/true);
    two.Start(cluster.host(1), /*caller_waits=*/true);
    ExpectSum(one, kLarge);
    ExpectSum(two, kLarge);
    SumInTurn(cluster, execution + 18, 1);
    FloatCall small = CallOf(9, execution), other = CallOf(9, execution);
    small.Start(cluster.host(0));
    other.Start(cluster.host(1));
    ExpectSum(small);
    ExpectSum(other);
  }
}

// Another thread starts a sum while a caller waits for one that can't be done yet.
TEST(TransportCaller, otherSumsEndTheWait) {
  LoopbackCluster cluster(2);
  for (uint32_t execution = 0; execution < 60; execution += 20) {
    SumInTurn(cluster, execution, 18);
    FloatCall one = CallOf(8, execution), two = CallOf(8, execution);
    FloatCall large = CallOf(9, execution, kLarge), other = CallOf(9, execution, kLarge);
    std::thread waiter([&] { one.Start(cluster.host(0), /*caller_waits=*/true); });
    large.Start(cluster.host(0), /*caller_waits=*/true);
    two.Start(cluster.host(1));
    other.Start(cluster.host(1));
    waiter.join();
    ExpectSum(one);
    ExpectSum(two);
    ExpectSum(large, kLarge);
    ExpectSum(other, kLarge);
  }
}

void EndWhileACallerWaits(void (*end)(StripedTransport&), const std::string& kind) {
  for (int round = 0; round < 20; ++round) {
    LoopbackCluster cluster(2);
    SumInTurn(cluster, 0, 4);
    FloatCall call = CallOf(8, 0);
    std::thread waiter([&] { call.Start(cluster.host(0), /*caller_waits=*/true); });
    std::this_thread::sleep_for(std::chrono::microseconds(round * 60));
    end(cluster.host(0));
    waiter.join();
    ASSERT_TRUE(call.Wait());
    ASSERT_EQ(call.times_done(), 1);
    ASSERT_EQ(call.failure().value().kind, kind);
    ASSERT_TRUE(cluster.host(0).Drain(20));
  }
}

TEST(TransportCaller, fail_whileACallerWaits) {
  EndWhileACallerWaits([](StripedTransport& host) { host.Fail({"HostLostError", "rank 1 is gone"}); }, "HostLostError");
}

TEST(TransportCaller, close_whileACallerWaits) {
  EndWhileACallerWaits([](StripedTransport& host) { host.Close(); }, "ClosedError");
}

TEST(TransportCaller, stats_whileCallersSum) {
  LoopbackCluster cluster(2);
  std::atomic<bool> ending = false;
  std::thread session([&] {
    while (!ending) {
      EXPECT_LE(cluster.host(0).stats().sums_completed, 400u);
      EXPECT_EQ(cluster.host(0).socket_stats().datagrams_unsent, 0u);
    }
  });
  SumInTurn(cluster, 0, 400);
  ending = true;
  session.join();
  EXPECT_EQ(cluster.host(0).stats().sums_completed, 400u);
}

// A child has none of the threads, and may have been forked while one of them waited. Nothing here keeps it from
// ending, nor the parent from going on.
TEST(TransportCaller, fork_whileCallersSum) {
  LoopbackCluster cluster(2);
  std::atomic<bool> ending = false;
  std::atomic<int> children = 0;
  std::thread forker([&] {
    while (!ending) {
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) _exit(0);
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      ASSERT_EQ(status, 0);
      ++children;
    }
  });
  uint32_t first = 0;
  do {
    SumInTurn(cluster, first, 50);
    first += 50;
  } while (children < 5);
  ending = true;
  forker.join();
}

}  // namespace
}  // namespace passing
