// Times the masks of confidential sums by the number of ranks and lanes: what a rank in the middle does to a
// contribution, and what each does to a result. Built with -DPASSING_BUILD_TESTS=ON. "per KB": of lanes.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "host/packets/lane_masks.h"
#include "wire/header.h"

namespace passing {
namespace {

void PerKb(benchmark::State& state, uint32_t lane_count) {
  const double kilobytes = static_cast<double>(state.iterations()) * 4 * lane_count / 1024;
  state.counters["per KB"] = benchmark::Counter(kilobytes, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void Mask(benchmark::State& state) {
  const auto lane_count = static_cast<uint32_t>(state.range(0));
  const LaneMasks masks(LaneMasks::Key{1}, 1, 4);
  std::vector<uint8_t> lanes(size_t{4} * wire::kMaxLanes);
  uint64_t position = 0;
  for (auto _ : state) {
    masks.Mask(position++, lane_count, lanes.data());
    benchmark::ClobberMemory();
  }
  PerKb(state, lane_count);
}

void Unmask(benchmark::State& state) {
  const auto lane_count = static_cast<uint32_t>(state.range(0));
  const LaneMasks masks(LaneMasks::Key{1}, 1, 4);
  const std::vector<uint8_t> masked(size_t{4} * wire::kMaxLanes);
  std::vector<uint8_t> lanes(masked.size());
  uint64_t position = 0;
  for (auto _ : state) {
    masks.Unmask(position++, lane_count, masked.data(), lanes.data());
    benchmark::ClobberMemory();
  }
  PerKb(state, lane_count);
}

// One stream, or two at once, by each implementation that this CPU has, the fastest first.
void Stream(benchmark::State& state) {
  const Aes aes(LaneMasks::Key{1});
  const std::vector<Aes::Implementation> all = Aes::All();
  const auto which = static_cast<size_t>(state.range(0));
  if (which >= all.size()) return state.SkipWithError("this CPU has no more");
  const Aes::Apply apply = state.range(1) == 1 ? all[which].add : all[which].add_and_subtract;
  std::vector<uint8_t> lanes(size_t{4} * wire::kMaxLanes);
  Aes::Counters counters{.high = 0, .added = 0, .subtracted = uint64_t{1} << 32};
  for (auto _ : state) {
    apply(aes.schedule(), counters, wire::kLanesAtMtu1500, lanes.data(), lanes.data());
    ++counters.high;
    benchmark::ClobberMemory();
  }
  PerKb(state, wire::kLanesAtMtu1500);
}

BENCHMARK(Mask)->Arg(1)->Arg(64)->Arg(256)->Arg(359)->Arg(wire::kLanesAtMtu1500)->Arg(wire::kMaxLanes);
BENCHMARK(Unmask)->Arg(1)->Arg(64)->Arg(256)->Arg(359)->Arg(wire::kLanesAtMtu1500)->Arg(wire::kMaxLanes);
BENCHMARK(Stream)->ArgsProduct({{0, 1, 2, 3}, {1, 2}})->ArgNames({"implementation", "streams"});

}  // namespace
}  // namespace passing

BENCHMARK_MAIN();
