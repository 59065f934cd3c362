// Everything of a simulated cluster that packets meet: sockets, the cores of its switches and hosts (SwitchCore,
// RankCore), and the network between them. The driver does the rest, and turns what happens here (Event) into messages,
// as a session does: tests/simulation, which has the control planes and their connections, or Cluster
// (tests/xla_ffi/host/support), for the tests of C++.
#ifndef TESTS_XLA_FFI_SIMULATION_PACKETS_H_
#define TESTS_XLA_FFI_SIMULATION_PACKETS_H_

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "../tests/xla_ffi/host/support/reference.h"
#include "../tests/xla_ffi/net/fake_network.h"
#include "../tests/xla_ffi/net/links.h"
#include "../tests/xla_ffi/net/neighbour.h"
#include "host/job_config.h"
#include "host/rank_core.h"
#include "switch/switch_core.h"
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
inline Endpoint EndpointOf(const Address& address) {
  Endpoint endpoint{.port = static_cast<uint16_t>(address.bytes[4] | address.bytes[5] << 8)};
  for (int i = 0; i < 4; ++i) endpoint.machine |= uint32_t{address.bytes[i]} << (8 * i);
  return endpoint;
}

// Names a sum: the elements of all hosts of an incarnation with the same key are added up.
using CallKey = std::tuple<uint32_t, uint32_t, uint32_t>;  // site, execution, step

// A socket has heard all probes.
struct Heard {};
// All sums of an execution have their results.
struct Executed {
  uint32_t execution;
};
// Something doesn't hold that must hold whatever happens.
struct Violation {
  std::string text;
};
struct Event {
  uint32_t who = 0;  // a host; of Heard a socket
  std::variant<RankEvent, Heard, Executed, Violation> what;
};

// They see all packets, know every number and have no key, but for those of epochs that are over.
struct Strangers {
  double forge = 0;            // share of packets beside which they send one of their own
  bool from_anywhere = false;  // in anybody's name; else from their own address alone
};

class Packets {
 public:
  // `up`: of packets from hosts to switches, and from these to their parents; `down`: of the others. `plain`: all
  // elements are finite, and there when their sum starts. Else a few aren't, and those of some sums come later.
  Packets(uint64_t seed, const Faults& up, const Faults& down, const Strangers& strangers, bool plain = false)
      : network_(seed, up), up_(up), down_(down), strangers_(strangers), plain_(plain), seed_(seed) {}

  Packets(const Packets&) = delete;
  Packets& operator=(const Packets&) = delete;

  int64_t now_us() const { return network_.now_us(); }
  FakeNetwork& network() { return network_; }

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
  // All machines with a link are connected to one network switch. They answer a packet at once; others leave packets a
  // random time to gather.
  void AddLink(uint32_t machine, const Link& link) { links_.Add(machine, link); }
  const Links& links() const { return links_; }
  Neighbour& AddNeighbour(uint32_t from, uint32_t to) { return neighbours_.emplace_back(network_, links_, from, to); }

  // Sockets.

  // `peer`: it takes packets from there alone, and others may be at the same address. Returns its number.
  uint32_t Open(const Endpoint& own, const std::optional<Endpoint>& peer) {
    assert(!socket_at_.contains({own, peer.value_or(Endpoint{})}));
    sockets_[++last_] = {.own = own, .peer = peer};
    socket_at_[{own, peer.value_or(Endpoint{})}] = last_;
    return last_;
  }
  void Close(uint32_t socket) {
    const auto found = sockets_.find(socket);
    if (found == sockets_.end()) return;
    socket_at_.erase({found->second.own, found->second.peer.value_or(Endpoint{})});
    sockets_.erase(found);
  }
  void JoinGroup(uint32_t socket, const Endpoint& group, const wire::ProbeName& name) {
    sockets_.at(socket).group.emplace(group, wire::ProbeListener(name));
  }
  void LeaveGroup(uint32_t socket) { sockets_.at(socket).group.reset(); }
  bool HearsGroup(uint32_t socket) {
    return sockets_.at(socket).group && sockets_.at(socket).group->listener.heard_all();
  }

  // `observer` sees each packet as it is sent, whether or not it arrives.
  using Observer = std::function<void(const Endpoint& from, std::span<const uint8_t> packet)>;
  void Observe(Observer observer) { observer_ = std::move(observer); }

  // Switches.

  uint32_t AddSwitch(const Endpoint& own, uint32_t slot_count, uint32_t whole_lanes);
  // With all jobs, and the sockets to their parents.
  void RemoveSwitch(uint32_t number) {
    for (const auto& [job, held] : switches_.at(number).jobs) End(held);
    switches_.erase(number);
    Close(number);
  }
  // `uplink`: the socket to the parent, 0 without one.
  void AddJob(uint32_t number, JobSlots job, const std::vector<Endpoint>& workers, const std::optional<Endpoint>& group,
              uint32_t uplink);
  void RemoveJob(uint32_t number, uint16_t job);
  void StopMulticast(uint32_t number, uint16_t job) {
    Flush(number);
    switches_.at(number).core->StopMulticast(job);
  }
  void Probe(uint32_t number, const Endpoint& group, const wire::ProbeName& name, uint16_t lanes);
  const SwitchCore& CoreOf(uint32_t number) const { return *switches_.at(number).core; }

  // Hosts. `moves`: if not all, each rank has a row of each leaf, of the first device.
  uint32_t AddSite(DType dtype, std::vector<uint64_t> leaves, uint32_t device_count, Op op, WireDtype wire_dtype,
                   Moves moves = Moves::kAll, bool early = false);
  // `sockets`: by shard, which it takes over. The hosts of one `incarnation` add up with one another and nobody else.
  uint32_t AddHost(const RankOptions& options, const std::vector<uint32_t>& sockets, uint32_t incarnation);
  // One execution of a program: a sum of each of `sites`, issued in any order within `spread_us`.
  void Execute(uint32_t number, uint32_t execution, const std::vector<uint32_t>& sites, int64_t spread_us);
  // A sum of the driver's own.
  void Start(uint32_t number, Sum sum) {
    Host& host = hosts_.at(number);
    if (host.core->idle()) host.progress_us = now_us();
    host.core->Start(std::move(sum), now_us());
    WakeAt(number, now_us());
  }
  void OnReady(uint32_t number, const SumKey& key, uint64_t elements) {
    hosts_.at(number).core->OnReady(key, elements);
    WakeAt(number, now_us());
  }
  const RankCore& RankOf(uint32_t number) const { return *hosts_.at(number).core; }
  // No host has a sum, or will issue one.
  bool idle() const {
    return std::all_of(hosts_.begin(), hosts_.end(),
                       [](const auto& host) { return host.second.core->idle() && host.second.left_of.empty(); });
  }
  void OnOrderMessage(uint32_t number, std::span<const uint8_t> message) {
    hosts_.at(number).core->OnOrderMessage(message);
    WakeAt(number, now_us());
  }
  void NoteStall(uint32_t number, std::string note) { hosts_.at(number).core->NoteStall(std::move(note)); }
  void Fail(uint32_t number, const Failure& failure) { hosts_.at(number).core->Fail(failure); }
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
  struct HeldJob {
    uint32_t uplink = 0;
    std::optional<JobKeys> keys{};
  };
  struct Switch {
    Endpoint own;
    std::unique_ptr<SwitchCore> core;
    uint32_t whole_lanes = 0;
    std::map<uint16_t, HeldJob> jobs{};
    bool will_flush = false;
  };
  struct Host {
    uint32_t machine = 0;
    uint32_t incarnation = 0;
    uint32_t rank = 0;
    uint32_t world_size = 1;
    double deadline_s = 0;
    std::vector<uint32_t> sockets{};
    std::vector<std::unique_ptr<FakeDriver>> drivers{};
    std::unique_ptr<RankCore> core{};
    std::map<CallKey, HostBuffers> calls{};                     // under way
    std::map<uint32_t, uint32_t> left_of{};                     // sums of each execution
    std::vector<std::pair<CallKey, std::set<CallKey>>> late{};  // early sums to be issued, once these are done
    int64_t wake_us = INT64_MAX;
    int64_t progress_us = 0;  // when it last began to wait, got a result, or was woken from a pause
  };

  void End(const HeldJob& job) {
    Close(job.uplink);
    if (!job.keys || keys_of_then_.size() >= kKeysOfThen) return;
    for (const wire::PacketKey& key : job.keys->contributions) keys_of_then_.push_back(key);
    keys_of_then_.push_back(job.keys->results);
  }

  void Violate(uint32_t who, std::string text) { events_.push_back({who, Violation{std::move(text)}}); }

  // ---------------------------------------------------------------- the network
  void Send(const Endpoint& from, const Endpoint& to, std::vector<uint8_t> packet, const Faults& faults) {
    const double at_switch_us = links_.Leave(from.machine, packet.size());
    Carry(from, to, std::move(packet), faults, at_switch_us);
  }
  void Carry(const Endpoint& from, const Endpoint& to, std::vector<uint8_t> packet, const Faults& faults,
             double at_switch_us, bool by_group = false);
  int64_t GatheringUs(uint32_t machine) { return links_.Has(machine) ? 0 : network_.Below(kBatchUs); }
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
  void Flush(uint32_t number);
  void SendOut(uint32_t number, const Outgoing& out);

  // ---------------------------------------------------------------- hosts
  void WatchMasks(uint32_t number, uint32_t shard, std::span<const uint8_t> packet);
  void OnHost(const Socket& socket, std::span<const uint8_t> packet, bool by_group);
  void OnEvent(uint32_t number, RankEvent event);
  void Issue(uint32_t number, const CallKey& key);
  void DeliverLate(uint32_t number, const CallKey& key, Sum& sum);
  std::shared_ptr<HostBuffers> RowsAlone(uint32_t number, const CallKey& key, Sum& sum);
  void DeliverNext(uint32_t number, const CallKey& key, const SumKey& sum_key,
                   const std::shared_ptr<const HostBuffers>& late, uint64_t begin,
                   const std::shared_ptr<std::mt19937_64>& random);
  void Deliver(uint32_t number, const CallKey& key, const SumKey& sum_key,
               const std::shared_ptr<const HostBuffers>& late, uint64_t begin,
               const std::shared_ptr<std::mt19937_64>& random);
  void OnDone(uint32_t number, const CallKey& key, const Failure* failure);
  HostBuffers InputsOf(uint32_t number, uint32_t rank, uint32_t world_size, const CallKey& key) const;
  // Are those of the first `elements` elements right that the host needs?
  bool AreRight(const Host& host, const CallKey& key, uint64_t elements);
  const std::vector<Bytes>* ReferenceOf(uint32_t incarnation, const CallKey& key);
  void WakeAt(uint32_t number, int64_t at_us);
  void Wake(uint32_t number, int64_t at_us);
  bool WaitsForPause(uint32_t machine, std::function<void()> event);
  static constexpr int64_t kBatchUs = 20;  // some more packets may come before a host or a switch answers
  static constexpr uint64_t kLateUs = 2'000;
  static constexpr Endpoint kStranger{.machine = 0x0A090909, .port = 666};
  static constexpr int64_t kForgedLateUs = 400;  // sooner or later than the true packet
  static constexpr size_t kRecorded = 64;
  static constexpr size_t kKeysOfThen = 16;

  FakeNetwork network_;
  const Faults up_;
  const Faults down_;
  const Strangers strangers_;
  const bool plain_;
  const uint64_t seed_;
  uint32_t last_ = 0;  // number of a socket, a switch or a host
  std::map<uint32_t, Socket> sockets_;
  std::map<std::pair<Endpoint, Endpoint>, uint32_t> socket_at_;  // by its own address, and its peer's or none
  std::unordered_map<uint32_t, Switch> switches_;                // by the number of their socket
  std::unordered_map<uint32_t, Host> hosts_;
  std::unordered_map<uint32_t, int64_t> paused_until_;
  std::map<std::pair<uint32_t, uint32_t>, int64_t> blocked_until_;
  Links links_{network_};
  std::deque<Neighbour> neighbours_;
  std::vector<std::shared_ptr<const SumSpec>> sites_;
  std::unordered_map<uint32_t, std::vector<uint32_t>> incarnations_;  // its hosts, by rank
  std::map<std::pair<uint32_t, CallKey>, std::vector<Bytes>> references_;
  std::vector<Event> events_;
  std::vector<Seen> recorded_;                 // some of all packets
  std::vector<wire::PacketKey> keys_of_then_;  // of epochs that are over
  // Hosts of confidential sums have sent these: a hash of the lanes by host, shard and sequence; and some pairs of
  // lanes, by their index.
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, size_t> masked_;
  std::set<std::pair<uint32_t, uint64_t>> masked_pairs_;
  Observer observer_;
  uint64_t first_position_ = 0;
  uint64_t packet_count_ = 0;
  uint64_t forged_ = 0;
  uint64_t sums_right_ = 0;
  uint64_t sums_failed_ = 0;
};

}  // namespace passing::simulation

#endif  // TESTS_XLA_FFI_SIMULATION_PACKETS_H_
