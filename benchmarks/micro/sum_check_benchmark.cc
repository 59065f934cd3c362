// Times the check of a full packet's sums by the number of ranks: what a rank writes, and how each checks a result; and
// the digest of a segment's exponents. Built with -DPASSING_BUILD_TESTS=ON.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "host/packets/sum_check.h"
#include "wire/header.h"
#include "wire/lanes.h"

namespace passing {
namespace {

constexpr uint32_t kDataLanes = wire::kLanesAtMtu1500 - SumCheck::kLanes;

std::vector<uint8_t> Packet() {
  std::vector<uint8_t> lanes(size_t{4} * wire::kMaxLanes);
  for (uint32_t i = 0; i < kDataLanes; ++i) wire::StoreLane(lanes.data(), i, 1'000'003 * i);
  return lanes;
}

void Write(benchmark::State& state) {
  const SumCheck check(SumCheck::Key{1}, 0, static_cast<uint32_t>(state.range(0)));
  std::vector<uint8_t> lanes = Packet();
  uint64_t position = 0;
  for (auto _ : state) {
    check.Write({.position = position++, .digest = 1, .may_wrap = state.range(1) != 0}, 0, kDataLanes, lanes.data());
    benchmark::ClobberMemory();
  }
}

void Holds(benchmark::State& state) {
  const SumCheck check(SumCheck::Key{1}, 0, static_cast<uint32_t>(state.range(0)));
  const std::vector<uint8_t> lanes = Packet();
  uint64_t position = 0;
  for (auto _ : state) {
    const SumCheck::Chunk chunk{.position = position++, .digest = 1, .may_wrap = state.range(1) != 0};
    benchmark::DoNotOptimize(check.Holds(chunk, 0, kDataLanes, lanes.data()));
  }
}

void Digest(benchmark::State& state) {
  const SumCheck check(SumCheck::Key{1}, 0, 2);
  const std::vector<int32_t> exponents(90, 5);
  for (auto _ : state) benchmark::DoNotOptimize(check.DigestOf(1, exponents));
}

BENCHMARK(Write)->ArgsProduct({{1, 2, 8}, {0, 1}})->ArgNames({"ranks", "integers"});
BENCHMARK(Holds)->ArgsProduct({{1, 2, 8}, {0, 1}})->ArgNames({"ranks", "integers"});
BENCHMARK(Digest);

}  // namespace
}  // namespace passing

BENCHMARK_MAIN();
