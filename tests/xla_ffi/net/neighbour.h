// A flow like TCP's that sends without end: the neighbour of a job on its links.
#ifndef TESTS_XLA_FFI_NET_NEIGHBOUR_H_
#define TESTS_XLA_FFI_NET_NEIGHBOUR_H_

#include <algorithm>
#include <cstdint>
#include <set>

#include "../tests/xla_ffi/net/links.h"

namespace passing {

// Slow start, one packet more a round trip, half the window after a loss (RFC 5681), and selective acknowledgements: a
// packet is lost once one that was sent three packets later has come.
class Neighbour {
 public:
  Neighbour(FakeNetwork& network, Links& links, uint32_t from, uint32_t to)
      : network_(network), links_(links), from_(from), to_(to) {
    Send();
    Watch();
  }
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

  uint64_t acknowledged_bytes() const { return acknowledged_ * kBytes; }

 private:
  static constexpr size_t kBytes = 1460, kAcknowledgementBytes = 12;
  static constexpr uint64_t kReordered = 3;
  static constexpr int64_t kTimeoutUs = 10'000;

  void Send() {
    while (static_cast<double>(in_flight_.size()) < window_) {
      const uint64_t number = ++sent_;
      in_flight_.insert(number);
      links_.Reach(to_, links_.Leave(from_, kBytes), kBytes, [this, number] {
        links_.Reach(from_, links_.Leave(to_, kAcknowledgementBytes), kAcknowledgementBytes,
                     [this, number] { OnAcknowledged(number); });
      });
    }
  }
  void OnAcknowledged(uint64_t number) {
    if (in_flight_.erase(number) == 0) return;  // it was taken for lost
    ++acknowledged_;
    progress_us_ = network_.now_us();
    window_ += window_ < threshold_ ? 1 : 1 / window_;
    // A packet that was lost is sent again as another one.
    while (!in_flight_.empty() && *in_flight_.begin() + kReordered <= number) {
      if (*in_flight_.begin() > recovers_until_) {
        threshold_ = window_ = std::max(window_ / 2, 2.0);
        recovers_until_ = sent_;
      }
      in_flight_.erase(in_flight_.begin());
    }
    Send();
  }
  void Watch() {
    network_.After(kTimeoutUs, [this] {
      if (network_.now_us() - progress_us_ >= kTimeoutUs) {
        threshold_ = std::max(window_ / 2, 2.0);
        window_ = 1;
        in_flight_.clear();
        Send();
      }
      Watch();
    });
  }

  FakeNetwork& network_;
  Links& links_;
  const uint32_t from_;
  const uint32_t to_;
  double window_ = 10;
  double threshold_ = 1e9;
  std::set<uint64_t> in_flight_;
  uint64_t sent_ = 0;
  uint64_t recovers_until_ = 0;
  uint64_t acknowledged_ = 0;
  int64_t progress_us_ = 0;
};

}  // namespace passing

#endif  // TESTS_XLA_FFI_NET_NEIGHBOUR_H_
