// Hosts and a switch of this process sum over loopback, for benchmarks.
#ifndef BENCHMARKS_MICRO_BENCHMARK_CLUSTER_H_
#define BENCHMARKS_MICRO_BENCHMARK_CLUSTER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "host/transport/transport.h"
#include "net/socket_address.h"
#include "switch/udp_switch.h"

namespace passing {

struct Protection {
  bool checked = false, masked = false;
};

class Cluster {
 public:
  static constexpr uint32_t kSlotCount = 1024;  // the default of jax-passing switch

  explicit Cluster(uint32_t world_size, const Protection& sums = {}) : udp_switch_("127.0.0.1", 0, kSlotCount) {
    JobSlots slots{.job = 1, .epoch = 1, .slot_first = 0, .slot_count = kSlotCount, .addresses = {}};
    std::vector<UdpSocket> sockets;
    for (uint32_t rank = 0; rank < world_size; ++rank) {
      sockets.push_back(UdpSocket::ConnectedTo("127.0.0.1", udp_switch_.port()));
      slots.addresses.push_back(ResolveAddress("127.0.0.1", sockets.back().port()));
    }
    udp_switch_.AddJob(slots);
    for (uint32_t rank = 0; rank < world_size; ++rank) {
      const JobConfig job{.rank = static_cast<uint16_t>(rank),
                          .world_size = world_size,
                          .shards = {{.job = 1, .epoch = 1, .worker = static_cast<uint16_t>(rank), .bare = true}},
                          .slots_per_shard = kSlotCount,
                          .check_key = sums.checked ? std::optional(SumCheck::Key{1}) : std::nullopt,
                          .mask_key = sums.masked ? std::optional(LaneMasks::Key{1}) : std::nullopt};
      std::vector<UdpSocket> socket;
      socket.push_back(std::move(sockets[rank]));
      hosts_.push_back(std::make_unique<Transport>(std::move(socket), RankOptions{.job = job}));
    }
    relay_ = std::thread([this] {  // of rank 0's order, as a session does it
      while (!ending_) {
        const auto event = hosts_[0]->WaitEvent(0.1);
        const auto* order = event ? std::get_if<OrderMessage>(&*event) : nullptr;
        if (order == nullptr) continue;
        for (size_t rank = 1; rank < hosts_.size(); ++rank) hosts_[rank]->DeliverOrderMessage(order->bytes);
      }
    });
  }
  ~Cluster() {
    ending_ = true;
    for (auto& host : hosts_) host->Close();
    relay_.join();
  }

  Transport& host(uint32_t rank) { return *hosts_[rank]; }
  uint32_t world_size() const { return static_cast<uint32_t>(hosts_.size()); }

 private:
  UdpSwitch udp_switch_;
  std::vector<std::unique_ptr<Transport>> hosts_;
  std::atomic<bool> ending_ = false;
  std::thread relay_;
};

}  // namespace passing

#endif  // BENCHMARKS_MICRO_BENCHMARK_CLUSTER_H_
