// Times one host's state machine for a small sum while so many are in flight: the switch answers none of them
// before all are sent. Built with -DPASSING_BUILD_TESTS=ON.
//
// "leads" is rank 0, which gives the sums their places; "follows" is rank 1, to which XLA issues them in another order.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "host/all_reduce.h"

namespace passing {
namespace {

// Keeps what is sent, so that it can be sent back as the job's result.
class Mirror : public Driver {
 public:
  uint8_t* Reserve() override { return packets_.emplace_back(wire::kMaxPacketBytes).data(); }
  void Commit(size_t bytes) override { packets_.back().resize(bytes); }
  void Flush() override {}
  std::vector<std::vector<uint8_t>> TakeResults() {
    for (std::vector<uint8_t>& packet : packets_) {
      wire::Header header;
      wire::Decode(packet, header);
      header.type = wire::PacketType::kResult;
      header.worker = wire::kEveryWorker;
      wire::Encode(header, packet.data());
    }
    return std::exchange(packets_, {});
  }

 private:
  std::vector<std::vector<uint8_t>> packets_;
};

struct Host {
  static JobConfig Job(uint16_t rank) {
    return {.rank = rank, .world_size = 2, .shards = {{.job = 1, .epoch = 1, .worker = rank}}, .slots_per_shard = 4096};
  }
  Host(uint16_t rank, std::vector<std::string>& order)
      : all_reduce(Job(rank), {&mirror}, [&order](std::string message) { order.push_back(std::move(message)); }) {}

  void Start(uint64_t site, uint32_t execution) {
    all_reduce.Start({.key = {.site = site, .execution = execution},
                      .shape = shape,
                      .inputs = {element},
                      .outputs = {element},
                      .done = [](const Failure*) {}},
                     now_us);
  }
  // Until all is done; returns how long the state machine took, without the mirror.
  std::chrono::nanoseconds Run(const std::vector<uint64_t>& sites, uint32_t execution,
                               const std::vector<std::string>& order) {
    std::chrono::nanoseconds took{0};
    const auto timed = [&](auto&& act) {
      const auto began = std::chrono::steady_clock::now();
      act();
      took += std::chrono::steady_clock::now() - began;
    };
    timed([&] {
      for (const uint64_t site : sites) Start(site, execution);
      for (const std::string& message : order) {
        all_reduce.OnOrderMessage({reinterpret_cast<const uint8_t*>(message.data()), message.size()});
      }
    });
    while (!all_reduce.idle()) {
      now_us += 10;
      timed([&] { all_reduce.OnTimer(now_us); });
      const auto results = mirror.TakeResults();
      timed([&] {
        for (const auto& result : results) all_reduce.OnPacket(0, result, now_us);
      });
    }
    return took;
  }

  Mirror mirror;
  AllReduce all_reduce;
  int32_t element[1] = {1};
  std::shared_ptr<const SumShape> shape =
      std::make_shared<SumShape>(SumShape{.site_name = "x", .dtype = DType::kInt32, .leaf_elements = {1}});
  int64_t now_us = 0;
};

void SumsInFlight(benchmark::State& state, bool leads) {
  std::vector<uint64_t> sites(static_cast<size_t>(state.range(0)));
  std::mt19937_64 random(1);
  for (uint64_t& site : sites) site = random();
  std::vector<uint64_t> others = sites;
  std::shuffle(others.begin(), others.end(), random);
  std::vector<std::string> order;
  std::vector<std::string> none;
  Host leader(0, order);
  Host follower(1, none);
  for (uint32_t execution = 0; auto _ : state) {
    const auto leader_took = leader.Run(sites, execution, {});
    const auto follower_took = follower.Run(others, execution, std::exchange(order, {}));
    ++execution;
    state.SetIterationTime(std::chrono::duration<double>(leads ? leader_took : follower_took).count());
  }
  state.counters["time/sum"] = benchmark::Counter(static_cast<double>(state.iterations() * state.range(0)),
                                                  benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

BENCHMARK_CAPTURE(SumsInFlight, leads, true)->Arg(1)->Arg(30)->Arg(300)->Arg(3000)->UseManualTime();
BENCHMARK_CAPTURE(SumsInFlight, follows, false)->Arg(1)->Arg(30)->Arg(300)->Arg(3000)->UseManualTime();

}  // namespace
}  // namespace passing

BENCHMARK_MAIN();
