// Limits how many chunks a rank has in flight. SlotWindow uses nothing else of it: another congestion control is
// another class with these four members.
#ifndef XLA_FFI_HOST_WINDOW_CONGESTION_WINDOW_H_
#define XLA_FFI_HOST_WINDOW_CONGESTION_WINDOW_H_

#include <algorithm>
#include <cstdint>

namespace passing {

// Additive increase by 8 chunks a round trip, decrease by 15 %: w = 8 / 0.15 = 53 chunks (76 KiB, ten times the
// bandwidth-delay product of 1 Gbit/s x 60 us) survive a loss in every round trip. A narrow window widens by a quarter
// of itself: all ranks do, and may share a port.
class CongestionWindow {
 public:
  // `slots`: how many chunks the job's switches hold at a time.
  explicit CongestionWindow(uint32_t slots)
      : max_chunks_(std::max(std::min(kLeastMaxChunks, slots), slots / kSlotsPerChunk)), chunks_(max_chunks_) {}

  uint32_t chunks() const { return static_cast<uint32_t>(chunks_); }
  void OnResult() { chunks_ = std::min(max_chunks_, chunks_ + std::min(kIncreaseChunks / chunks_, kIncrease)); }
  // Once for all losses of one round trip.
  void OnLoss(int64_t now_us, int64_t round_trip_us) {
    if (now_us < next_decrease_us_) return;
    next_decrease_us_ = now_us + round_trip_us;
    chunks_ = std::min(chunks_, std::max(std::min(kMinChunks, max_chunks_), chunks_ * kDecrease));
  }
  // Nothing came for an RTO, the `count`th in a row: all that was sent is lost, or another rank is late. Results of as
  // few chunks as this leaves at first take no longer than the RTO did; many silences in a row take longer yet. Fewer
  // than four would be silent again soon where packets are lost at random: of four that all links of two ranks lose
  // with 20 % each, one is answered 94 % of the times.
  void OnSilence(uint32_t count) {
    const double least = std::min(count < kSilencesOfLateRank ? kMinChunks : kLeastChunks, chunks_);
    chunks_ = std::max(least, chunks_ / 2);
  }

 private:
  // The window is at most a quarter of the slots: the rest goes on while a lost chunk is sent again and again. But it
  // isn't less than six super-packets, if there are slots for them, as three are on the wire at 1 Gbit/s.
  static constexpr uint32_t kSlotsPerChunk = 4;
  static constexpr uint32_t kLeastMaxChunks = 256;

  static constexpr double kIncreaseChunks = 8;  // a round trip
  static constexpr double kIncrease = 1.0 / 4;  // at most, of the window
  static constexpr double kDecrease = 0.85;
  static constexpr double kMinChunks = 16;
  static constexpr double kLeastChunks = 4;           // after many silences
  static constexpr uint32_t kSilencesOfLateRank = 4;  // 14 ms at least, as each is longer than the last

  const double max_chunks_;
  double chunks_;
  int64_t next_decrease_us_ = 0;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_WINDOW_CONGESTION_WINDOW_H_
