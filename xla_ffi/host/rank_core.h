// A rank without its sockets: its sums, the watch over those that stall, and what its session must do about them. No
// threads, no clock: time is an argument, packets and order messages are handed in, and events come out.
#ifndef XLA_FFI_HOST_RANK_CORE_H_
#define XLA_FFI_HOST_RANK_CORE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "host/all_reduce.h"
#include "host/job_config.h"
#include "host/stall_watch.h"
#include "host/sums/sum.h"
#include "net/driver.h"
#include "wire/group_watch.h"

namespace passing {

struct RankOptions {
  JobConfig job;
  double warn_s = 5;
  double deadline_s = 60;
};

// Asks to relay the message: rank 0's to all other ranks, theirs to rank 0.
struct OrderMessage {
  std::string bytes;
};

// Asks to warn, and to ask the switch who is missing.
struct Stalled {
  Stall stall;
  double stalled_s = 0;
};

// Tells, once for each shard, that its results no longer arrive by multicast: the shard must send each rank its own.
struct GroupLost {
  uint32_t shard = 0;
};

// A ProgramInfo asks to compare the program with those of the other ranks; it is whoever runs the core that sends it. A
// Failure tells why the job can't go on, and asks to tell the switch.
// NonFinite tells which element of this rank made sums not finite.
using RankEvent = std::variant<OrderMessage, ProgramInfo, Stalled, GroupLost, NonFinite, Failure>;

class RankCore {
 public:
  // `drivers`: one for each shard. `hears_group`: of each shard, whether the rank hears its multicast group. After a
  // Failure, whoever runs the core must call Fail; but not from `on_event`. Throws std::invalid_argument if the job's
  // numbers, which the switches told, are out of range.
  RankCore(const RankOptions& options, std::vector<Driver*> drivers, std::vector<bool> hears_group,
           std::function<void(RankEvent)> on_event);

  uint32_t world_size() const { return options_.job.world_size; }

  // These take note only; OnTimer sends. See AllReduce.
  void Start(Sum sum, int64_t now_us) { sums_.Start(std::move(sum), now_us); }
  void OnReady(const SumKey& key, uint64_t elements) { sums_.OnReady(key, elements); }
  void OnOrderMessage(std::span<const uint8_t> message);
  // Keeps what the session learned about the stall that was reported last, for the deadline's message.
  void NoteStall(std::string note) { stall_note_ = std::move(note); }
  // `by_group`: it came to the shard's group. Returns whether a sum waited for it.
  bool OnPacket(uint32_t shard, std::span<const uint8_t> packet, bool by_group, int64_t now_us);

  // Sends what can be sent, resends what is due, and looks for stalls. May be called at any time.
  void OnTimer(int64_t now_us);
  // When OnTimer is due: 0 if at once, INT64_MAX if nothing waits.
  int64_t next_timer_us() const { return std::min(sums_.next_timer_us(), stall_watch_.next_timer_us()); }

  // Fails all sums, now and later. The first failure wins.
  void Fail(const Failure& failure) { sums_.Fail(failure); }

  bool idle() const { return sums_.idle(); }
  AllReduceStats stats() const { return sums_.stats(); }
  const SumTimes& times() const { return sums_.times(); }
  std::optional<Stall> OldestStall() const { return sums_.OldestStall(); }

 private:
  void CheckStall(int64_t now_us);

  const RankOptions options_;
  const std::function<void(RankEvent)> on_event_;
  AllReduce sums_;
  uint64_t results_ = 0;  // that sums waited for
  StallWatch stall_watch_;
  std::string stall_note_;
  const std::vector<bool> hears_group_;          // by shard
  std::vector<wire::GroupWatch> group_watches_;  // by shard
};

}  // namespace passing

#endif  // XLA_FFI_HOST_RANK_CORE_H_
