// Everything of a simulated cluster that packets meet: sockets, the slot pools of its switches, the AllReduce of its
// hosts, and the network between them. The driver, tests/simulation, does the rest: it has the control planes and their
// connections, and turns what happens here (Event) into messages, as a session does.
//
// It does what the shells of the core do: host/transport, switch/udp_switch and python/bind_socket.
#ifndef TESTS_XLA_FFI_SIMULATION_PACKETS_H_
#define TESTS_XLA_FFI_SIMULATION_PACKETS_H_

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../tests/xla_ffi/host/support/reference.h"
#include "../tests/xla_ffi/net/fake_network.h"
#include "host/all_reduce.h"
#include "host/failures.h"
#include "host/job_config.h"
#include "host/stall_watch.h"
#include "switch/slot_pool.h"
#include "wire/group_watch.h"
#include "wire/probe.h"

namespace passing::simulation {

// An IPv4 address and port. A machine's address is its number, so that the driver needs no table of addresses.
struct Endpoint {
  uint32_t machine = 0;
  uint16_t port = 0;
  friend auto operator<=>(const Endpoint&, const Endpoint&) = default;
};

inline Address AddressOf(const Endpoint& endpoint) {
  Address address;
  for (int i = 0; i < 4; ++i) address.bytes[i] = static_cast<uint8_t>(endpoint.machine >> (8 * i));
  address.bytes[4] = static_cast<uint8_t>(endpoint.port);
  address.bytes[5] = static_cast<uint8_t>(endpoint.port >> 8);
  address.size = 6;
  return address;
}

// Names a sum: the elements of all hosts of an incarnation with the same key are added up.
using CallKey = std::tuple<uint32_t, uint32_t, uint32_t>;  // site, execution, step

struct Event {
  enum Kind : uint8_t {
    kOrderMessage,  // of rank 0, to relay
    kStalled,
    kGroupLost,
    kFailed,     // by itself: the deadline
    kHeard,      // a socket has heard all probes
    kExecuted,   // all sums of an execution have their results
    kViolation,  // of what must hold whatever happens
  };
  Kind kind;
  uint32_t who = 0;     // a host; kHeard: a socket
  uint32_t number = 0;  // kExecuted: the execution; kGroupLost: the shard
  double stalled_s = 0;
  Stall stall{};
  std::string kind_of_failure{};
  std::string text{};
};

// They see all packets, know every number and have no key, but for those of epochs that are over.
struct Strangers {
  double forge = 0;            // share of packets beside which they send one of their own
  bool from_anywhere = false;  // in anybody's name; else from their own address alone
};

class Packets {
 public:
  // `up`: of packets from hosts to switches, and from these to their parents; `down`: of the others.
  Packets(uint64_t seed, const Faults& up, const Faults& down, const Strangers& strangers)
      : network_(seed, up), up_(up), down_(down), strangers_(strangers), seed_(seed) {}

  Packets(const Packets&) = delete;
  Packets& operator=(const Packets&) = delete;

  int64_t now_us() const { return network_.now_us(); }

  // Until then, or until something has happened that the driver must know of, which Take returns.
  void Run(int64_t until_us) {
    while (events_.empty() && network_.Step(until_us)) {
    }
  }
  std::vector<Event> Take() { return std::exchange(events_, {}); }

  // Faults.

  // A paused machine does nothing; what arrives waits in its sockets.
  void Pause(uint32_t machine, int64_t until_us) { paused_until_[machine] = until_us; }
  void Block(uint32_t from, uint32_t to, int64_t until_us) { blocked_until_[{from, to}] = until_us; }

  // Sockets.

  // `peer`: it takes packets from there alone. Returns its number.
  uint32_t Open(const Endpoint& own, const std::optional<Endpoint>& peer) {
    assert(!socket_at_.contains(own));
    sockets_[++last_] = {.own = own, .peer = peer};
    socket_at_[own] = last_;
    return last_;
  }
  void Close(uint32_t socket) {
    const auto found = sockets_.find(socket);
    if (found == sockets_.end()) return;
    socket_at_.erase(found->second.own);
    sockets_.erase(found);
  }
  void JoinGroup(uint32_t socket, const Endpoint& group, const wire::ProbeName& name) {
    sockets_.at(socket).group.emplace(group, wire::ProbeListener(name));
  }
  void LeaveGroup(uint32_t socket) { sockets_.at(socket).group.reset(); }
  bool HearsGroup(uint32_t socket) {
    return sockets_.at(socket).group && sockets_.at(socket).group->listener.heard_all();
  }

  // Switches.

  uint32_t AddSwitch(const Endpoint& own, uint32_t slot_count, uint32_t whole_lanes);
  // With all jobs, and the sockets to their parents.
  void RemoveSwitch(uint32_t number) {
    for (const auto& [job, route] : switches_.at(number).routes) End(route);
    switches_.erase(number);
    Close(number);
  }
  // `uplink`: the socket to the parent, 0 without one.
  void AddJob(uint32_t number, JobSlots job, const std::vector<Endpoint>& workers, const std::optional<Endpoint>& group,
              uint32_t uplink);
  void RemoveJob(uint32_t number, uint16_t job);
  void StopMulticast(uint32_t number, uint16_t job) { switches_.at(number).routes.at(job).group.reset(); }
  bool HearsParentsGroup(uint32_t number, uint16_t job) const {
    const auto& routes = switches_.at(number).routes;
    const auto found = routes.find(job);
    return found == routes.end() || !found->second.parents_group.lost();
  }
  void Probe(uint32_t number, const Endpoint& group, const wire::ProbeName& name, uint16_t lanes);
  SlotVersion VersionOf(uint32_t number, uint32_t slot, uint8_t version) const {
    return switches_.at(number).pool->VersionOf(slot, version);
  }
  uint64_t Count(uint32_t number, Verdict verdict) const { return switches_.at(number).pool->Count(verdict); }

  // Hosts.

  uint32_t AddSite(DType dtype, std::vector<uint64_t> leaves, uint32_t device_count, Op op, Wire wire);
  // `sockets`: by shard, which it takes over. The hosts of one `incarnation` add up with one another and nobody else.
  uint32_t AddHost(const JobConfig& job, const std::vector<uint32_t>& sockets, uint32_t incarnation, double warn_s,
                   double deadline_s);
  // One execution of a program: a sum of each of `sites`, issued in any order within `spread_us`.
  void Execute(uint32_t number, uint32_t execution, const std::vector<uint32_t>& sites, int64_t spread_us);
  // Why the host can't go on; nothing if it understood.
  std::optional<Failure> OnOrderMessage(uint32_t number, std::span<const uint8_t> message) {
    auto failure = hosts_.at(number).core->OnOrderMessage(message);
    WakeAt(number, now_us());
    return failure;
  }
  void NoteStall(uint32_t number, std::string note) { hosts_.at(number).stall_note = std::move(note); }
  // All sums, now and later. The first failure wins.
  void Fail(uint32_t number, const Failure& failure) {
    Host& host = hosts_.at(number);
    if (std::exchange(host.has_failed, true)) return;
    host.core->Fail(failure);
  }
  // The process ends, or its session.
  void RemoveHost(uint32_t number);

  // Counts.

  size_t socket_count() const { return sockets_.size(); }
  size_t host_count() const { return hosts_.size(); }
  uint64_t packets() const { return packet_count_; }
  uint64_t forged() const { return forged_; }
  uint64_t sums_right() const { return sums_right_; }
  uint64_t sums_failed() const { return sums_failed_; }
  uint64_t flipped() const { return network_.flipped(); }

 private:
  // A failure may come later than the deadline by what a host takes to notice it.
  static constexpr int64_t kNoticedUs = 100'000;

  struct Group {
    Endpoint address;
    wire::ProbeListener listener;
    bool heard = false;

    Group(const Endpoint& address, wire::ProbeListener listener) : address(address), listener(std::move(listener)) {}
  };
  struct Socket {
    Endpoint own;
    std::optional<Endpoint> peer;
    std::optional<Group> group{};
    uint32_t owner = 0;  // a host or a switch, 0 for nobody yet
    bool owner_is_switch = false;
    uint32_t shard = 0;  // of a host
    uint16_t job = 0;    // of a switch's uplink; 0 of its own socket
  };
  struct Route {
    std::vector<Endpoint> workers;
    std::optional<Endpoint> group;
    std::optional<JobKeys> keys;
    uint32_t uplink = 0;
    bool has_parents_group = false;
    wire::GroupWatch parents_group{};
  };
  struct Switch {
    Endpoint own;
    std::unique_ptr<SlotPool> pool;
    uint32_t whole_lanes = 0;
    std::map<uint16_t, Route> routes{};
  };
  struct Host {
    uint32_t machine = 0;
    JobConfig job;
    uint32_t incarnation = 0;
    double deadline_s = 0;
    std::vector<uint32_t> sockets;
    std::vector<std::unique_ptr<FakeDriver>> drivers;
    std::unique_ptr<AllReduce> core;
    std::unique_ptr<StallWatch> stall_watch;
    std::vector<wire::GroupWatch> group_watches;
    std::string stall_note;
    std::map<CallKey, HostBuffers> calls;    // under way
    std::map<uint32_t, uint32_t> left_of{};  // sums of each execution
    int64_t wake_us = INT64_MAX;
    int64_t progress_us = 0;  // when it last began to wait, got a result, or was woken from a pause
    bool has_failed = false;
  };

  void End(const Route& route) {
    Close(route.uplink);
    if (!route.keys || keys_of_then_.size() >= kKeysOfThen) return;
    for (const wire::PacketKey& key : route.keys->contributions) keys_of_then_.push_back(key);
    keys_of_then_.push_back(route.keys->results);
  }

  static int64_t ToUs(double seconds) { return static_cast<int64_t>(seconds * 1e6); }

  void Violate(uint32_t who, std::string text) {
    events_.push_back({.kind = Event::kViolation, .who = who, .text = std::move(text)});
  }

  // ---------------------------------------------------------------- the network
  void Send(const Endpoint& from, const Endpoint& to, std::vector<uint8_t> packet, const Faults& faults,
            bool by_group = false);
  void SendToGroup(const Endpoint& from, const Endpoint& group, const std::vector<uint8_t>& packet);

  // ---------------------------------------------------------------- strangers
  struct Seen {
    Endpoint from;
    Endpoint to;
    std::vector<uint8_t> packet;
    bool by_group = false;
  };

  void Watch(const Seen& seen);
  void Forge(const Seen& seen);
  void Slip(const Seen& way, std::vector<uint8_t> packet, int64_t late_us);
  void Arrive(const Endpoint& from, const Endpoint& to, std::span<const uint8_t> packet, bool by_group);

  // ---------------------------------------------------------------- switches
  void OnSwitch(const Socket& socket, const Endpoint& from, std::span<const uint8_t> packet, bool by_group);

  // ---------------------------------------------------------------- hosts
  void OnHost(const Socket& socket, std::span<const uint8_t> packet, bool by_group);
  void Issue(uint32_t number, const CallKey& key);
  void DeliverLate(uint32_t number, const CallKey& key, Sum& sum);
  void DeliverNext(uint32_t number, const CallKey& key, const SumKey& sum_key,
                   const std::shared_ptr<const HostBuffers>& late, uint64_t begin,
                   const std::shared_ptr<std::mt19937_64>& random);
  void Deliver(uint32_t number, const CallKey& key, const SumKey& sum_key,
               const std::shared_ptr<const HostBuffers>& late, uint64_t begin,
               const std::shared_ptr<std::mt19937_64>& random);
  void OnDone(uint32_t number, const CallKey& key, const Failure* failure);
  HostBuffers InputsOf(uint32_t number, const CallKey& key) const;
  const std::vector<Bytes>* ReferenceOf(uint32_t incarnation, const CallKey& key);
  void WakeAt(uint32_t number, int64_t at_us);
  void Wake(uint32_t number, int64_t at_us);
  void CheckStall(uint32_t number, Host& host);
  static uint64_t Results(const Host& host);
  bool WaitsForPause(uint32_t machine, std::function<void()> event);
  static constexpr int64_t kBatchUs = 20;
  static constexpr uint64_t kLateUs = 2'000;
  static constexpr Endpoint kStranger{.machine = 0x0A090909, .port = 666};
  static constexpr int64_t kForgedLateUs = 400;  // sooner or later than the true packet
  static constexpr size_t kRecorded = 64;
  static constexpr size_t kKeysOfThen = 16;

  FakeNetwork network_;
  const Faults up_;
  const Faults down_;
  const Strangers strangers_;
  const uint64_t seed_;
  uint32_t last_ = 0;  // number of a socket, a switch or a host
  std::map<uint32_t, Socket> sockets_;
  std::map<Endpoint, uint32_t> socket_at_;
  std::unordered_map<uint32_t, Switch> switches_;  // by the number of their socket
  std::unordered_map<uint32_t, Host> hosts_;
  std::unordered_map<uint32_t, int64_t> paused_until_;
  std::map<std::pair<uint32_t, uint32_t>, int64_t> blocked_until_;
  std::vector<std::shared_ptr<const SumSpec>> sites_;
  std::unordered_map<uint32_t, std::vector<uint32_t>> incarnations_;  // its hosts, by rank
  std::map<std::pair<uint32_t, CallKey>, std::vector<Bytes>> references_;
  std::vector<Event> events_;
  std::vector<Seen> recorded_;                 // some of all packets
  std::vector<wire::PacketKey> keys_of_then_;  // of epochs that are over
  uint64_t first_position_ = 0;
  uint64_t packet_count_ = 0;
  uint64_t forged_ = 0;
  uint64_t sums_right_ = 0;
  uint64_t sums_failed_ = 0;
};

}  // namespace passing::simulation

#endif  // TESTS_XLA_FFI_SIMULATION_PACKETS_H_
