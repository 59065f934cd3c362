// Devices and hosts that go wrong in a communicator.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <complex>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "../tests/xla_ffi/mpi/hosts.h"
#include "../tests/xla_ffi/net/stand_still.h"
#include "mpi/communicator.h"
#include "mpi/failures.h"

namespace passing::mpi {
namespace {

TEST(CommunicatorFailuresTest, aHostsDevicesThatDifferFail) {
  Hosts hosts({0, 0});
  std::vector<float> input(8), output(8);
  const auto failures = hosts.Run([&](Device& device) {
    const uint64_t count = device.index() == 0 ? 8 : 4;
    std::vector<float> own(8);
    device.Collect({{Operation::kAllReduce, Reduction::kSum, {DType::kFloat32}, count}, input.data(), own.data()});
  });
  for (const auto& failure : failures) {
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->kind, "ProgramMismatchError");
    EXPECT_NE(failure->message.find("all_reduce sum of float32[4]"), std::string::npos) << failure->message;
    EXPECT_NE(failure->message.find("all_reduce sum of float32[8]"), std::string::npos) << failure->message;
  }
}

// Each device fails, whatever the first two differ in, and nothing is written.
void ExpectNothingMeets(const Signature& left, const Signature& right) {
  Hosts hosts({0, 1, 1}, 1.5);
  std::vector<std::vector<float>> outputs(3, std::vector<float>(64, -7));
  const auto failures = hosts.Run([&](Device& device) {
    std::vector<float> input(64, 1);
    device.Collect({device.index() == 0 ? left : right, input.data(), outputs[device.index()].data()});
  });
  for (const auto& failure : failures) {
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->kind, "DeadlineExceededError");
  }
  for (const auto& output : outputs) EXPECT_EQ(output, std::vector<float>(64, -7));
  EXPECT_FALSE(hosts.server.stalls.empty());
}

TEST(CommunicatorFailuresTest, hostsThatDifferNeverMeet) {
  const Signature signature{Operation::kAllReduce, Reduction::kSum, {DType::kFloat32}, 16};
  Signature other = signature;
  other.count = 17;
  ExpectNothingMeets(signature, other);
  other = signature;
  other.reduction = Reduction::kMax;
  ExpectNothingMeets(signature, other);
  other = signature;
  other.type = {DType::kInt32};
  ExpectNothingMeets(signature, other);
}

// A host sums a metric that has the shape of the gradient.
TEST(CommunicatorFailuresTest, programsThatLookAlikeNeverMeet) {
  for (const uint64_t count : {uint64_t{16}, uint64_t{100'000}}) {  // the latter are exchanged
    Hosts hosts({0, 1});
    hosts.server.stall_failure = Failure{"ProgramMismatchError", "they wait"};
    const auto failures = hosts.Run([&](Device& device) {
      std::vector<float> input(count, 1), own(2 * count, -7);
      const auto gather = [&](uint32_t run_id) {
        device.BeginCall(run_id, false);
        device.Collect({{Operation::kAllGather, Reduction::kNone, {DType::kFloat32}, count}, &input[0], &own[0]});
        device.EndCall();
      };
      gather(7);
      EXPECT_EQ(own, std::vector<float>(2 * count, 1));
      own.assign(2 * count, -7);
      if (device.index() == 0) {
        gather(70'000);
      } else {
        gather(8);
      }
      ADD_FAILURE() << "they met";
    });
    for (const auto& failure : failures) EXPECT_EQ(failure.value().message, "they wait");
    const auto has = [&](const std::string& text) {
      return std::ranges::any_of(hosts.server.stalls, [&](const auto& each) { return each.second.ends_with(text); });
    };
    EXPECT_TRUE(has("which is call 0 of execution 0 of program 1") ||
                has("which is call 0 of execution 1 of program 0"));
  }
}

TEST(CommunicatorFailuresTest, messagesOfProgramsThatLookAlikeNeverMeet) {
  Hosts hosts({0, 0}, 0);
  const auto failures = hosts.Run([](Device& device) {
    int32_t word = -7;
    const uint32_t run_ids[] = {7, device.index() == 0 ? 70'000u : 8u};
    for (const uint32_t run_id : run_ids) {
      device.BeginCall(run_id, false);
      PendingMessage coming = device.Receive(&word, sizeof(word), 1 - device.index(), 0);
      const int32_t own = device.index();
      device.Send(&own, sizeof(own), 1 - own, 0);
      coming.Wait();
      device.EndCall();
      EXPECT_EQ(word, 1 - own);
      EXPECT_EQ(run_id, 7U) << "they met";
    }
  });
  for (const auto& failure : failures) EXPECT_EQ(failure.value().kind, "DeadlineExceededError");
}

TEST(CommunicatorFailuresTest, programsThatTwoThreadsDispatchInAnotherOrderFail) {
  Hosts hosts({0, 0});
  const auto failures = hosts.Run([&](Device& device) {
    float one = 1;
    device.BeginCall(7, false);
    device.Collect({{Operation::kAllReduce, Reduction::kSum, {DType::kFloat32}, 1}, &one, &one});
    device.EndCall();
    device.BeginCall(device.index() == 0 ? 70'000 : 8, false);
    device.Collect({{Operation::kAllReduce, Reduction::kSum, {DType::kFloat32}, 1}, &one, &one});
  });
  for (const auto& failure : failures) {
    EXPECT_EQ(failure.value().kind, "ProgramMismatchError");
    EXPECT_NE(failure->message.find("from one thread"), std::string::npos) << failure->message;
  }
}

TEST(CommunicatorFailuresTest, aMissingDeviceFailsTheOthersByTheServersWord) {
  Hosts hosts({0, 0});
  hosts.server.stall_failure = Failure{"HostLostError", "device 1 is gone"};
  const auto failures = hosts.Run([&](Device& device) {
    float one = 1;
    if (device.index() == 1) return;
    device.Collect({{Operation::kAllReduce, Reduction::kSum, {DType::kFloat32}, 1}, &one, &one});
  });
  ASSERT_TRUE(failures[0]);
  EXPECT_EQ(failures[0]->kind, "HostLostError");
  EXPECT_EQ(hosts.server.stalls[0].second, "all_reduce sum of float32[1], call 0 of the test's devices");
  const auto later = hosts.Run([](Device& device) {
    float one = 1;
    device.Collect({{Operation::kAllReduce, Reduction::kSum, {DType::kFloat32}, 1}, &one, &one});
  });
  for (const auto& failure : later) EXPECT_EQ(failure.value().kind, "HostLostError");
}

// XLA frees the memory of a call once that returns.
TEST(CommunicatorFailuresTest, aServerThatThrowsEndsTheSumBeforeTheCall) {
  Hosts hosts({0, 1});
  hosts.server.stall_throws = true;
  const auto failures = hosts.Run([&](Device& device) {
    float one = 1;
    if (device.index() == 1) return;
    device.Collect({{Operation::kAllReduce, Reduction::kSum, {DType::kFloat32}, 1}, &one, &one});
  });
  EXPECT_NE(failures[0].value().message.find("no such server"), std::string::npos) << failures[0]->message;
  EXPECT_EQ(hosts.failure(0).value().message, failures[0]->message);
}

// The sanitizers would see a transport that still uses it.
TEST(CommunicatorFailuresTest, aFailureInTheMiddleLetsTheMemoryGo) {
  std::mt19937 random(11);
  for (int i = 0; i < 20; ++i) {
    Hosts hosts({0, 1, 1});
    std::thread fails([&, after_us = random() % 4000] {
      std::this_thread::sleep_for(std::chrono::microseconds(after_us));
      for (const int32_t host : {0, 1}) hosts.Fail(host, {"HostLostError", "gone"});
    });
    const auto failures = hosts.Run([&](Device& device) {
      constexpr uint64_t kCount = 30000;
      const ElementType type{DType::kFloat32};
      for (int call = 0;; ++call) {  // until the failure
        const std::vector<float> input(kCount, 1);
        std::vector<float> output(kCount);
        if (call % 4 == 0)
          device.Collect({{Operation::kAllReduce, Reduction::kSum, type, kCount}, &input[0], &output[0]});
        if (call % 4 == 1)
          device.Collect({{Operation::kAllReduce, Reduction::kMax, type, kCount}, &input[0], &output[0]});
        const uint64_t part = kCount / 3;
        if (call % 4 == 2) device.Collect({{Operation::kAllGather, {}, type, part}, &input[0], &output[0]});
        if (call % 4 == 3) {
          device.Collect({{Operation::kReduceScatter, Reduction::kSum, type, part}, &input[0], &output[0]});
        }
      }
    });
    fails.join();
    for (const auto& failure : failures) EXPECT_EQ(failure.value().message, "gone");
  }
}

class Broken : public Collective {
 public:
  uint32_t world_size() const override { return 1; }
  void Start(Sum) override { throw std::length_error("too long"); }
};

TEST(CommunicatorFailuresTest, whatCannotStartFailsAllDevices) {
  TestServer server;
  Group group{.id = 1, .name = "two", .hosts = {0, 0}, .collective = std::make_shared<Broken>()};
  const auto communicator = std::make_shared<Communicator>(server, group, 0);
  const auto fails = [&](int32_t index) {
    float one = 1;
    Device device(communicator, index);
    EXPECT_THROW(device.Collect({{Operation::kAllReduce, Reduction::kSum, {DType::kFloat32}, 1}, &one, &one}), Failed);
  };
  std::thread other([&] { fails(1); });
  fails(0);
  other.join();
}

TEST(CommunicatorFailuresTest, nobodySendsUntilTheDeadline) {
  Hosts hosts({0, 0}, 0);
  const auto failures = hosts.Run([](Device& device) {
    int32_t received = 0;
    if (device.index() == 0) device.Receive(&received, sizeof(received), 1, 0).Wait();
  });
  EXPECT_EQ(failures[0].value().kind, "DeadlineExceededError");
  EXPECT_EQ(hosts.server.stalls[0].first, -1);
}

TEST(CommunicatorFailuresTest, timeInWhichTheProcessStoodStillDoesntCount) {
  Hosts hosts({0, 0}, 1);  // and 2 s of grace
  ExpectSuccess(hosts.Run([](Device& device) {
    int32_t word = device.index();
    if (device.index() == 0) device.Receive(&word, sizeof(word), 1, 0).Wait();
    if (device.index() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      StandStill(5'000);
      std::this_thread::sleep_for(std::chrono::milliseconds(1'500));  // both look each second
      device.Send(&word, sizeof(word), 0, 0).Wait();
    }
    EXPECT_EQ(word, 1);
  }));
}

TEST(CommunicatorFailuresTest, nobodyIsTooLateWhileMessagesMove) {
  Hosts hosts({0, 0, 0}, 0);
  hosts.server.moving_looks = 100;
  ExpectSuccess(hosts.Run([&](Device& device) {
    int32_t word = device.index();
    if (device.index() == 0) device.Receive(&word, sizeof(word), 1, 0).Wait();
    if (device.index() == 1) {
      while (hosts.server.looks < 8) std::this_thread::sleep_for(std::chrono::milliseconds(10));  // of two, each second
      device.Send(&word, sizeof(word), 0, 0).Wait();
    }
    device.Collect({{Operation::kAllReduce, Reduction::kSum, {DType::kInt32}, 1}, &word, &word});
    EXPECT_EQ(word, 1 + 1 + 2);
  }));
}

TEST(CommunicatorFailuresTest, refusesWhatHasNoMeaning) {
  Hosts hosts({0, 0});
  auto failures = hosts.Run([](Device& device) { device.Send(&device, 1, 2, 0); });
  for (const auto& failure : failures) EXPECT_EQ(failure.value().kind, "PassingError");
  failures = hosts.Run([](Device& device) {
    std::complex<float> one;
    device.Collect({{Operation::kAllReduce, Reduction::kMax, {DType::kFloat32, true}, 1}, &one, &one});
  });
  for (const auto& failure : failures) EXPECT_EQ(failure.value().kind, "UsageError");
}

}  // namespace
}  // namespace passing::mpi
