#include "mpi/process.h"

#include <gtest/gtest.h>

#include <limits>
#include <new>
#include <stdexcept>

#include "../tests/xla_ffi/mpi/hosts.h"
#include "mpi/call.h"

namespace passing::mpi {
namespace {

class OneHost : public TestServer {
 public:
  World Begin() override {
    if (!begins) throw Failed("ConfigError", "no jax.distributed");
    return {.rank = 3, .size = 5};
  }
  Group Split(int32_t color, int32_t) override {
    if (color == -1) throw Failed("HostLostError", "rank 2 is missing");
    if (color < 0) throw std::runtime_error("no group");
    return {.id = color,
            .name = "devices",
            .hosts = {3, 3},
            .collective = std::make_shared<LocalCollective>(),
            .deadline_s = 5};
  }
  bool begins = true;
};

TEST(ProcessTest, devicesShareTheirGroup) {
  OneHost server;
  Process process(server);
  EXPECT_FALSE(process.begun());
  process.Begin();
  EXPECT_EQ(process.world().rank, 3);
  const abi::Handle first = process.Split(1, 0), second = process.Split(1, 1);
  EXPECT_NE(first, second);
  EXPECT_EQ(process.DeviceOf(second)->index(), 1);
  float values[] = {1, 2};
  const auto sum = [&](abi::Handle handle, float& value) {
    process.DeviceOf(handle)->Collect({{Operation::kAllReduce, Reduction::kSum, {DType::kFloat32}, 1}, &value, &value});
  };
  std::thread other([&] { sum(second, values[1]); });
  sum(first, values[0]);
  other.join();
  EXPECT_EQ(values[0], 3);
  EXPECT_EQ(values[1], 3);
  process.Free(first);
  EXPECT_THROW(process.DeviceOf(first), Failed);
  EXPECT_EQ(process.DeviceOf(second)->size(), 2);
}

TEST(ProcessTest, aFailedSplitFailsEachCall) {
  OneHost server;
  Process process(server);
  process.Begin();
  const abi::Handle handle = process.Split(-1, 0);
  const int code = process.Guarded("MPI_Allreduce", [&] { process.DeviceOf(handle); });
  EXPECT_EQ(process.codes().TextOf(code), "HostLostError: rank 2 is missing");
  const abi::Handle none = process.Split(1, 2);
  EXPECT_EQ(process.codes().TextOf(process.Guarded("MPI_Allreduce", [&] { process.DeviceOf(none); })),
            "PassingError: The group of a device of this process doesn't have it.");
  const abi::Handle other = process.Split(-2, 0);
  EXPECT_EQ(process.codes().TextOf(process.Guarded("MPI_Allreduce", [&] { process.DeviceOf(other); })),
            "PassingError: MPI_Comm_split: no group");
}

TEST(ProcessTest, withoutABeginningSplitsFailAsItDid) {
  OneHost server;
  server.begins = false;
  Process process(server);
  EXPECT_NE(process.Guarded("MPI_Init_thread", [&] { process.Begin(); }), abi::MPI_SUCCESS);
  const abi::Handle handle = process.Split(1, 0);
  const int code = process.Guarded("MPI_Comm_size", [&] { process.DeviceOf(handle); });
  EXPECT_EQ(process.codes().TextOf(code), "ConfigError: no jax.distributed");
}

TEST(ProcessTest, nothingIsThrownAtXla) {
  OneHost server;
  Process process(server);
  EXPECT_EQ(process.Guarded("f", [] {}), abi::MPI_SUCCESS);
  EXPECT_GE(process.Guarded("f", [] { throw std::bad_alloc(); }), ErrorCodes::kFirst);
  EXPECT_GE(process.Guarded("f", [] { throw std::out_of_range("x"); }), ErrorCodes::kFirst);
  EXPECT_GE(process.Guarded("f", [&] { process.Take(12345); }), ErrorCodes::kFirst);
}

TEST(ArgumentsTest, refuseWhatXlaDoesNotSay) {
  EXPECT_EQ(TypeOf(abi::MPI_C_DOUBLE_COMPLEX), (ElementType{DType::kFloat64, true}));
  EXPECT_EQ(BytesOf(3, abi::MPI_INT64_T), 24U);
  EXPECT_THROW(TypeOf(abi::MPI_LONG_DOUBLE), Failed);
  EXPECT_THROW(ReductionOf(abi::MPI_BAND), Failed);
  EXPECT_THROW(CountOf(std::numeric_limits<int>::min()), Failed);
  int value = 0;
  Signature signature;
  signature.count = 1;
  EXPECT_THROW(CallOf(signature, reinterpret_cast<void*>(abi::MPI_IN_PLACE), &value), Failed);
}

TEST(ErrorCodesTest, keepsTheLastTexts) {
  ErrorCodes codes;
  const int first = codes.CodeOf({"A", "first"});
  EXPECT_EQ(codes.CodeOf({"A", "first"}), first);
  EXPECT_EQ(codes.TextOf(first), "A: first");
  const int longest = codes.CodeOf({"A", std::string(2000, 'x') + "é"});
  EXPECT_EQ(codes.TextOf(longest).size(), ErrorCodes::kMaxTextBytes);
  EXPECT_TRUE(codes.TextOf(longest).ends_with("x..."));
  const int advises = codes.CodeOf({"A", "Restart it, then call jax_passing.init again on every host."});
  EXPECT_EQ(codes.TextOf(advises), "A: Restart it, then start the program again on every host.");
  for (int i = 0; i < 300; ++i) codes.CodeOf({"B", std::to_string(i)});
  EXPECT_NE(codes.TextOf(first), "A: first");
  EXPECT_NE(codes.TextOf(-1).find("no longer knows"), std::string::npos);
}

}  // namespace
}  // namespace passing::mpi
