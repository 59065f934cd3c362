// AllReduce over UDP, on a thread of its own and on those of its callers: what a session holds.
#ifndef XLA_FFI_HOST_TRANSPORT_H_
#define XLA_FFI_HOST_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "host/all_reduce.h"
#include "net/udp_socket.h"

namespace passing {

// Relay it to all other ranks.
struct OrderMessage {
  std::string bytes;
};

// Warn, and ask the switch who is missing.
struct Stalled {
  Stall stall;
  double stalled_s = 0;
};

// Once a shard: its results don't reach us by multicast any more, so it must send each rank its own.
struct GroupLost {
  uint32_t shard = 0;
};

// What the transport asks of its session (Python), which polls for it on a thread of its own. A program is to be
// compared with what the other ranks run. A failure, which comes once, is to be told to the switch, whoever called
// Fail.
using TransportEvent = std::variant<OrderMessage, ProgramInfo, Stalled, GroupLost, Failure>;

struct TransportOptions {
  JobConfig job;
  double warn_s = 5;
  double deadline_s = 60;
};

class Transport : public Collective {
 public:
  // Takes the bound sockets, each connected to its shard's data port, and those that hear the job's multicast group,
  // where a shard's results come that way (by shard; empty: nowhere). Throws std::invalid_argument if the job's
  // numbers, which the switches told, are out of range.
  Transport(std::vector<UdpSocket> sockets, const TransportOptions& options,
            std::vector<std::optional<UdpSocket>> groups = {});
  ~Transport() override;  // fails what is pending, joins the thread

  uint32_t world_size() const override;
  void Start(Sum sum) override;
  // As an event, before those of the sums that follow.
  void Announce(const ProgramInfo& program) override;

  // From any thread.
  void DeliverOrderMessage(std::string message);
  // What the session learned about the stall that was reported (missing ranks); part of the deadline's message.
  void NoteStall(std::string note);
  // Fails all sums, now and later. The first failure wins.
  void Fail(const Failure& failure);
  std::optional<Failure> failure() const;

  // The next event; empty after timeout_s or once the transport is closed.
  std::optional<TransportEvent> WaitEvent(double timeout_s);
  // True once no sum is pending; false after timeout_s.
  bool Drain(double timeout_s);
  AllReduceStats stats() const;
  UdpSocketStats socket_stats() const;
  // Idempotent. Pending sums fail; WaitEvent returns.
  void Close();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_TRANSPORT_H_
