// The sliding window over the positions of the job's order: it knows what is in flight, and what to resend.
#ifndef XLA_FFI_HOST_WINDOW_SLOT_WINDOW_H_
#define XLA_FFI_HOST_WINDOW_SLOT_WINDOW_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "host/window/congestion_window.h"
#include "host/window/round_trip.h"
#include "host/window/sharding.h"
#include "wire/group_watch.h"

namespace passing {

// Do a chunk's packets have lanes, on the way up, and on the way down? A header loads no link.
struct ChunkLanes {
  bool up = true;
  bool down = true;
};

class SlotWindow {
 public:
  // `ranks_at_port`, `lanes_per_chunk`: see CongestionWindow.
  explicit SlotWindow(const Sharding& sharding, uint32_t ranks_at_port = 1,
                      uint32_t lanes_per_chunk = wire::kLanesAtMtu1500);

  // The first position without a result. Positions below it are done, or were skipped.
  uint64_t low() const { return low_; }
  // A gap takes no slots, so the window goes on behind the first one.
  uint64_t end() const {
    const uint64_t end = low_ + sharding_.window();
    return gaps_.empty() || gaps_.front().first >= end ? end : end + (gaps_.front().end - gaps_.front().first);
  }
  void Advance(uint64_t low);
  // Nothing has the positions from `first` on, below `end`: none, or twice the window, where rank 0 deviated (order.h).
  // So what follows has the slots and versions that these would have had.
  void OnGap(uint64_t first, uint64_t end);

  // May rank 0 place a segment there? A few windows ahead, so that the exponents of the next segments are under way in
  // time, and the next small sum doesn't wait behind the gaps of earlier ones, and finds free slots.
  bool MayPlace(uint64_t position) const {
    const uint32_t slots = sharding_.window();
    const uint32_t ahead = std::min(std::max(kWindowsAhead * congestion_.chunks(), least_ahead_), slots - slots / 4);
    return position + (slots - ahead) < end();
  }

  // Do the slots reach that far?
  bool CanSend(uint64_t position) const { return position >= low_ && position < end(); }
  // The number of chunks in flight whose packets have lanes on these ways.
  struct Count {
    uint32_t up = 0;
    uint32_t down = 0;
    Count& operator+=(const Count& other) {
      up += other.up;
      down += other.down;
      return *this;
    }
  };
  // May a chunk be sent if so many chunks below its position are in flight? Those above don't count: else ranks that
  // got their sums in different orders could fill their windows with different chunks, none of which all of them sent,
  // and wait for ever. The lowest chunk has none below it, so it can always be sent.
  // What goes ahead of other data, a small sum, may exceed the window by a quarter.
  bool HasRoom(const Count& below, bool goes_ahead = false) const {
    const uint32_t chunks = congestion_.chunks();
    return std::max(below.up, below.down) < (goes_ahead ? chunks + (chunks + 3) / 4 : chunks);
  }
  void OnSmallSum(int64_t now_us) { congestion_.OnSmallSum(now_us); }
  // Counts from position `first` on, below `end`. Both lie in the window, or at its end.
  Count InFlightBetween(uint64_t first, uint64_t end) const;
  void OnSent(uint64_t position, int64_t now_us, ChunkLanes lanes = {});

  // The position that a result's 32-bit sequence means, if that chunk is in flight. Inline: its result in memory would
  // wait for all stores of the last packet's elements.
  std::optional<uint64_t> InFlight(uint32_t sequence) const {
    const uint64_t position = low_ + (sequence - static_cast<uint32_t>(low_));
    const Chunk& chunk = At(position);
    if (chunk.position != position || chunk.state != State::kInFlight) return std::nullopt;
    return position;
  }
  // `in_order`: all ranks send such chunks in the order of positions, so later ones have their results later.
  void OnResult(uint64_t position, int64_t now_us, bool in_order = true);
  bool Done(uint64_t position) const;
  // Returns what the result of this chunk, which is in flight, shows if it comes to this rank alone.
  wire::OwnResult OwnResultOf(uint64_t position, bool is_header) const {
    const Chunk& chunk = At(position);
    return {.is_for_all = !chunk.leaves_out, .is_header = is_header, .was_asked_for = chunk.resent};
  }
  // No rank needs this position's result any more, whether or not it was sent.
  void Skip(uint64_t position);

  // The order changed: what was sent from `position` on can't complete, and no longer counts.
  void Forget(uint64_t position);

  // The next chunk that has waited for its RTO, or that later chunks overtook; counts it as sent again.
  std::optional<uint64_t> NextResend(int64_t now_us);
  int64_t next_timer_us() const;  // INT64_MAX if nothing is in flight

  int64_t round_trip_us() const { return round_trip_.smoothed_us(); }
  int64_t rto_us() const { return round_trip_.rto_us(); }
  uint32_t chunks() const { return congestion_.chunks(); }  // that may be in flight

 private:
  enum class State : uint8_t { kUnsent, kInFlight, kDone };
  struct Chunk {
    uint64_t position = 0;
    State state = State::kUnsent;
    bool resent = false;      // its round trip is ambiguous (Karn's algorithm, RFC 6298)
    bool leaves_out = false;  // lanes, on some way
    int64_t sent_us = 0;
    uint64_t send_number = 0;
  };
  struct Sent {
    uint64_t position;
    uint64_t send_number;
  };

  // The packets to one shard. Switches answer at different paces, so overtaking means something only within one path.
  struct Path {
    std::deque<Sent> sent{};  // in the order of sending, so also of timeouts; entries of chunks sent again are stale
    uint64_t send_number = 0;
    uint64_t answered_number = 0;    // the latest of those that were sent once, in order, and have their result,
    uint64_t answered_position = 0;  // and the last position
    int64_t progress_us = 0;         // when the last result came,
    int64_t gap_us = 0;              // how long there was none at most, of late,
    int64_t gap_before_us = 0;       // and in the time before that,
    int64_t gaps_since_us = 0;       // which ended here,
    int64_t revived_us = 0;          // and the last one that came first after a burst
    // The last send when a silence began: all up to it are taken for lost, and are sent again in bursts.
    uint64_t lost_number = 0;
    int64_t burst_us = 0;  // when the last one began
    uint32_t burst = 16;   // chunks
    uint32_t burst_left = 0;
  };

  // Gaps are twice as long as the ring, so no two positions of the window have the same place.
  size_t PlaceOf(uint64_t position) const {
    const size_t size = chunks_.size();
    return (size & (size - 1)) == 0 ? position & (size - 1) : position % size;
  }
  Chunk& At(uint64_t position) { return chunks_[PlaceOf(position)]; }
  const Chunk& At(uint64_t position) const { return chunks_[PlaceOf(position)]; }
  Count CountBetween(uint64_t first, uint64_t end) const;
  void Mark(uint64_t position, ChunkLanes lanes);
  Path& PathOf(uint64_t position) { return paths_[sharding_.ShardOf(position)]; }
  bool Waits(const Sent& sent) const;
  std::optional<uint64_t> FirstOvertaken(const Path& path) const;
  // The chunk sent first and the one with the lowest position, among the chunks that are taken for lost.
  std::optional<uint64_t> FirstLost(const Path& path) const;
  std::optional<uint64_t> LowestLost(const Path& path) const;
  uint64_t NextOfBurst(Path& path);
  // Some of what was taken for lost has its results, some has not.
  bool Recovers(const Path& path, const Chunk& first_waiting) const {
    return first_waiting.send_number <= path.lost_number && path.progress_us >= path.burst_us;
  }
  int64_t SilentUs(const Path& path, const Chunk& first_waiting) const {
    return std::max(first_waiting.sent_us, path.progress_us) + rto_us();
  }
  // Was a burst sent since the last result?
  static bool IsAsked(const Path& path) { return path.burst_us > path.progress_us; }
  static constexpr uint32_t kWindowsAhead = 3;
  static constexpr uint32_t kLanesAhead = 3 * 64 * wire::kLanesAtMtu1500;  // at least: three segments
  // Results come one after the other, or a super-packet of them at a time. If none comes for twice as long as between
  // any of late, and no less than this, and a least round trip, then what is next may be lost.
  static constexpr int64_t kMinGapUs = 200;
  static constexpr int64_t kGapsOfLateUs = 10'000;  // at 0.25 Gbit/s a super-packet takes 2 ms
  int64_t GapUs(const Path& path) const {
    const int64_t least_us = round_trip_us() > 0 ? round_trip_.least_us() : 0;
    return std::min(std::max(kMinGapUs, 2 * std::max(path.gap_us, path.gap_before_us)) + least_us, rto_us());
  }
  // When the result of a chunk is late: two chunks are sent again, which show whether it is lost.
  int64_t AskUs(const Path& path, const Chunk& first_waiting) const;
  void OnSilence(int64_t now_us);
  void BeginBurst(Path& path, uint32_t chunks, int64_t now_us);
  // The path's chunk without a result that was sent first; null if there is none.
  const Chunk* FirstWaiting(const Path& path) const;
  struct Timeout {
    int64_t due_us = INT64_MAX;
    uint64_t position = 0;
  };
  Timeout NextTimeout() const;
  uint64_t Resend(uint64_t position, int64_t now_us);

  const Sharding sharding_;
  const uint32_t least_ahead_;  // chunks
  uint64_t low_ = 0;
  struct Gap {
    uint64_t first = 0;
    uint64_t end = 0;
  };
  std::deque<Gap> gaps_;       // that begin at `low_` or later
  std::vector<Chunk> chunks_;  // a ring, as long as the window
  struct Word {
    uint64_t up = 0;
    uint64_t down = 0;
  };
  std::vector<Word> in_flight_;  // bits for each of them, so that many are counted at once
  std::vector<Path> paths_;      // by shard
  CongestionWindow congestion_;
  RoundTrip round_trip_;
  uint32_t silences_ = 0;  // since the last result
  int64_t probe_us_ = 0;   // when the next one may end
  int64_t probe_interval_us_ = 0;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_WINDOW_SLOT_WINDOW_H_
