// Hosts exchange what is gathered, if it is much.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../tests/xla_ffi/mpi/hosts.h"
#include "mpi/communicator.h"

namespace passing::mpi {
namespace {

// The signature of a gather whose parts the hosts exchange.
Signature Exchanged(DType dtype, uint64_t count) { return {Operation::kAllGather, Reduction::kNone, {dtype}, count}; }

TEST(ExchangeTest, aLongPartTakesSeveralMessages) {
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

TEST(ExchangeTest, exchangesThatDifferNeverMeet) {
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

TEST(ExchangeTest, anExchangeThatCantBeginEndsWhatHasBegun) {
  Hosts hosts({0, 1});
  hosts.server.refusal = hosts.server.stall_failure = Failure{"ClosedError", "Python is ending"};
  const auto failures = hosts.Run([](Device& device) {
    const std::vector<float> input(50'000);
    std::vector<float> output(100'000);
    device.Collect({Exchanged(DType::kFloat32, input.size()), input.data(), output.data()});
  });
  for (const auto& failure : failures) EXPECT_EQ(failure.value().kind, "ClosedError");
}

}  // namespace
}  // namespace passing::mpi
