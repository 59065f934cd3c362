// The host's side of the protocol: one rank's sums, as a state machine over a Driver. No threads, no clock,
// no sockets: time is an argument, packets and order messages are handed in.
//
// Start, OnPacket and OnOrderMessage only take note; OnTimer sends. So a batch of packets is answered by one run of
// packets: call OnTimer after each batch, and whenever next_timer_us() has come.
#ifndef XLA_FFI_HOST_ALL_REDUCE_H_
#define XLA_FFI_HOST_ALL_REDUCE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "host/sum.h"
#include "net/driver.h"

namespace passing {

// The job at one of its switches.
struct Shard {
  uint16_t job = 0;
  uint16_t epoch = 0;
  uint32_t slot_first = 0;
  uint16_t worker = 0;       // which one this rank is there
  uint32_t whole_lanes = 0;  // if not 0, this switch takes packets of exactly so many lanes
  std::string name{};        // of the switch, for people
};

// What the control planes settled at join.
struct JobConfig {
  uint16_t rank = 0;
  uint32_t world_size = 1;
  std::vector<Shard> shards{};   // in the order that all ranks agreed on
  uint32_t slots_per_shard = 0;  // a power of two
  uint32_t lanes_per_chunk = wire::kMaxLanes;
  uint64_t first_position = 0;  // alike on all ranks; tests begin right before the sequence wraps
};

struct AllReduceStats {
  uint64_t sums_started = 0;
  uint64_t sums_completed = 0;
  uint64_t tensor_bytes = 0;  // bytes of completed sums, one device's worth
  uint64_t packets_sent = 0;
  uint64_t bytes_sent = 0;  // UDP payload
  uint64_t packets_received = 0;
  uint64_t bytes_received = 0;
  uint64_t packets_resent = 0;
  uint64_t packets_dropped = 0;  // malformed, of another job or epoch, or not awaited
  uint64_t order_messages = 0;   // announcements sent (rank 0) or received
  uint64_t order_rollbacks = 0;  // predictions of the order that turned out wrong
  uint64_t flagged_chunks = 0;   // chunks with NaN or an infinity
  uint64_t guesses_right = 0;    // small sums that took one round trip
  uint64_t guesses_wrong = 0;    // that took two
  int64_t round_trip_us = 0;     // smoothed
  int64_t rto_us = 0;
};

// The oldest sum that isn't finished, for warnings and errors.
struct Stall {
  std::string site_name;
  SumKey key;
  int64_t since_us = 0;          // when the sum was started
  bool waits_for_order = false;  // rank 0 hasn't announced this sum's place yet
  uint32_t shard = 0;            // else: the first chunk without a result
  uint32_t slot = 0;
  uint8_t version = 0;
  uint32_t sequence = 0;
  std::string job_is_at{};  // the sum that rank 0 placed before this one and that this host hasn't issued; else empty
};

class AllReduce {
 public:
  // `drivers`: one for each shard. `broadcast` sends an order message of rank 0 reliably and in order to all other
  // ranks.
  AllReduce(const JobConfig& job, std::vector<Driver*> drivers, std::function<void(std::string)> broadcast);
  ~AllReduce();

  void Start(Sum sum, int64_t now_us);
  void OnPacket(uint32_t shard, std::span<const uint8_t> packet, int64_t now_us);
  // Empty if it was understood; else why the job can't go on: nothing is sent or received from then on, call Fail.
  std::optional<Failure> OnOrderMessage(std::span<const uint8_t> message);
  // Sends what can be sent and resends what is due.
  void OnTimer(int64_t now_us);
  // When OnTimer is due: 0 if at once, INT64_MAX if nothing waits.
  int64_t next_timer_us() const;

  // Calls `done` of every sum with `failure`; nothing is sent or received from then on.
  void Fail(const Failure& failure);

  bool idle() const;
  std::optional<Stall> OldestStall() const;
  AllReduceStats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_ALL_REDUCE_H_
