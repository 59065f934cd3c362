#include "mpi/communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <type_traits>

#include "../tests/xla_ffi/mpi/hosts.h"
#include "mpi/elements.h"

namespace passing::mpi {
namespace {

constexpr ElementType kTypes[] = {{DType::kInt8},    {DType::kInt16},         {DType::kInt32},
                                  {DType::kInt64},   {DType::kUint8},         {DType::kUint16},
                                  {DType::kUint32},  {DType::kUint64},        {DType::kFloat32},
                                  {DType::kFloat64}, {DType::kFloat32, true}, {DType::kFloat64, true}};
constexpr Reduction kReductions[] = {Reduction::kSum, Reduction::kProduct, Reduction::kMin, Reduction::kMax};

// Small enough that sums and products of floats are exact.
template <typename T>
std::vector<T> Draw(std::mt19937& random, size_t count) {
  std::vector<T> values(count);
  const auto draw = [&] { return static_cast<int>(random() % 9) - 4; };
  for (T& value : values) {
    if constexpr (kIsComplex<T>) {
      value = T(draw(), draw());
    } else if constexpr (std::is_floating_point_v<T>) {
      value = static_cast<T>(draw());
    } else {
      value = static_cast<T>(random() | uint64_t{random()} << 32);
    }
  }
  return values;
}

template <typename T>
T Combine(Reduction reduction, T a, T b) {
  if (reduction == Reduction::kProduct) return Product(a, b);
  if (reduction == Reduction::kSum) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    return static_cast<T>(a + b);
  }
  if constexpr (!kIsComplex<T>) return reduction == Reduction::kMin ? std::min(a, b) : std::max(a, b);
  return a;
}

template <typename T>
std::vector<T> Reduced(Reduction reduction, const std::vector<std::vector<T>>& inputs) {
  std::vector<T> result = inputs[0];
  for (size_t device = 1; device < inputs.size(); ++device) {
    for (size_t i = 0; i < result.size(); ++i) result[i] = Combine(reduction, result[i], inputs[device][i]);
  }
  return result;
}

class CommunicatorTest : public testing::TestWithParam<std::vector<int32_t>> {};

TEST_P(CommunicatorTest, reducesAllTypes) {
  Hosts hosts(GetParam());
  const auto devices = hosts.size();
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (const ElementType& type : kTypes) {
    for (const Reduction reduction : kReductions) {
      if (type.is_complex && (reduction == Reduction::kMin || reduction == Reduction::kMax)) continue;
      WithType(type, [&]<typename T>(T) {
        const size_t count = 1 + random() % 700;
        std::vector<std::vector<T>> inputs;
        for (size_t k = 0; k < devices; ++k) inputs.push_back(Draw<T>(random, count * devices));
        const std::vector<T> expected = Reduced(reduction, inputs);
        std::vector<std::vector<T>> all(devices, std::vector<T>(count * devices)), cut(devices, std::vector<T>(count));
        const Signature whole{Operation::kAllReduce, reduction, type, count * devices};
        SCOPED_TRACE(NameOf(whole));
        ExpectSuccess(hosts.Run([&](Device& device) {
          const int32_t index = device.index();
          device.Collect({whole, inputs[index].data(), all[index].data()});
          device.Collect(
              {{Operation::kReduceScatter, reduction, type, count}, inputs[index].data(), cut[index].data()});
        }));
        for (size_t k = 0; k < devices; ++k) {
          EXPECT_EQ(all[k], expected);
          EXPECT_EQ(cut[k], std::vector<T>(expected.begin() + k * count, expected.begin() + (k + 1) * count));
        }
      });
    }
  }
}

TEST_P(CommunicatorTest, gathersAllTypes) {
  Hosts hosts(GetParam());
  const auto devices = hosts.size();
  std::mt19937 random(5);
  for (const ElementType& type : kTypes) {
    const size_t bytes = (1 + random() % 300) * type.bytes();
    std::vector<uint8_t> expected(bytes * devices);
    for (uint8_t& byte : expected) byte = static_cast<uint8_t>(random());
    std::vector<std::vector<uint8_t>> results(devices, std::vector<uint8_t>(bytes * devices, 1));
    ExpectSuccess(hosts.Run([&](Device& device) {
      const int32_t index = device.index();
      device.Collect({{Operation::kAllGather, Reduction::kNone, type, bytes / type.bytes()},
                      expected.data() + index * bytes,
                      results[index].data()});
    }));
    for (const auto& result : results) EXPECT_EQ(result, expected);
  }
}

TEST_P(CommunicatorTest, nanWinsAndZerosHaveSigns) {
  Hosts hosts(GetParam());
  const auto devices = static_cast<int32_t>(hosts.size());
  for (const ElementType type : {ElementType{DType::kFloat32}, ElementType{DType::kFloat64}}) {
    WithType(type, [&]<typename T>(T) {
      if constexpr (std::is_floating_point_v<T>) {
        for (const Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
          std::vector<std::vector<T>> results(devices, std::vector<T>(4));
          ExpectSuccess(hosts.Run([&](Device& device) {
            const bool last = device.index() == devices - 1;
            const T nan = std::numeric_limits<T>::quiet_NaN(), infinity = std::numeric_limits<T>::infinity();
            const T input[] = {last ? nan : T{1}, last ? -nan : T{1}, last ? T{-0.0} : T{0.0},
                               last ? -infinity : infinity};
            device.Collect({{Operation::kAllReduce, reduction, type, 4}, input, results[device.index()].data()});
          }));
          for (const auto& result : results) {
            EXPECT_TRUE(std::isnan(result[0]));
            EXPECT_TRUE(std::isnan(result[1]));
            EXPECT_EQ(result[2], 0);
            EXPECT_EQ(std::signbit(result[2]), reduction == Reduction::kMin);
            EXPECT_EQ(result[3] < 0, reduction == Reduction::kMin);
          }
        }
      }
    });
  }
}

TEST_P(CommunicatorTest, inPlaceAndEmpty) {
  Hosts hosts(GetParam());
  const auto devices = static_cast<int>(hosts.size());
  std::vector<std::vector<float>> values(devices, std::vector<float>(300, 1));
  ExpectSuccess(hosts.Run([&](Device& device) {
    float* const own = values[device.index()].data();
    device.Collect({{Operation::kAllReduce, Reduction::kSum, {DType::kFloat32}, 0}, own, own});
    device.Collect({{Operation::kAllReduce, Reduction::kSum, {DType::kFloat32}, 300}, own, own});
    device.Collect({{Operation::kAllGather, Reduction::kNone, {DType::kFloat32}, 0}, own, own});
  }));
  for (const auto& own : values) EXPECT_EQ(own, std::vector<float>(300, static_cast<float>(devices)));
}

TEST_P(CommunicatorTest, gathersFromItsOutput) {
  Hosts hosts(GetParam());
  const auto devices = static_cast<int32_t>(hosts.size());
  std::vector<std::vector<int32_t>> values(devices, std::vector<int32_t>(devices * 4, -1));
  std::vector<int32_t> expected;
  for (int32_t i = 0; i < devices * 4; ++i) expected.push_back(i);
  ExpectSuccess(hosts.Run([&](Device& device) {
    std::vector<int32_t>& own = values[device.index()];
    for (int32_t i = 0; i < 4; ++i) own[device.index() * 4 + i] = device.index() * 4 + i;
    device.Collect(
        {{Operation::kAllGather, Reduction::kNone, {DType::kInt32}, 4}, own.data() + device.index() * 4, own.data()});
  }));
  for (const auto& own : values) EXPECT_EQ(own, expected);
}

TEST_P(CommunicatorTest, sendsNothing) {
  Hosts hosts(GetParam());
  const auto devices = static_cast<int32_t>(hosts.size());
  ExpectSuccess(hosts.Run([&](Device& device) {
    int32_t untouched = 5;
    PendingMessage coming = device.Receive(&untouched, 0, (device.index() + devices - 1) % devices, 0);
    device.Send(nullptr, 0, (device.index() + 1) % devices, 0).Wait();
    coming.Wait();
    EXPECT_EQ(untouched, 5);
  }));
}

TEST_P(CommunicatorTest, sendsRoundTheRing) {
  Hosts hosts(GetParam());
  const auto devices = static_cast<int32_t>(hosts.size());
  std::vector<int32_t> received(devices, -1);
  ExpectSuccess(hosts.Run([&](Device& device) {
    const int32_t own = device.index();
    PendingMessage coming = device.Receive(&received[own], sizeof(own), (own + devices - 1) % devices, 0);
    PendingMessage going = device.Send(&own, sizeof(own), (own + 1) % devices, 0);
    going.Wait();
    coming.Wait();
  }));
  for (int32_t own = 0; own < devices; ++own) EXPECT_EQ(received[own], (own + devices - 1) % devices);
}

TEST_P(CommunicatorTest, muchIsGatheredFromHostToHost) {
  Hosts hosts(GetParam());
  const size_t devices = hosts.size();
  const size_t count = 200'001;
  std::mt19937 random(7);
  std::vector<std::vector<int16_t>> inputs;
  std::vector<int16_t> expected;
  for (size_t index = 0; index < devices; ++index) {
    inputs.push_back(Draw<int16_t>(random, count));
    expected.insert(expected.end(), inputs.back().begin(), inputs.back().end());
  }
  for (int time = 1; time <= 2; ++time) {
    std::vector<std::vector<int16_t>> outputs(devices, std::vector<int16_t>(devices * count));
    ExpectSuccess(hosts.Run([&](Device& device) {
      const Signature signature{Operation::kAllGather, Reduction::kNone, {DType::kInt16}, count};
      device.Collect({signature, inputs[device.index()].data(), outputs[device.index()].data()});
    }));
    for (const auto& output : outputs) EXPECT_TRUE(output == expected);
    const size_t host_count = std::set(GetParam().begin(), GetParam().end()).size();
    EXPECT_EQ(hosts.server.sent_bytes, time * devices * count * sizeof(int16_t) * (host_count - 1));
  }
}

INSTANTIATE_TEST_SUITE_P(Hosts, CommunicatorTest,
                         testing::Values(std::vector<int32_t>{0, 0, 0}, std::vector<int32_t>{1, 0},
                                         std::vector<int32_t>{0, 1, 1, 0, 0}, std::vector<int32_t>{2, 0, 1, 0, 2, 2}));

TEST(CommunicatorTest, aHostsDevicesThatDifferFail) {
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

TEST(CommunicatorTest, hostsThatDifferNeverMeet) {
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

// Calls that are alike don't lead to different next ones.
TEST(CommunicatorTest, aProgramThatRepeatsItselfNeedsNoAnnouncements) {
  Hosts hosts({0, 1});
  const auto repeat = [&](int times) {
    ExpectSuccess(hosts.Run([&](Device& device) {
      std::vector<float> values(20, 1);
      for (int i = 0; i < times * 4; ++i) {
        const uint64_t count = i % 4 < 3 ? 10 : 20;
        device.Collect(
            {{Operation::kAllReduce, Reduction::kSum, {DType::kFloat32}, count}, values.data(), values.data()});
      }
    }));
  };
  repeat(10);
  const uint64_t before = hosts.announcements();
  EXPECT_GT(before, 0U);
  repeat(10);
  EXPECT_EQ(hosts.announcements(), before);
}

TEST(CommunicatorTest, aMissingDeviceFailsTheOthersByTheServersWord) {
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

// The signature of a gather whose parts the hosts exchange.
Signature Exchanged(DType dtype, uint64_t count) { return {Operation::kAllGather, Reduction::kNone, {dtype}, count}; }

TEST(CommunicatorTest, aLongPartGoesInPieces) {
  Hosts hosts({0, 1});
  const size_t count = (16 << 20) + 3;
  std::vector<std::vector<uint8_t>> outputs(2, std::vector<uint8_t>(2 * count));
  ExpectSuccess(hosts.Run([&](Device& device) {
    const std::vector<uint8_t> input(count, static_cast<uint8_t>(1 + device.index()));
    device.Collect({Exchanged(DType::kUint8, count), input.data(), outputs[device.index()].data()});
  }));
  std::vector<uint8_t> expected(2 * count, 1);
  std::fill_n(expected.begin() + count, count, uint8_t{2});
  for (const auto& output : outputs) EXPECT_TRUE(output == expected);
  EXPECT_EQ(hosts.server.sent_bytes, 2 * count);
}

TEST(CommunicatorTest, exchangesThatDifferNeverMeet) {
  const size_t count = 50'000;
  for (const Signature& other : {Exchanged(DType::kInt32, count), Exchanged(DType::kFloat32, count + 1)}) {
    Hosts hosts({0, 1, 1});
    hosts.server.stall_failure = Failure{"ProgramMismatchError", "they differ"};
    const auto failures = hosts.Run([&](Device& device) {
      const std::vector<float> input(count + 1);
      std::vector<float> output(3 * (count + 1));
      const Signature& signature = device.index() == 0 ? Exchanged(DType::kFloat32, count) : other;
      device.Collect({signature, input.data(), output.data()});
    });
    for (const auto& failure : failures) EXPECT_EQ(failure.value().kind, "ProgramMismatchError");
  }
}

TEST(CommunicatorTest, anExchangeThatCantBeginEndsWhatHasBegun) {
  Hosts hosts({0, 1});
  hosts.server.refusal = hosts.server.stall_failure = Failure{"ClosedError", "Python is ending"};
  const auto failures = hosts.Run([](Device& device) {
    const std::vector<float> input(50'000);
    std::vector<float> output(100'000);
    device.Collect({Exchanged(DType::kFloat32, input.size()), input.data(), output.data()});
  });
  for (const auto& failure : failures) EXPECT_EQ(failure.value().kind, "ClosedError");
}

// XLA frees the memory of a call once that returns.
TEST(CommunicatorTest, aServerThatThrowsEndsTheSumBeforeTheCall) {
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
TEST(CommunicatorTest, aFailureInTheMiddleLetsTheMemoryGo) {
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

TEST(CommunicatorTest, whatCannotStartFailsAllDevices) {
  TestServer server;
  Group group{.id = 1, .name = "two", .hosts = {0, 0}, .own_index = 0, .collective = std::make_shared<Broken>()};
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

TEST(CommunicatorTest, nobodySendsUntilTheDeadline) {
  Hosts hosts({0, 0}, 0);
  const auto failures = hosts.Run([](Device& device) {
    int32_t received = 0;
    if (device.index() == 0) device.Receive(&received, sizeof(received), 1, 0).Wait();
  });
  EXPECT_EQ(failures[0].value().kind, "DeadlineExceededError");
  EXPECT_EQ(hosts.server.stalls[0].first, -1);
}

TEST(CommunicatorTest, refusesWhatHasNoMeaning) {
  Hosts hosts({0, 0});
  auto failures = hosts.Run([](Device& device) { device.Send(&device, 1, 2, 0); });
  for (const auto& failure : failures) EXPECT_EQ(failure.value().kind, "PassingError");
  failures = hosts.Run([](Device& device) {
    std::complex<float> one;
    device.Collect({{Operation::kAllReduce, Reduction::kMax, {DType::kFloat32, true}, 1}, &one, &one});
  });
  for (const auto& failure : failures) EXPECT_EQ(failure.value().kind, "UnsupportedDtypeError");
}

}  // namespace
}  // namespace passing::mpi
