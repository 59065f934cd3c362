// Several transports share a session's sums, each with a thread, shards, an order and a window of its own.
//
// A large sum is cut into stripes: each transport has every nth of its segments. A small one goes to one transport as a
// whole. Nothing is shared by the packet, and no transport waits for another one. Segments are those of a session with
// one transport, so all bits are, too.
#ifndef XLA_FFI_HOST_TRANSPORT_STRIPED_TRANSPORT_H_
#define XLA_FFI_HOST_TRANSPORT_STRIPED_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/transport/event_queue.h"
#include "host/transport/transport.h"

namespace passing {

class StripedTransport : public Collective {
 public:
  // The keys of the sums of one transport: by one key, two transports would mask different lanes alike.
  struct Keys {
    std::optional<SumCheck::Key> check{};
    std::optional<LaneMasks::Key> mask{};
  };

  // As Transport. There are as many transports as `keys`, whose number divides that of the shards: transport t has the
  // shards t, t + n, t + 2n and so on.
  StripedTransport(std::vector<UdpSocket> sockets, const RankOptions& options,
                   std::vector<std::optional<UdpSocket>> groups = {}, const std::vector<Keys>& keys = {{}});
  ~StripedTransport() override;

  uint32_t world_size() const override { return transports_.front()->world_size(); }
  void Start(Sum sum) override;
  void Ready(const SumKey& key, uint64_t elements) override;
  void Announce(const ProgramInfo& program) override { transports_.front()->Announce(program); }
  void Fail(const Failure& failure) override;

  // All others are as those of Transport. Shards are counted over all transports.
  void DeliverOrderMessage(std::string message);
  void NoteStall(const std::string& note);
  std::optional<Failure> failure() const;
  // The failure of one transport fails the others here: somebody has to wait for events.
  std::optional<RankEvent> WaitEvent(double timeout_s);
  bool Drain(double timeout_s);
  AllReduceStats stats() const;
  UdpSocketStats socket_stats() const;
  SumTimes::BySize times() const;
  std::optional<std::pair<Stall, int64_t>> Oldest() const;
  void Close();

 private:
  struct Pending;
  uint32_t ShardOf(uint32_t transport, uint32_t shard) const { return transport + shard * count_; }
  void OnEvent(uint32_t transport, RankEvent event);
  void OnDone(Pending& sum, uint32_t stripe, const Failure* failure);

  const uint32_t count_;
  EventQueue events_;
  bool has_told_failure_ = false;  // to the thread that waits for events
  std::vector<std::unique_ptr<Transport>> transports_;

  // Counts sums where there are several transports: those of each count stripes. Taken twice by each sum.
  mutable std::mutex counts_mutex_;
  SumTimes times_;
  bool has_failed_ = false;
  uint64_t sums_started_ = 0;
  uint64_t sums_completed_ = 0;
  uint64_t tensor_bytes_ = 0;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_TRANSPORT_STRIPED_TRANSPORT_H_
