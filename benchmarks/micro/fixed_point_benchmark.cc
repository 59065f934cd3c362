// Time to quantise and scale back, in ns per KB (1000 bytes) of one device's elements.
//
//   g++ -std=c++20 -O3 -ffp-contract=off -fno-math-errno -Ixla_ffi benchmarks/micro/fixed_point_benchmark.cc
//       xla_ffi/host/numbers/{fixed_point,host_elements}.cc -lbenchmark -lpthread -o /tmp/fixed_point_benchmark
//
// "hot": one block over and over, in the first-level cache. "cold": 64 MiB of elements in order, one chunk of lanes
// over and over, as the transport does it.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

#include "host/numbers/fixed_point.h"

namespace passing {
namespace {

enum class Step { kExponent, kEncode, kDecode, kEncodeMoved, kDecodeMoved };
constexpr size_t kColdBlocks = 11650;  // 64 MiB of float32
constexpr size_t kMaxDevices = 8;

// Random but finite elements of every dtype: small floats, whatever bits in integers.
std::vector<uint8_t> Elements(DType dtype, size_t bytes) {
  std::vector<uint8_t> elements(bytes);
  std::minstd_rand random(1);
  for (uint8_t& byte : elements) byte = static_cast<uint8_t>(random() >> 8);
  const size_t size = SizeOf(dtype);
  if (IsFloat(dtype)) {
    for (size_t i = size - 1; i < bytes; i += size) elements[i] = (elements[i] & 0x80) | 0x3E;
  }
  return elements;
}

void Run(benchmark::State& state, Step step, DType dtype, WireDtype wire_dtype, bool cold) {
  const ElementFormat format{.dtype = dtype, .wire_dtype = wire_dtype, .world_size = 2};
  const auto devices = static_cast<size_t>(state.range(0));
  const size_t bytes = kMaxBlockElements * SizeOf(dtype) * (cold ? kColdBlocks : 1);
  std::vector<std::vector<uint8_t>> buffers(devices, Elements(dtype, bytes));
  // A chunk of 360 lanes, a block at most, or a whole block for its exponent.
  const LaneGroup group = LaneGroupOf(format);
  const size_t chunk =
      step == Step::kExponent ? kMaxBlockElements : std::min(kMaxBlockElements, 360 / group.lanes * group.elements);
  const bool moved = step == Step::kEncodeMoved || step == Step::kDecodeMoved;
  const int32_t scale = moved ? kMovedBits : format.is_narrow() ? 0x3F8 : 1;  // the greatest element is below 1
  std::vector<uint8_t> lanes(4 * 360);
  std::array<const void*, kMaxDevices> inputs{};
  std::array<void*, kMaxDevices> outputs{};
  size_t elements = 0;
  for (auto _ : state) {
    for (size_t first = 0; first + chunk <= bytes / SizeOf(dtype); first += chunk) {
      for (size_t k = 0; k < devices; ++k) inputs[k] = outputs[k] = &buffers[k][first * SizeOf(dtype)];
      if (step == Step::kExponent) {
        benchmark::DoNotOptimize(BlockExponent(format, {inputs.data(), devices}, chunk));
      } else if (step == Step::kEncode || step == Step::kEncodeMoved) {
        benchmark::DoNotOptimize(EncodeLanes(format, {inputs.data(), devices}, chunk, scale, lanes.data()));
      } else {
        DecodeLanes(format, lanes.data(), chunk, scale, {outputs.data(), devices});
      }
      benchmark::ClobberMemory();
      elements += chunk;
    }
  }
  state.counters["ns/KB"] = benchmark::Counter(static_cast<double>(elements * SizeOf(dtype)) * 1e-12,
                                               benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void RegisterAll() {
  const std::pair<const char*, Step> steps[] = {{"exponent", Step::kExponent},
                                                {"encode", Step::kEncode},
                                                {"decode", Step::kDecode},
                                                {"encode moved", Step::kEncodeMoved},
                                                {"decode moved", Step::kDecodeMoved}};
  struct Format {
    const char* name;
    DType dtype;
    WireDtype wire_dtype = WireDtype::kFull;
  };
  const Format formats[] = {{"float32", DType::kFloat32},
                            {"bfloat16", DType::kBFloat16},
                            {"float16", DType::kFloat16},
                            {"float64", DType::kFloat64},
                            {"int32", DType::kInt32},
                            {"int16", DType::kInt16},
                            {"int8", DType::kInt8},
                            {"int64", DType::kInt64},
                            {"float32 as int16", DType::kFloat32, WireDtype::kInt16},
                            {"float32 as int8", DType::kFloat32, WireDtype::kInt8},
                            {"float32 as int4", DType::kFloat32, WireDtype::kInt4}};
  for (const auto& [step_name, step] : steps) {
    for (const auto& [format_name, dtype, wire_dtype] : formats) {
      if (step != Step::kEncode && step != Step::kDecode && !IsFloat(dtype)) continue;
      if (step >= Step::kEncodeMoved && wire_dtype != WireDtype::kFull) continue;
      for (bool cold : {false, true}) {
        if (cold && dtype != DType::kFloat32) continue;
        const std::string name = std::string(step_name) + "/" + format_name + (cold ? "/cold" : "/hot");
        auto* registered =
            benchmark::RegisterBenchmark(name.c_str(), Run, step, dtype, wire_dtype, cold)->ArgName("devices")->Arg(1);
        if (dtype == DType::kFloat32 || dtype == DType::kBFloat16) registered->Arg(2)->Arg(4);
      }
    }
  }
}

}  // namespace
}  // namespace passing

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  passing::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
}
