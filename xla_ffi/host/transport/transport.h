// Runs a RankCore over UDP for a session, on a thread of its own and on those of its callers.
#ifndef XLA_FFI_HOST_TRANSPORT_TRANSPORT_H_
#define XLA_FFI_HOST_TRANSPORT_TRANSPORT_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "host/rank_core.h"
#include "host/transport/caller_wait.h"
#include "host/transport/event_queue.h"
#include "host/transport/shard_sockets.h"
#include "host/transport/wake_up.h"
#include "net/udp_socket.h"

namespace passing {

class Transport : public Collective {
 public:
  // Takes the bound sockets, each connected to its shard's data port, and those that hear the job's multicast group,
  // where a shard's results come that way (by shard; empty: nowhere). `on_event` takes the events in place of
  // WaitEvent, at once and on any thread, while locks are held. Throws std::invalid_argument if the job's numbers,
  // which the switches told, are out of range.
  Transport(std::vector<UdpSocket> sockets, const RankOptions& options,
            std::vector<std::optional<UdpSocket>> groups = {}, std::function<void(RankEvent)> on_event = {});
  ~Transport() override;  // fails what is pending, joins the thread

  uint32_t world_size() const override { return core_.world_size(); }
  void Start(Sum sum) override;
  void Ready(const SumKey& key, uint64_t elements) override;
  // Pushes an event before those of the sums that follow.
  void Announce(const ProgramInfo& program) override;

  // From any thread.
  void DeliverOrderMessage(std::string message);
  // Keeps what the session learned about the reported stall (missing ranks) for the deadline's message.
  void NoteStall(std::string note);
  void Fail(const Failure& failure) override;
  std::optional<Failure> failure() const;

  // The next event; empty after timeout_s or once the transport is closed. The session polls for it on a thread of its
  // own.
  std::optional<RankEvent> WaitEvent(double timeout_s);
  // True once no sum is pending; false after timeout_s.
  bool Drain(double timeout_s);
  AllReduceStats stats() const;
  UdpSocketStats socket_stats() const;
  SumTimes::BySize times() const;
  // The sum that was started first of those that aren't done, and how long ago; none if there is none.
  std::optional<std::pair<Stall, int64_t>> Oldest() const;
  // Idempotent. Pending sums fail; WaitEvent returns. The sockets are closed.
  void Close();

 private:
  // With mutex_ held.
  bool over() const { return closed_ || failure_.has_value(); }
  // Callers left something that Work takes.
  bool has_left() const { return !starts_.empty() || !ready_.empty() || !order_messages_.empty(); }
  void NoteIdle();
  void Push(RankEvent event) { on_event_ ? on_event_(std::move(event)) : events_.Push(std::move(event)); }

  struct ReadyElements {
    SumKey key;
    uint64_t elements = 0;
  };

  // With core_mutex_ held and without mutex_: on the thread; all but Run and End on callers' threads too.
  void Run();
  void ServeByCaller();
  void Work(int64_t now_us);
  void Receive();
  void ReceiveFrom(uint32_t shard, UdpSocket* socket, bool is_group);
  void OnEvent(RankEvent event);
  void End();

  WakeUp wake_up_;  // with mutex_
  EventQueue events_;
  const std::function<void(RankEvent)> on_event_;

  // Taken before mutex_ by who needs both. The thread holds it whenever it is awake; a caller never waits for it, and
  // holds it while it serves.
  mutable std::mutex core_mutex_;
  ShardSockets sockets_;  // the thread sleeps in it without any lock; a caller has the core's, so that none closes them
  RankCore core_;
  std::vector<Sum> taken_starts_;  // empty except during Work, as the next
  std::vector<ReadyElements> taken_ready_;
  std::vector<std::string> taken_order_messages_;

  // Callers leave these for the thread, or ask for them.
  mutable std::mutex mutex_;
  std::vector<Sum> starts_;
  std::vector<ReadyElements> ready_;
  std::vector<std::string> order_messages_;
  std::optional<std::string> stall_note_;
  CallerWait caller_wait_;
  std::optional<Failure> failure_;
  bool closed_ = false;
  bool idle_ = true;                 // no sum is pending
  std::condition_variable drained_;  // idle_

  std::mutex close_mutex_;
  std::thread thread_;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_TRANSPORT_TRANSPORT_H_
