#include "mpi/communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <tuple>
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
        if constexpr (!std::is_same_v<T, Half>) {  // reducesFloat16
          const size_t count = 1 + random() % 700;
          std::vector<std::vector<T>> inputs;
          for (size_t k = 0; k < devices; ++k) inputs.push_back(Draw<T>(random, count * devices));
          const std::vector<T> expected = Reduced(reduction, inputs);
          std::vector<std::vector<T>> all(devices, std::vector<T>(count * devices)),
              cut(devices, std::vector<T>(count));
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

TEST_P(CommunicatorTest, reducesFloat16) {
  Hosts hosts(GetParam());
  const auto devices = static_cast<int32_t>(hosts.size());
  const auto half = [](float value) { return Half{NarrowFloat16(value)}; };
  const Half nan{0x7e00};
  constexpr Operation kWhole = Operation::kAllReduce, kCut = Operation::kReduceScatter;
  for (const auto& [operation, reduction, want] :
       {std::tuple(kWhole, Reduction::kSum, std::vector{half(static_cast<float>(2 * devices)), half(-0.5), nan}),
        std::tuple(kWhole, Reduction::kProduct, std::vector{half(std::ldexp(1.0f, devices)), half(0), nan}),
        std::tuple(kWhole, Reduction::kMax, std::vector{half(2), half(0), nan}),
        std::tuple(kWhole, Reduction::kMin, std::vector{half(2), half(-0.5), nan}),
        std::tuple(kCut, Reduction::kSum, std::vector{half(static_cast<float>(2 * devices))})}) {
    std::vector<std::vector<Half>> results(devices, std::vector<Half>(want.size()));
    ExpectSuccess(hosts.Run([&](Device& device) {
      const bool last = device.index() == devices - 1;
      std::vector<Half> input{half(2), half(last ? -0.5f : 0.0f), last ? nan : half(1)};
      if (operation == kCut) input.assign(devices, half(2));
      device.BeginCall(std::nullopt, true);
      const ElementType type = device.TypeOf(abi::MPI_UINT16_T);
      device.Collect({{operation, reduction, type, want.size()}, input.data(), results[device.index()].data()});
      device.EndCall();
      EXPECT_EQ(device.TypeOf(abi::MPI_UINT16_T), (ElementType{DType::kUint16}));
    }));
    for (const auto& result : results) {
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(result[i].bits & 0x7fff, want[i].bits & 0x7fff) << static_cast<int>(reduction) << " " << i;
      }
    }
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

// As above, where XLA tells which execution of which program calls.
TEST(CommunicatorTest, programsThatTakeTurnsNeedNoAnnouncements) {
  Hosts hosts({0, 1});
  uint32_t before = 0;
  const auto repeat = [&](uint32_t times) {
    ExpectSuccess(hosts.Run([&](Device& device) {
      std::vector<float> values(20, 1);
      for (uint32_t i = before; i < before + times; ++i) {
        for (const auto& [run_id, calls] : {std::pair(5'000 + 2 * i, 3), {5'001 + 2 * i, 3}, {900'000 + i, 2}}) {
          for (int call = 0; call < calls; ++call) {
            device.BeginCall(run_id, false);
            device.Collect(
                {{Operation::kAllReduce, Reduction::kSum, {DType::kFloat32}, 10}, values.data(), values.data()});
            device.EndCall();
          }
        }
      }
    }));
    before += times;
  };
  repeat(10);
  const uint64_t announcements = hosts.announcements();
  EXPECT_GT(announcements, 0U);
  repeat(10);
  EXPECT_EQ(hosts.announcements(), announcements);
}

}  // namespace
}  // namespace passing::mpi
