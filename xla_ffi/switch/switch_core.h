// A switch without its sockets: packets come in, and answers leave, with where they go. No clock, no threads.
#ifndef XLA_FFI_SWITCH_SWITCH_CORE_H_
#define XLA_FFI_SWITCH_SWITCH_CORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "net/address.h"
#include "switch/slot_pool.h"
#include "wire/group_watch.h"

namespace passing {

// The group to which a job's results are sent once for all workers, and the address of ours that sends them.
struct MulticastGroup {
  Address group;
  Address from;
};

// How results of a job travel.
struct ResultWays {
  std::optional<MulticastGroup> group = std::nullopt;  // without one each worker is sent its own
  std::vector<Address> own{};        // by which each worker knows us, as it takes packets from no other; or empty
  bool hears_parents_group = false;  // the parent sends results to a group that we have joined
  bool ports_apart = false;          // each worker is behind a port of its own
};

// Answers of one job that go the same way, side by side.
struct Outgoing {
  uint16_t job;
  std::span<const uint8_t> bytes;
  std::span<const uint16_t> packet_bytes;
  std::span<const Address> workers;  // each is sent a copy; without any, the job's parent is sent one
  std::span<const Address> from;     // of our addresses, for each worker; or empty
  const MulticastGroup* group;       // is sent one copy in place of the workers, if that is possible; or null
};

class SwitchCore {
 public:
  // `send` is called by Flush alone.
  SwitchCore(uint32_t slot_count, std::function<void(const Outgoing&)> send);

  // See SlotPool::AddJob. Throws std::invalid_argument, also if the addresses of ours aren't one a worker; then nothing
  // has changed.
  void AddJob(const JobSlots& job, ResultWays ways);
  void RemoveJob(uint16_t job);
  void StopMulticast(uint16_t job);

  // See SlotPool.
  void SetTime(uint64_t now_us) { pool_.SetTime(now_us); }
  // Takes a packet; what it is answered waits for Flush. `by_group`: it came to a group, the parent's.
  Verdict OnPacket(std::span<const uint8_t> packet, const Address& source, bool by_group);
  // Sends all answers. Call it after each batch of packets, and before jobs change.
  void Flush();

  // False once the results of this job's parent, which it sends to a group, come only because we ask again.
  bool HearsParentsGroup(uint16_t job) const;
  std::optional<JobCounts> CountsOf(uint16_t job) const { return pool_.CountsOf(job); }
  SlotVersion VersionOf(uint32_t slot, uint8_t version) const { return pool_.VersionOf(slot, version); }
  uint64_t Count(Verdict verdict) const { return pool_.Count(verdict); }

 private:
  struct Route {
    std::vector<Address> workers;
    ResultWays ways;
    wire::GroupWatch parents_group{};
    uint64_t bare = 0;         // the workers that needed no lanes of the last such result,
    uint32_t bare_in_row = 0;  // and of how many before it
  };

  // Answers that go the same way, side by side.
  struct Batch {
    uint16_t job = 0;
    SendTo to = SendTo::kNobody;
    uint64_t workers = 0;      // bits of those that are sent a copy each; 0 for the parent, or for all of the job
    bool has_headers = false;  // some workers get whole results, others headers
    uint64_t first = 0;        // the number of its first answer
    std::vector<uint8_t> bytes{};
    std::vector<uint16_t> packet_bytes{};
  };

  void Queue(const Action& action);
  int MostCopies(const Action& action);
  void Queue(const Action& action, uint64_t workers, std::span<const uint8_t> packet);
  Outgoing WayOf(const Batch& batch);

  const std::function<void(const Outgoing&)> send_;
  SlotPool pool_;
  std::unordered_map<uint16_t, Route> routes_;  // by job
  std::vector<Batch> batches_;                  // of which the first so many are in use; the others keep their memory
  size_t batch_count_ = 0;
  uint64_t answer_count_ = 0;
  std::vector<Address> some_workers_;  // those of the batch that is being sent, and how each knows us
  std::vector<Address> some_own_;
};

}  // namespace passing

#endif  // XLA_FFI_SWITCH_SWITCH_CORE_H_
