// Time to sum float32 over H transports and one software switch, all in this process over loopback (Google Benchmark).
//
// Prediction: every byte is encoded, sent, received, added H times and sent, received and decoded H times by two cores;
// at about 1 ns a byte and host in all, 64 MiB over 2 hosts take 0.07 s. Loopback has no line rate: this measures
// software.
#include <benchmark/benchmark.h>

#include <latch>
#include <memory>
#include <vector>

#include "client/transport.h"
#include "switch/udp_switch.h"

namespace passing {
namespace {

void SumOverHosts(benchmark::State& state) {
  const auto world_size = static_cast<uint32_t>(state.range(0));
  const auto elements = static_cast<uint64_t>(state.range(1)) / 4;
  const auto slot_count = static_cast<uint32_t>(state.range(2));
  UdpSwitch data_plane("127.0.0.1", 0, slot_count);
  JobSlots slots{.job = 1, .epoch = 1, .slot_first = 0, .slot_count = slot_count, .addresses = {}};
  std::vector<UdpSocket> sockets;
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    sockets.push_back(UdpSocket::ConnectedTo("127.0.0.1", data_plane.port()));
    slots.addresses.push_back(ResolveAddress("127.0.0.1", sockets.back().port()));
  }
  data_plane.AddJob(slots);
  std::vector<std::unique_ptr<Transport>> hosts;
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    const JobConfig job{.rank = static_cast<uint16_t>(rank),
                        .world_size = world_size,
                        .shards = {{.job = 1, .epoch = 1}},
                        .slots_per_shard = slot_count};
    std::vector<UdpSocket> socket;
    socket.push_back(std::move(sockets[rank]));
    hosts.push_back(std::make_unique<Transport>(std::move(socket), TransportOptions{.job = job}));
  }
  const auto shape = std::make_shared<SumShape>(
      SumShape{.site_name = "benchmark", .dtype = DType::kFloat32, .leaf_elements = {elements}});
  std::vector<std::vector<float>> inputs(world_size, std::vector<float>(elements, 1));
  std::vector<std::vector<float>> outputs(world_size, std::vector<float>(elements));
  uint32_t occurrence = 0;
  const auto sum = [&] {
    std::latch done(world_size);
    for (uint32_t rank = 0; rank < world_size; ++rank) {
      hosts[rank]->Start({.key = {.site = 1, .occurrence = occurrence, .step = 0},
                          .shape = shape,
                          .inputs = {inputs[rank].data()},
                          .outputs = {outputs[rank].data()},
                          .done = [&](const Failure*) { done.count_down(); }});
    }
    ++occurrence;
    // Rank 0's order, relayed as a session would; none from the third sum on.
    while (!done.try_wait()) {
      const auto event = hosts[0]->WaitEvent(occurrence <= 2 ? 0.001 : 0);
      if (!event) {
        if (occurrence > 2) done.wait();
        continue;
      }
      for (uint32_t rank = 1; rank < world_size; ++rank) hosts[rank]->DeliverOrderMessage(event->order_message);
    }
  };
  sum();
  sum();
  for (auto _ : state) sum();
  if (outputs[0][elements / 2] != static_cast<float>(world_size)) state.SkipWithError("wrong sum");
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(elements) * 4);
  const AllReduceStats stats = hosts[0]->stats();
  state.counters["resent_share"] = static_cast<double>(stats.packets_resent) / static_cast<double>(stats.packets_sent);
  state.counters["round_trip_us"] = static_cast<double>(stats.round_trip_us);
}

BENCHMARK(SumOverHosts)
    ->ArgNames({"hosts", "bytes", "slots"})
    ->ArgsProduct({{2, 4}, {1 << 10, 1 << 16, 1 << 26}, {64, 256}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace passing

BENCHMARK_MAIN();
