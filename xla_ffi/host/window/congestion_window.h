// Limits how many chunks a rank has in flight. SlotWindow uses nothing else of it: another congestion control is
// another class with these members. No clock: whoever calls says what time it is.
#ifndef XLA_FFI_HOST_WINDOW_CONGESTION_WINDOW_H_
#define XLA_FFI_HOST_WINDOW_CONGESTION_WINDOW_H_

#include <algorithm>
#include <cstdint>

#include "host/window/round_trip.h"
#include "wire/header.h"

namespace passing {

// All ranks of a job get the same results, so they see the same losses and nearly the same round trips, and their
// windows stay alike: together they are one flow. Where they share a port, such as that of the machine on which a
// switch runs, it is this flow that must fit into the port's buffer, however many ranks there are. So a rank begins
// with its share of it, widens its window by its share of what one flow may add, and stops where something was lost.
//
// Loss isn't always congestion. Where a port drops packets, others queue there, and round trips are long. What a rank
// has queued somewhere is its window less what the least round trip takes; loss narrows the window only as long as that
// is more than the port needs to stay busy.
class CongestionWindow {
 public:
  // `slots`: how many chunks the job's switches hold at a time. `ranks_at_port`: how many ranks send to one port, 1 if
  // the switch has a port for each of them. `lanes_per_chunk`: networks count bytes, so of longer chunks there are
  // fewer. `shards`: of the job, which have their turns one after the other.
  CongestionWindow(uint32_t slots, uint32_t ranks_at_port, uint32_t lanes_per_chunk = wire::kLanesAtMtu1500,
                   uint32_t shards = 1)
      : ranks_(ranks_at_port),
        per_chunk_(std::min(1.0, 1.0 * wire::kLanesAtMtu1500 / lanes_per_chunk)),
        max_chunks_(std::max<double>(std::min<double>(kLeastMaxChunks * per_chunk_, slots), slots / kSlotsPerChunk)),
        share_(ranks_at_port == 1 ? max_chunks_ : std::clamp(per_chunk_ * kPortChunks / ranks_, 1.0, max_chunks_)),
        least_short_(std::clamp(per_chunk_ * kShortChunks * shards / ranks_, 1.0, max_chunks_)) {}

  uint32_t chunks() const { return static_cast<uint32_t>(std::min(chunks_, ready_) + 0.5); }

  // Whoever sends after a pause finds no results in whose place its packets could come: all that it sends at once adds
  // to a queue. So it sends its share, and then one more with each result.
  void OnSent(int64_t now_us, const RoundTrip& round_trip) {
    if (now_us > last_result_us_ + 2 * round_trip.smoothed_us()) ready_ = share_;
  }

  void OnResult(int64_t now_us, const RoundTrip& round_trip) {
    last_result_us_ = now_us;
    ready_ = std::min(max_chunks_, ready_ + 1);
    if (chunks_ < regained_) {
      chunks_ = std::min(regained_, chunks_ + kRegain);
    } else if (chunks_ < (IsTooLong(now_us, round_trip) ? least_short_ : max_chunks_) && now_us >= hold_until_us_ &&
               Queued(round_trip) < per_chunk_ * kMaxQueueChunks / ranks_) {
      chunks_ = std::min(max_chunks_, chunks_ + per_chunk_ * kIncreaseChunks / ranks_ / chunks_);
    }
    if (now_us >= next_shorten_us_ && IsTooLong(now_us, round_trip)) Shorten(now_us, round_trip);
  }

  // A small sum went ahead of data that waits. It can't go ahead of what is queued in this host's own link, so for a
  // while no more stands there than keeps the link busy. That costs processor time, as fewer packets come at a time.
  void OnSmallSum(int64_t now_us) { short_until_us_ = now_us + kShortUs; }

  // Once for all losses of one round trip.
  void OnLoss(int64_t now_us, const RoundTrip& round_trip) {
    if (now_us < next_decrease_us_ || round_trip.smoothed_us() == 0) return;
    next_decrease_us_ = now_us + round_trip.smoothed_us();
    const double busy = chunks_ - Queued(round_trip) + per_chunk_ * kQueueChunks / ranks_;
    if (chunks_ <= busy) return;
    regained_ = chunks_ = std::max({chunks_ * kDecrease, busy, 1.0});
    hold_until_us_ = now_us + kHoldUs;
  }

  // Nothing came for an RTO, the `count`th in a row: all that was sent is lost, or another rank is late. Results of as
  // few chunks as this leaves at first take no longer than the RTO did; many silences in a row take longer yet. Fewer
  // than four would be silent again soon where packets are lost at random: of four that all links of two ranks lose
  // with 20 % each, one is answered 94 % of the times.
  void OnSilence(uint32_t count) {
    if (count == 1) regained_ = std::min(share_, chunks_);
    const double few = std::max(per_chunk_ * kMinChunks, kLeastChunks);
    const double least = std::min({count < kSilencesOfLateRank ? few : kLeastChunks, share_, chunks_});
    chunks_ = std::max(least, chunks_ / 2);
  }

 private:
  // The window is at most a quarter of the slots: the rest goes on while a lost chunk is sent again and again. But it
  // isn't less than six super-packets, if there are slots for them, as three are on the wire at 1 Gbit/s.
  static constexpr uint32_t kSlotsPerChunk = 4;
  static constexpr uint32_t kLeastMaxChunks = 256;

  // The next ones are of 360 lanes.
  static constexpr double kPortChunks = 128;      // 190 KB in flight to one port, if nothing else is known of it
  static constexpr double kQueueChunks = 32;      // of these queue, so that the port is busy;
  static constexpr double kMaxQueueChunks = 256;  // more gain nothing, wherever they queue
  static constexpr int64_t kShortUs = 1'000'000;  // after a small sum,
  static constexpr int64_t kShortQueueUs = 500;   // what is queued takes no longer,
  static constexpr double kShortChunks = 64;      // but so many keep a slow link busy, of each shard
  static constexpr int64_t kSamples = 8;          // round trips, of which the smoothed one is made
  static constexpr double kIncreaseChunks = 8;    // a round trip, of all ranks together
  static constexpr double kRegain = 1.0 / 4;      // of the window a round trip, after silence
  static constexpr double kDecrease = 0.85;
  static constexpr int64_t kHoldUs = 1'000'000;  // after a loss
  static constexpr double kMinChunks = 16;
  static constexpr double kLeastChunks = 4;           // after many silences
  static constexpr uint32_t kSilencesOfLateRank = 4;  // 14 ms at least, as each is longer than the last

  // Does more queue than a small sum should wait for, while there are small sums?
  bool IsTooLong(int64_t now_us, const RoundTrip& round_trip) const {
    return now_us < short_until_us_ && round_trip.smoothed_us() - round_trip.least_us() > kShortQueueUs;
  }
  void Shorten(int64_t now_us, const RoundTrip& round_trip) {
    next_shorten_us_ = now_us + kSamples * round_trip.smoothed_us();
    const double enough =
        static_cast<double>(round_trip.least_us() + kShortQueueUs) / static_cast<double>(round_trip.smoothed_us());
    chunks_ = std::min(chunks_, std::max(least_short_, chunks_ * enough));
    regained_ = std::min(regained_, chunks_);
  }

  // How much of the window is queued somewhere, or waits for another rank.
  double Queued(const RoundTrip& round_trip) const {
    if (round_trip.smoothed_us() <= round_trip.least_us()) return 0;
    return chunks_ * (1 - static_cast<double>(round_trip.least_us()) / static_cast<double>(round_trip.smoothed_us()));
  }

  const double ranks_;
  const double per_chunk_;  // how many chunks there are in place of one of 360 lanes
  const double max_chunks_;
  const double share_;
  const double least_short_;
  double chunks_ = share_;
  double ready_ = share_;  // chunks that may be in flight, for a while after a pause
  double regained_ = 0;    // what it has again soon after silence
  int64_t last_result_us_ = 0;
  int64_t next_decrease_us_ = 0;
  int64_t hold_until_us_ = 0;
  int64_t short_until_us_ = 0;
  int64_t next_shorten_us_ = 0;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_WINDOW_CONGESTION_WINDOW_H_
