// Hosts exchange what is gathered, if it is much.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "../tests/xla_ffi/mpi/hosts.h"
#include "mpi/communicator.h"

namespace passing::mpi {
namespace {

// The signature of a gather whose parts the hosts exchange.
Signature Exchanged(DType dtype, uint64_t count) { return {Operation::kAllGather, Reduction::kNone, {dtype}, count}; }

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
