// Times a packet's tag, to write and to check, by its number of lanes, beside SipHash over the whole packet, which the
// tag replaces. Built with -DPASSING_BUILD_TESTS=ON. "per KB": of lanes.
#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "wire/packet_key.h"
#include "wire/sip_hash.h"

namespace passing::wire {
namespace {

struct Subject {
  explicit Subject(uint32_t lane_count) : packet(kHeaderBytes + 4 * size_t{lane_count} + kTagBytes) {
    std::mt19937_64 random(1);
    for (uint8_t& byte : packet) byte = static_cast<uint8_t>(random());
    for (uint8_t& byte : key_bytes) byte = static_cast<uint8_t>(random());
  }

  std::vector<uint8_t> packet;
  std::array<uint8_t, PacketKey::kBytes> key_bytes;
};

void PerKb(benchmark::State& state, uint32_t lane_count) {
  const double kilobytes = static_cast<double>(state.iterations()) * 4 * lane_count / 1024;
  state.counters["per KB"] = benchmark::Counter(kilobytes, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void Seal(benchmark::State& state) {
  const auto lane_count = static_cast<uint32_t>(state.range(0));
  Subject subject(lane_count);
  const PacketKey key(subject.key_bytes);
  uint64_t position = 0;
  for (auto _ : state) {
    key.Seal(subject.packet.data(), lane_count, position++);
    benchmark::ClobberMemory();
  }
  PerKb(state, lane_count);
}

void Check(benchmark::State& state) {
  const auto lane_count = static_cast<uint32_t>(state.range(0));
  Subject subject(lane_count);
  const PacketKey key(subject.key_bytes);
  uint64_t position = 0;
  for (auto _ : state) benchmark::DoNotOptimize(key.Fits(subject.packet, position++));
  PerKb(state, lane_count);
}

void SipHashOfAll(benchmark::State& state) {
  const auto lane_count = static_cast<uint32_t>(state.range(0));
  std::vector<uint64_t> words((kHeaderBytes + 4 * size_t{lane_count}) / 8);
  for (auto _ : state) {
    ++words[0];
    benchmark::DoNotOptimize(SipHash({1, 2}, words));
  }
  PerKb(state, lane_count);
}

BENCHMARK(Seal)->Arg(1)->Arg(64)->Arg(256)->Arg(kLanesAtMtu1500)->Arg(kMaxLanes);
BENCHMARK(Check)->Arg(1)->Arg(64)->Arg(256)->Arg(kLanesAtMtu1500)->Arg(kMaxLanes);
BENCHMARK(SipHashOfAll)->Arg(kLanesAtMtu1500);

}  // namespace
}  // namespace passing::wire

BENCHMARK_MAIN();
