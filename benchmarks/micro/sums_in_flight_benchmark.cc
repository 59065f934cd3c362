// Times small sums of 1 KB of which a number is in flight at once: a rank and the switch's slots in one thread, without
// sockets. Results come in batches of 16 packets. "per sum": of both. Built with -DPASSING_BUILD_TESTS=ON.
#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "host/all_reduce.h"
#include "switch/switch_core.h"

namespace passing {
namespace {

constexpr uint32_t kSlotCount = 8192;
constexpr size_t kBatch = 16;
constexpr uint64_t kElements = 256;

class Loop : public Driver {
 public:
  explicit Loop(DType dtype)
      : spec_(std::make_shared<SumSpec>(SumSpec{.site_name = "one", .dtype = dtype, .leaf_elements = {kElements}})) {
    switch_.AddJob({.job = 1, .epoch = 1, .slot_count = kSlotCount, .addresses = {Address{}}}, {});
  }

  // Has that many sums in flight until `sums` are done.
  void Run(size_t in_flight, size_t sums) {
    for (size_t sum = 0; sum < in_flight; ++sum) Start();
    for (const size_t end = done_ + sums; done_ < end;) {
      rank_.OnTimer(++now_us_);
      switch_.Flush();
      if (results_.empty()) std::abort();
      const size_t before = done_;
      for (size_t i = 0; i < kBatch && !results_.empty(); ++i) {
        rank_.OnPacket(0, results_.front(), now_us_);
        results_.pop_front();
      }
      for (size_t done = before; done < done_ && started_ < end; ++done) Start();
    }
  }

  uint8_t* Reserve() override { return packet_.data(); }
  void Commit(size_t bytes) override { switch_.OnPacket({packet_.data(), bytes}, Address{}, /*by_group=*/false); }
  void Flush() override {}

 private:
  void Start() {
    rank_.Start({.key = {.site = 1, .execution = started_++},
                 .spec = spec_,
                 .inputs = {in_.data()},
                 .outputs = {out_.data()},
                 .done =
                     [this](const Failure* failure) {
                       if (failure != nullptr) std::abort();
                       ++done_;
                     }},
                now_us_);
  }

  const std::shared_ptr<const SumSpec> spec_;
  const std::vector<uint32_t> in_ = std::vector<uint32_t>(kElements, 1);
  std::vector<uint32_t> out_ = std::vector<uint32_t>(kElements);
  std::array<uint8_t, wire::kMaxPacketBytes> packet_{};
  std::deque<std::vector<uint8_t>> results_;
  SwitchCore switch_{kSlotCount, [this](const Outgoing& out) {
                       size_t at = 0;
                       for (const uint16_t bytes : out.packet_bytes) {
                         results_.emplace_back(&out.bytes[at], &out.bytes[at] + bytes);
                         at += bytes;
                       }
                     }};
  AllReduce rank_{{.shards = {{.job = 1, .epoch = 1}}, .slots_per_shard = kSlotCount}, {this}, [](std::string) {}};
  int64_t now_us_ = 0;
  uint32_t started_ = 0;
  size_t done_ = 0;
};

void Sums(benchmark::State& state, DType dtype) {
  constexpr size_t kSums = 10'000;
  Loop loop(dtype);
  loop.Run(1, 10);  // it learns the order
  for (auto _ : state) loop.Run(static_cast<size_t>(state.range(0)), kSums);
  state.counters["per sum"] = benchmark::Counter(static_cast<double>(state.iterations() * kSums),
                                                 benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

BENCHMARK_CAPTURE(Sums, int32, DType::kInt32)->Arg(1)->Arg(10)->Arg(100)->Arg(1000);
BENCHMARK_CAPTURE(Sums, float32, DType::kFloat32)->Arg(1)->Arg(10)->Arg(100)->Arg(1000);

}  // namespace
}  // namespace passing

BENCHMARK_MAIN();
