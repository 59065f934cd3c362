// The host's side of the protocol: one rank's sums, as a state machine over a Driver. No threads, no clock,
// no sockets: time is an argument, packets and order messages are handed in.
//
// Start, OnReady, OnPacket and OnOrderMessage only take note; OnTimer sends. Call OnTimer after each batch of packets,
// so that one run of packets answers the batch, and whenever next_timer_us() has come.
#ifndef XLA_FFI_HOST_ALL_REDUCE_H_
#define XLA_FFI_HOST_ALL_REDUCE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "host/job_config.h"
#include "host/order/early_sums.h"
#include "host/order/leader.h"
#include "host/order/order.h"
#include "host/order/order_log.h"
#include "host/packets/chunk_packets.h"
#include "host/sums/segment_exponents.h"
#include "host/sums/sum.h"
#include "host/sums/sum_pass.h"
#include "host/sums/sum_times.h"
#include "host/window/slot_window.h"
#include "net/driver.h"
#include "wire/group_watch.h"

namespace passing {

struct AllReduceStats {
  uint64_t sums_started = 0;
  uint64_t sums_completed = 0;
  uint64_t tensor_bytes = 0;  // bytes of completed sums, one device's worth
  uint64_t packets_sent = 0;
  uint64_t bytes_sent = 0;  // UDP payload
  uint64_t packets_received = 0;
  uint64_t bytes_received = 0;
  uint64_t packets_resent = 0;
  uint64_t packets_dropped = 0;  // malformed, forged, of another job or epoch, or not awaited
  uint64_t packets_forged = 0;   // dropped: awaited results without the switch's tag
  uint64_t sums_wrong = 0;       // dropped: results that aren't the sum of what all ranks sent
  uint64_t order_messages = 0;   // sent or received
  uint64_t order_rollbacks = 0;  // predictions of the order that turned out wrong
  uint64_t flagged_chunks = 0;   // chunks with NaN or an infinity
  uint64_t guesses_right = 0;    // small sums that took one round trip
  uint64_t guesses_wrong = 0;    // that took two
  int64_t round_trip_us = 0;     // smoothed
  int64_t rto_us = 0;
  int64_t busy_us = 0;         // in which at least one sum was under way
  uint32_t window_chunks = 0;  // how many chunks may be in flight now

  // Adds what another transport of the same session counted.
  AllReduceStats& operator+=(const AllReduceStats& other) {
    using S = AllReduceStats;
    for (const auto count : {&S::sums_started, &S::sums_completed, &S::tensor_bytes, &S::packets_sent, &S::bytes_sent,
                             &S::packets_received, &S::bytes_received, &S::packets_resent, &S::packets_dropped,
                             &S::packets_forged, &S::sums_wrong, &S::order_messages, &S::order_rollbacks,
                             &S::flagged_chunks, &S::guesses_right, &S::guesses_wrong}) {
      this->*count += other.*count;
    }
    round_trip_us = std::max(round_trip_us, other.round_trip_us);
    rto_us = std::max(rto_us, other.rto_us);
    busy_us = std::max(busy_us, other.busy_us);
    window_chunks += other.window_chunks;
    return *this;
  }
};

// The oldest sum that isn't finished, for warnings and errors.
struct Stall {
  std::string site_name;
  SumKey key;
  int64_t since_us = 0;          // when the sum was started
  bool waits_for_gpu = false;    // this host's GPU hasn't delivered all elements
  bool waits_for_order = false;  // else: rank 0 hasn't announced this sum yet
  uint32_t shard = 0;            // else, from here on: the first chunk without a result
  uint32_t slot = 0;
  uint8_t version = 0;
  uint32_t sequence = 0;
  std::string job_is_at{};  // a sum that comes first in rank 0's order and that this host hasn't issued; else empty
};

class AllReduce {
 public:
  // `drivers`: one for each shard. `relay` sends an order message reliably and in order: rank 0's to all other ranks,
  // and theirs to rank 0.
  AllReduce(const JobConfig& job, std::vector<Driver*> drivers, std::function<void(std::string)> relay);

  void Start(Sum sum, int64_t now_us);
  // More elements of a sum can be read; see Collective::Ready.
  void OnReady(const SumKey& key, uint64_t elements);
  // Returns whether a sum waited for it.
  bool OnPacket(uint32_t shard, std::span<const uint8_t> packet, int64_t now_us);
  // The result that it took last, if it was sent to this rank alone.
  const wire::OwnResult& last_result() const { return last_result_; }
  // The reason why the job can't go on, if it can't. From then on nothing is sent or received; call Fail.
  const std::optional<Failure>& failure() const { return failure_; }
  // Returns the failure if the message makes no sense.
  std::optional<Failure> OnOrderMessage(std::span<const uint8_t> message);
  // Sends what can be sent and resends what is due.
  void OnTimer(int64_t now_us);
  // When OnTimer is due: 0 if at once, INT64_MAX if nothing waits.
  int64_t next_timer_us() const {
    if (failure_) return INT64_MAX;
    return dirty_ ? 0 : std::min(window_.next_timer_us(), leader_.next_timer_us());
  }

  // Returns this rank's first element that isn't finite, once, where job.check_nans asks for it. None if a result that
  // isn't came before: this rank may have made its own from that.
  std::optional<NonFinite> TakeNonFinite() {
    return first_non_finite_ ? std::exchange(first_non_finite_, std::nullopt) : std::nullopt;
  }

  // Calls `done` of every sum with `failure`; nothing is sent or received from then on.
  void Fail(const Failure& failure);

  bool idle() const { return log_.sums().empty(); }
  std::optional<Stall> OldestStall() const;
  // Without busy_us.
  AllReduceStats stats() const {
    AllReduceStats stats = stats_;
    stats.round_trip_us = window_.round_trip_us();
    stats.rto_us = window_.rto_us();
    stats.window_chunks = window_.chunks();
    return stats;
  }
  const SumTimes& times() const { return times_; }

 private:
  // Order.
  void Issue(std::unique_ptr<SumPass> sum);
  void PlaceIssued(int64_t now_us);
  void Relay(std::string message) {
    if (message.empty()) return;
    ++stats_.order_messages;
    relay_(std::move(message));
  }
  void SpeculateAhead();
  void AddEntry(const LogEntry& entry);
  bool DropEntriesFrom(uint64_t index);

  // Sending.
  void ResendOverdue(int64_t now_us);
  void SendNew(int64_t now_us);
  ChunkLanes SendChunk(const PlacedSegment& placed, uint32_t index);

  // Receiving.
  void TakeExponents(PlacedSegment& placed, uint32_t chunk, const uint8_t* lanes);
  void CheckOwn(const PlacedSegment& placed, uint32_t chunk, uint8_t flags);
  void TakeData(const PlacedSegment& placed, uint32_t chunk, const uint8_t* lanes, uint8_t flags);
  void OnWrongSum(const PlacedSegment& placed, uint64_t position);
  void Retire();
  void Complete(std::unique_ptr<SumPass> sum, int64_t now_us);

  const bool leads_;
  const ChunkPackets packets_;
  const std::vector<Driver*> drivers_;  // by shard
  const std::function<void(std::string)> relay_;
  Order order_;
  Leader leader_;
  LastExponents last_exponents_;
  OrderLog log_;
  EarlySums early_sums_;
  SlotWindow window_;
  std::unordered_map<uint64_t, uint32_t> wrong_results_;  // count of wrong results, by position in flight
  std::unordered_map<uint64_t, std::string> site_names_;  // as rank 0 announced them
  std::string announcement_;
  wire::OwnResult last_result_;
  bool dirty_ = false;  // something happened that OnTimer may act on
  bool checks_nans_;    // until one was seen
  std::optional<NonFinite> first_non_finite_;
  std::optional<Failure> failure_;
  AllReduceStats stats_;
  SumTimes times_;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_ALL_REDUCE_H_
