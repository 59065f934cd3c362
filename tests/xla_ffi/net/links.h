// Links of machines to one network switch, whose ports have a rate and a finite buffer. On a network's virtual clock.
#ifndef TESTS_XLA_FFI_NET_LINKS_H_
#define TESTS_XLA_FFI_NET_LINKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>

#include "../tests/xla_ffi/net/fake_network.h"

namespace passing {

// Both ways at this rate, and with this delay.
struct Link {
  double bytes_per_us = 0;
  int64_t delay_us = 0;
  int64_t buffer_bytes = 0;  // of the switch's port to the machine: what comes while it is full is lost
  double packet_us = 0;      // how long the machine takes for a packet that has come
};

class Links {
 public:
  explicit Links(FakeNetwork& network) : network_(network) {}

  void Add(uint32_t machine, const Link& link) { links_[machine].link = link; }
  bool Has(uint32_t machine) const { return links_.contains(machine); }
  uint64_t lost(uint32_t machine) const { return links_.at(machine).lost; }  // packets, at the port to it

  // The machine sends a packet now; its programs wait as long as its card does. Returns when it is at the switch.
  double Leave(uint32_t machine, size_t bytes) {
    const auto found = links_.find(machine);
    if (found == links_.end()) return network_.exact_us();
    InUse& used = found->second;
    used.out_free_us = std::max(used.out_free_us, network_.exact_us()) + used.On(bytes);
    return used.out_free_us + static_cast<double>(used.link.delay_us);
  }
  // A packet for the machine is at the switch then. Calls `taken` once the machine has taken it, unless it is lost.
  void Reach(uint32_t machine, double at_switch_us, size_t bytes, std::function<void()> taken) {
    network_.At(at_switch_us, [this, &used = links_.at(machine), bytes, taken = std::move(taken)]() mutable {
      const double now_us = network_.exact_us();
      used.port_free_us = std::max(used.port_free_us, now_us) + used.On(bytes);
      if ((used.port_free_us - now_us) * used.link.bytes_per_us > static_cast<double>(used.link.buffer_bytes)) {
        used.port_free_us -= used.On(bytes);
        ++used.lost;
        return;
      }
      const double arrival_us = used.port_free_us + static_cast<double>(used.link.delay_us);
      used.taken_us = std::max(used.taken_us, arrival_us) + used.link.packet_us;
      network_.At(used.taken_us, std::move(taken));
    });
  }

 private:
  static constexpr size_t kHeaderBytes = 66;  // UDP, IP, Ethernet with its checksum, preamble and gap

  // Times are counted in fractions of microseconds, as packets take no more.
  struct InUse {
    Link link{};
    double out_free_us = 0;   // when all that was sent has left
    double port_free_us = 0;  // when all that came to the port has left it,
    double taken_us = 0;      // and when the machine has taken it
    uint64_t lost = 0;

    double On(size_t bytes) const { return static_cast<double>(bytes + kHeaderBytes) / link.bytes_per_us; }
  };

  FakeNetwork& network_;
  std::unordered_map<uint32_t, InUse> links_;
};

}  // namespace passing

#endif  // TESTS_XLA_FFI_NET_LINKS_H_
