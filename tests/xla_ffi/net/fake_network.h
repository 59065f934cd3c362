// A network in one thread with a clock of its own: loses, doubles, delays and reorders packets as its seed says.
#ifndef TESTS_XLA_FFI_NET_FAKE_NETWORK_H_
#define TESTS_XLA_FFI_NET_FAKE_NETWORK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "net/driver.h"

namespace passing {

struct Faults {
  double loss = 0;
  double duplicate = 0;
  double reorder = 0;           // share of packets that are late
  int64_t delay_us = 20;        // of every packet
  int64_t reorder_us = 0;       // at most this much later
  double flip = 0;              // share of packets of which up to eight bits change on the way
  bool brings_flipped = false;  // else the receiver's kernel drops them, by UDP's checksum
  double stale = 0;             // share of packets that come once more, up to `stale_us` later
  int64_t stale_us = 0;
};

class FakeNetwork {
 public:
  FakeNetwork(uint64_t seed, const Faults& faults) : random_(seed), faults_(faults) {}

  int64_t now_us() const { return now_ns_ / 1000; }
  std::mt19937_64& random() { return random_; }

  void After(int64_t delay_us, std::function<void()> event) {
    events_.emplace(std::pair{now_ns_ + 1000 * delay_us, ++event_number_}, std::move(event));
  }

  // With fractions of microseconds.
  double exact_us() const { return static_cast<double>(now_ns_) / 1000; }
  void At(double at_us, std::function<void()> event) {
    const auto at_ns = std::max(static_cast<int64_t>(at_us * 1000), now_ns_);
    events_.emplace(std::pair{at_ns, ++event_number_}, std::move(event));
  }

  using Deliver = std::function<void(std::span<const uint8_t>)>;
  void Send(std::vector<uint8_t> packet, Deliver deliver) { Send(std::move(packet), faults_, std::move(deliver)); }

  // Brings the packet to `deliver`: once, late, twice or never.
  void Send(std::vector<uint8_t> packet, const Faults& faults, Deliver deliver) {
    if (Chance(faults.stale)) Bring(packet, faults.delay_us + Below(faults.stale_us + 1), deliver);
    if (Chance(faults.flip)) {
      Flip(packet);
      if (!faults.brings_flipped) return;
    }
    const int copies = (Chance(faults.loss) ? 0 : 1) + (Chance(faults.duplicate) ? 1 : 0);
    for (int copy = 0; copy < copies; ++copy) {
      const int64_t late_us = Chance(faults.reorder) ? Below(faults.reorder_us + 1) : 0;
      Bring(packet, faults.delay_us + late_us, deliver);
    }
  }
  uint64_t flipped() const { return flipped_; }

  // Runs the next event if it is due by `until_us`; else sets the clock to that, and returns false.
  bool Step(int64_t until_us) {
    if (events_.empty() || events_.begin()->first.first > 1000 * until_us) {
      now_ns_ = 1000 * until_us;
      return false;
    }
    auto event = events_.extract(events_.begin());
    now_ns_ = event.key().first;
    event.mapped()();
    return true;
  }
  // Runs all events until `until_us` and sets the clock to it.
  void RunUntil(int64_t until_us) {
    while (Step(until_us)) {
    }
  }

  bool Chance(double probability) {
    return probability > 0 && std::uniform_real_distribution<>(0, 1)(random_) < probability;
  }
  int64_t Below(int64_t bound) {
    return bound <= 1 ? 0 : static_cast<int64_t>(random_() % static_cast<uint64_t>(bound));
  }

 private:
  void Bring(const std::vector<uint8_t>& packet, int64_t delay_us, const Deliver& deliver) {
    After(delay_us, [packet, deliver] { deliver(packet); });
  }

  // Where the receiver's kernel drops it, it is lost as well if the checksum doesn't show the change: packets without
  // tags can't be told from true ones then, whatever a protocol does.
  void Flip(std::vector<uint8_t>& packet) {
    for (int64_t bits = 1 + Below(8); bits > 0; --bits) {
      packet[static_cast<size_t>(Below(static_cast<int64_t>(packet.size())))] ^= uint8_t(1u << Below(8));
    }
    ++flipped_;
  }

  std::mt19937_64 random_;
  const Faults faults_;
  uint64_t flipped_ = 0;
  int64_t now_ns_ = 0;
  uint64_t event_number_ = 0;
  std::map<std::pair<int64_t, uint64_t>, std::function<void()>> events_;
};

// Hands each committed packet to `send`.
class FakeDriver : public Driver {
 public:
  explicit FakeDriver(std::function<void(std::vector<uint8_t>)> send) : send_(std::move(send)) {}
  uint8_t* Reserve() override { return buffer_; }
  void Commit(size_t bytes) override { send_({buffer_, buffer_ + bytes}); }
  void Flush() override {}

 private:
  std::function<void(std::vector<uint8_t>)> send_;
  uint8_t buffer_[wire::kMaxPacketBytes];
};

}  // namespace passing

#endif  // TESTS_XLA_FFI_NET_FAKE_NETWORK_H_
