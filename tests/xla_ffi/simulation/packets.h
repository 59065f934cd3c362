// Everything of a simulated cluster that packets meet: sockets, the slot pools of its switches, the AllReduce of its
// hosts, and the network between them. The driver, tests/simulation, does the rest: it has the control planes and their
// connections, and turns what happens here (Event) into messages, as a session does.
//
// What is done here as the shells of the core do it: host/transport, switch/udp_switch and python/bind_socket.
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

// IPv4. Of a machine by its number, so that whoever is driven needs no table of addresses.
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

// Which sum of which host: of the hosts of an incarnation that have the same key, the elements are added.
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

  uint32_t AddSwitch(const Endpoint& own, uint32_t slot_count, uint32_t whole_lanes) {
    const uint32_t socket = Open(own, std::nullopt);
    sockets_.at(socket).owner = socket;
    sockets_.at(socket).owner_is_switch = true;
    switches_.emplace(socket,
                      Switch{.own = own, .pool = std::make_unique<SlotPool>(slot_count), .whole_lanes = whole_lanes});
    return socket;
  }
  // With all jobs, and the sockets to their parents.
  void RemoveSwitch(uint32_t number) {
    for (const auto& [job, route] : switches_.at(number).routes) End(route);
    switches_.erase(number);
    Close(number);
  }
  // `uplink`: the socket to the parent, 0 without one.
  void AddJob(uint32_t number, JobSlots job, const std::vector<Endpoint>& workers, const std::optional<Endpoint>& group,
              uint32_t uplink) {
    Switch& one = switches_.at(number);
    for (const Endpoint& worker : workers) job.addresses.push_back(AddressOf(worker));
    Route route{.workers = workers, .group = group, .keys = job.keys, .uplink = uplink};
    first_position_ = job.first_position;
    if (uplink != 0) {
      Socket& socket = sockets_.at(uplink);
      job.parent->address = AddressOf(*socket.peer);
      socket.owner = number;
      socket.owner_is_switch = true;
      socket.job = job.job;
      route.has_parents_group = socket.group.has_value();
    }
    one.pool->AddJob(job);
    one.routes.insert_or_assign(job.job, std::move(route));
  }
  void RemoveJob(uint32_t number, uint16_t job) {
    Switch& one = switches_.at(number);
    one.pool->RemoveJob(job);
    const auto route = one.routes.find(job);
    if (route == one.routes.end()) return;
    End(route->second);
    one.routes.erase(route);
  }
  void StopMulticast(uint32_t number, uint16_t job) { switches_.at(number).routes.at(job).group.reset(); }
  bool HearsParentsGroup(uint32_t number, uint16_t job) const {
    const auto& routes = switches_.at(number).routes;
    const auto found = routes.find(job);
    return found == routes.end() || !found->second.parents_group.lost();
  }
  void Probe(uint32_t number, const Endpoint& group, const wire::ProbeName& name, uint16_t lanes) {
    const wire::ProbeBurst burst = wire::MakeProbeBurst(name, lanes);
    const uint8_t* at = burst.bytes.data();
    for (const uint16_t bytes : burst.packet_bytes) {
      SendToGroup(switches_.at(number).own, group, {at, at + bytes});
      at += bytes;
    }
  }
  SlotVersion VersionOf(uint32_t number, uint32_t slot, uint8_t version) const {
    return switches_.at(number).pool->VersionOf(slot, version);
  }
  uint64_t Count(uint32_t number, Verdict verdict) const { return switches_.at(number).pool->Count(verdict); }

  // Hosts.

  uint32_t AddSite(DType dtype, std::vector<uint64_t> leaves, uint32_t device_count, Op op) {
    sites_.push_back(std::make_shared<SumShape>(SumShape{.site_name = "site " + std::to_string(sites_.size()),
                                                         .dtype = dtype,
                                                         .leaf_elements = std::move(leaves),
                                                         .device_count = device_count,
                                                         .op = op}));
    return static_cast<uint32_t>(sites_.size() - 1);
  }
  // `sockets`: by shard, which it takes over. The hosts of one `incarnation` add up with one another and nobody else.
  uint32_t AddHost(const JobConfig& job, const std::vector<uint32_t>& sockets, uint32_t incarnation, double warn_s,
                   double deadline_s) {
    const uint32_t number = ++last_;
    Host& host = hosts_[number];
    host.job = job;
    host.deadline_s = deadline_s;
    host.sockets = sockets;
    host.incarnation = incarnation;
    host.group_watches.resize(sockets.size());
    std::vector<Driver*> drivers;
    for (uint32_t shard = 0; shard < sockets.size(); ++shard) {
      Socket& socket = sockets_.at(sockets[shard]);
      socket.owner = number;
      socket.shard = shard;
      host.machine = socket.own.machine;
      host.drivers.push_back(std::make_unique<FakeDriver>(
          [this, own = socket.own, to = *socket.peer](auto packet) { Send(own, to, std::move(packet), up_); }));
      drivers.push_back(host.drivers.back().get());
    }
    host.core = std::make_unique<AllReduce>(job, drivers, [this, number](std::string message) {
      events_.push_back({.kind = Event::kOrderMessage, .who = number, .text = std::move(message)});
    });
    host.stall_watch = std::make_unique<StallWatch>(ToUs(std::min(warn_s, deadline_s / 2)), ToUs(deadline_s));
    auto& ranks = incarnations_[incarnation];
    ranks.resize(job.world_size);
    if (ranks[job.rank] != 0) Violate(number, "two hosts are rank " + std::to_string(job.rank) + " of one incarnation");
    ranks[job.rank] = number;
    return number;
  }
  // One execution of a program: a sum of each of `sites`, issued in any order within `spread_us`.
  void Execute(uint32_t number, uint32_t execution, const std::vector<uint32_t>& sites, int64_t spread_us) {
    Host& host = hosts_.at(number);
    host.left_of[execution] = static_cast<uint32_t>(sites.size());
    std::map<uint32_t, uint32_t> steps;
    for (const uint32_t site : sites) {
      const CallKey key{site, execution, steps[site]++};
      network_.After(network_.Below(spread_us + 1), [this, number, key] { Issue(number, key); });
    }
  }
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
  void RemoveHost(uint32_t number) {
    Host& host = hosts_.at(number);
    for (const uint32_t socket : host.sockets) Close(socket);
    const uint32_t incarnation = host.incarnation;
    hosts_.erase(number);
    const auto& ranks = incarnations_.at(incarnation);
    if (std::any_of(ranks.begin(), ranks.end(), [this](uint32_t rank) { return hosts_.contains(rank); })) return;
    // Nobody is left that has its results.
    references_.erase(references_.lower_bound({incarnation, CallKey{}}),
                      references_.lower_bound({incarnation + 1, CallKey{}}));
  }

  // What has become of it all.

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
            bool by_group = false) {
    ++packet_count_;
    if (strangers_.forge > 0) Watch({from, to, packet, by_group});
    const auto blocked = blocked_until_.find({from.machine, to.machine});
    if (blocked != blocked_until_.end() && now_us() < blocked->second) return;
    network_.Send(std::move(packet), faults, [this, from, to, by_group](std::span<const uint8_t> arrived) {
      Arrive(from, to, arrived, by_group);
    });
  }
  void SendToGroup(const Endpoint& from, const Endpoint& group, const std::vector<uint8_t>& packet) {
    for (const auto& [number, socket] : sockets_) {
      if (socket.group && socket.group->address == group) Send(from, socket.own, packet, down_, /*by_group=*/true);
    }
  }

  // ---------------------------------------------------------------- strangers

  struct Seen {
    Endpoint from;
    Endpoint to;
    std::vector<uint8_t> packet;
    bool by_group = false;
  };

  void Watch(const Seen& seen) {
    if (network_.Chance(strangers_.forge)) Forge(seen);
    if (recorded_.size() < kRecorded) {
      recorded_.push_back(seen);
    } else if (network_.Chance(0.05)) {
      recorded_[static_cast<size_t>(network_.Below(kRecorded))] = seen;
    }
  }
  void Forge(const Seen& seen) {
    const Seen& earlier = recorded_.empty() ? seen : recorded_[network_.random()() % recorded_.size()];
    std::vector<uint8_t> packet = seen.packet;
    wire::Header header;
    if (wire::Decode(packet, header) != wire::DecodeError::kNone) return;
    const auto any = [this](std::span<uint8_t> bytes) {
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(network_.Below(256));
    };
    switch (network_.Below(8)) {
      case 0: {  // a bit of a lane or of the tag
        const auto bits = static_cast<int64_t>(8 * (packet.size() - wire::kHeaderBytes));
        const auto bit = static_cast<size_t>(network_.Below(bits));
        packet[wire::kHeaderBytes + bit / 8] ^= uint8_t(1u << bit % 8);
        break;
      }
      case 1:  // other lanes, and the tag of the true ones
        any(std::span(packet).subspan(wire::kHeaderBytes, size_t{4} * header.element_count));
        break;
      case 2:  // from the future, near or far
        header.sequence += static_cast<uint32_t>(1 + network_.Below(network_.Chance(0.5) ? 64 : INT32_MAX));
        wire::Encode(header, packet.data());
        break;
      case 3:  // as if nobody had keys
        header.tagged = false;
        packet.resize(header.packet_bytes());
        wire::Encode(header, packet.data());
        any(std::span(packet).subspan(wire::kHeaderBytes));
        break;
      case 4:  // in another worker's name
        header.worker = static_cast<uint16_t>(network_.Below(4));
        wire::Encode(header, packet.data());
        break;
      case 5:  // by one who was in an earlier epoch, and still has its keys
        if (!header.tagged || keys_of_then_.empty()) return;
        any(std::span(packet).subspan(wire::kHeaderBytes, size_t{4} * header.element_count));
        keys_of_then_[network_.random()() % keys_of_then_.size()].Seal(
            packet.data(), header.element_count, wire::PositionNear(first_position_, header.sequence));
        break;
      case 6:  // of another job, epoch or place
        return Slip(earlier, earlier.packet, network_.Below(kForgedLateUs));
      default:  // what follows the header, of another job, epoch or place
        std::copy_n(earlier.packet.begin() + wire::kHeaderBytes,
                    std::min(packet.size(), earlier.packet.size()) - wire::kHeaderBytes,
                    packet.begin() + wire::kHeaderBytes);
    }
    Slip(seen, std::move(packet), network_.Below(kForgedLateUs));
  }
  // `packet` on the way that another one took.
  void Slip(const Seen& way, std::vector<uint8_t> packet, int64_t late_us) {
    ++forged_;
    const bool in_its_name = strangers_.from_anywhere && !network_.Chance(0.2);
    const Endpoint from = in_its_name ? way.from : kStranger;
    network_.After(late_us, [this, from, to = way.to, by_group = way.by_group, packet = std::move(packet)] {
      Arrive(from, to, packet, by_group);
    });
  }

  void Arrive(const Endpoint& from, const Endpoint& to, std::span<const uint8_t> packet, bool by_group) {
    const auto at = socket_at_.find(to);
    if (at == socket_at_.end()) return;
    const auto paused = paused_until_.find(to.machine);
    if (paused != paused_until_.end() && now_us() < paused->second) {
      network_.After(paused->second - now_us(), [this, from, to, kept = std::vector(packet.begin(), packet.end()),
                                                 by_group] { Arrive(from, to, kept, by_group); });
      return;
    }
    Socket& socket = sockets_.at(at->second);
    if (socket.peer && *socket.peer != from) return;
    if (by_group) {
      if (!socket.group) return;
      socket.group->listener.OnPacket(packet);
      if (socket.group->listener.heard_all() && !std::exchange(socket.group->heard, true)) {
        events_.push_back({.kind = Event::kHeard, .who = at->second});
      }
    }
    if (socket.owner == 0) return;
    socket.owner_is_switch ? OnSwitch(socket, from, packet, by_group) : OnHost(socket, packet, by_group);
  }

  // ---------------------------------------------------------------- switches

  void OnSwitch(const Socket& socket, const Endpoint& from, std::span<const uint8_t> packet, bool by_group) {
    Switch& one = switches_.at(socket.owner);
    if (one.whole_lanes != 0 && packet.size() != wire::kHeaderBytes + size_t{4} * one.whole_lanes) return;
    const Action action = one.pool->OnPacket(packet, AddressOf(from));
    if (action.verdict == Verdict::kTooFar && forged_ == 0 && flipped() == 0) {
      Violate(socket.owner, "a worker is further ahead than it can be");
    }
    if (action.to == SendTo::kNobody) return;
    Route& route = one.routes.at(action.job);
    if (action.verdict == Verdict::kAnswered && route.has_parents_group) {
      by_group ? route.parents_group.OnGroupResults(1) : void(route.parents_group.OnOwnResults(1));
    }
    const std::vector<uint8_t> out(action.packet.begin(), action.packet.end());
    if (action.to == SendTo::kParent) {
      const Socket& uplink = sockets_.at(route.uplink);
      Send(uplink.own, *uplink.peer, out, up_);
    } else if (action.to == SendTo::kWorker) {
      Send(one.own, route.workers.at(action.worker), out, down_);
    } else if (route.group) {
      SendToGroup(one.own, *route.group, out);
    } else {
      for (const Endpoint& worker : route.workers) Send(one.own, worker, out, down_);
    }
  }

  // ---------------------------------------------------------------- hosts

  void OnHost(const Socket& socket, std::span<const uint8_t> packet, bool by_group) {
    Host& host = hosts_.at(socket.owner);
    const uint64_t before = Results(host);
    host.core->OnPacket(socket.shard, packet, now_us());
    const uint64_t results = Results(host) - before;
    wire::GroupWatch& watch = host.group_watches[socket.shard];
    if (results > 0) host.progress_us = now_us();
    if (host.core->failure() && !host.has_failed) {  // WrongSumError
      const Failure failure = *host.core->failure();
      events_.push_back(
          {.kind = Event::kFailed, .who = socket.owner, .kind_of_failure = failure.kind, .text = failure.message});
      return Fail(socket.owner, failure);
    }
    if (by_group) {
      watch.OnGroupResults(results);
    } else if (socket.group && watch.OnOwnResults(results)) {
      events_.push_back({.kind = Event::kGroupLost, .who = socket.owner, .number = socket.shard});
    }
    WakeAt(socket.owner, now_us() + network_.Below(kBatchUs));  // some more packets may come before it looks
  }

  void Issue(uint32_t number, const CallKey& key) {
    const auto found = hosts_.find(number);
    if (found == hosts_.end()) return;
    Host& host = found->second;
    if (WaitsForPause(host.machine, [this, number, key] { Issue(number, key); })) return;
    const auto [site, execution, step] = key;
    if (host.core->idle()) host.progress_us = now_us();
    HostBuffers& buffers = host.calls[key] = InputsOf(number, key);
    Sum sum{.key = {.site = 0x9E3779B97F4A7C15 * (site + 1), .execution = execution, .step = step},
            .shape = sites_[site],
            .inputs = {},
            .outputs = {}};
    for (Bytes& buffer : buffers) {
      sum.inputs.push_back(buffer.data());
      sum.outputs.push_back(buffer.data());
    }
    sum.done = [this, number, key](const Failure* failure) { OnDone(number, key, failure); };
    DeliverLate(number, key, sum);
    host.core->Start(std::move(sum), now_us());
    WakeAt(number, now_us());
  }

  // Of some sums only some elements are there from the start, as if a GPU delivered them.
  void DeliverLate(uint32_t number, const CallKey& key, Sum& sum) {
    const auto [site, execution, step] = key;
    std::seed_seq seeds{static_cast<uint32_t>(seed_), number, site, execution, step, 1u};
    const auto random = std::make_shared<std::mt19937_64>(seeds);
    if ((*random)() % 4 != 0) return;
    HostBuffers& buffers = hosts_.at(number).calls.at(key);
    const auto late = std::make_shared<const HostBuffers>(buffers);
    sum.ready_elements = 1 + (*random)() % ElementsOf(*sum.shape);
    Spoil(buffers, *sum.shape, sum.ready_elements);
    sum.written = [this, number, key](uint64_t elements) {
      const Host& host = hosts_.at(number);
      const auto* reference = ReferenceOf(host.incarnation, key);
      const SumShape& shape = *sites_[std::get<0>(key)];
      if (reference == nullptr || !AreRight(host.calls.at(key), *reference, shape, 0, elements)) {
        Violate(number, "told of a wrong sum: " + shape.site_name);
      }
    };
    DeliverNext(number, key, sum.key, late, sum.ready_elements, random);
  }
  void DeliverNext(uint32_t number, const CallKey& key, const SumKey& sum_key,
                   const std::shared_ptr<const HostBuffers>& late, uint64_t begin,
                   const std::shared_ptr<std::mt19937_64>& random) {
    if (begin == ElementsOf(*sites_[std::get<0>(key)])) return;
    const auto delay_us = static_cast<int64_t>((*random)() % kLateUs);
    network_.After(delay_us, [this, number, key, sum_key, late, begin, random] {
      Deliver(number, key, sum_key, late, begin, random);
    });
  }
  void Deliver(uint32_t number, const CallKey& key, const SumKey& sum_key,
               const std::shared_ptr<const HostBuffers>& late, uint64_t begin,
               const std::shared_ptr<std::mt19937_64>& random) {
    const auto found = hosts_.find(number);
    if (found == hosts_.end()) return;
    Host& host = found->second;
    const auto call = host.calls.find(key);
    if (call == host.calls.end()) return;  // it has failed
    const auto again = [this, number, key, sum_key, late, begin, random] {
      Deliver(number, key, sum_key, late, begin, random);
    };
    if (WaitsForPause(host.machine, again)) return;
    const SumShape& shape = *sites_[std::get<0>(key)];
    const uint64_t end = begin + 1 + (*random)() % (ElementsOf(shape) - begin);
    passing::Deliver(*late, call->second, shape, begin, end);
    host.core->OnReady(sum_key, end);
    WakeAt(number, now_us());
    DeliverNext(number, key, sum_key, late, end, random);
  }

  void OnDone(uint32_t number, const CallKey& key, const Failure* failure) {
    Host& host = hosts_.at(number);
    const auto found = host.calls.find(key);
    if (found == host.calls.end()) return Violate(number, "a sum is done twice");
    // One whose deadline was missed: whoever waits for it would hang.
    if (now_us() - host.progress_us > ToUs(host.deadline_s) + kNoticedUs) Violate(number, "a sum ends too late");
    if (failure != nullptr) {
      ++sums_failed_;
      host.calls.erase(found);
      return;
    }
    const std::vector<Bytes>* reference = ReferenceOf(host.incarnation, key);
    bool right = reference != nullptr;
    for (size_t i = 0; right && i < found->second.size(); ++i) {
      right = found->second[i] == (*reference)[i % reference->size()];
    }
    if (!right) Violate(number, "wrong sum: " + sites_[std::get<0>(key)]->site_name);
    ++sums_right_;
    host.calls.erase(found);
    if (--host.left_of.at(std::get<1>(key)) > 0) return;
    host.left_of.erase(std::get<1>(key));
    events_.push_back({.kind = Event::kExecuted, .who = number, .number = std::get<1>(key)});
  }

  // Alike whoever asks, and unlike for any two hosts and calls.
  HostBuffers InputsOf(uint32_t number, const CallKey& key) const {
    const auto [site, execution, step] = key;
    std::seed_seq seeds{static_cast<uint32_t>(seed_), number, site, execution, step};
    std::mt19937_64 random(seeds);
    const SumShape& shape = *sites_[site];
    const double special = random() % 8 == 0 ? 0.001 : 0;
    HostBuffers buffers;
    for (uint32_t device = 0; device < shape.device_count; ++device) {
      for (const uint64_t elements : shape.leaf_elements) {
        buffers.push_back(RandomLeaf(shape, elements, random, special));
      }
    }
    return buffers;
  }
  // Null if a rank of the incarnation has never been there.
  const std::vector<Bytes>* ReferenceOf(uint32_t incarnation, const CallKey& key) {
    auto [found, is_new] = references_.try_emplace({incarnation, key});
    if (is_new) {
      std::vector<HostBuffers> inputs;
      for (const uint32_t number : incarnations_.at(incarnation)) {
        if (number == 0) return references_.erase(found), nullptr;
        inputs.push_back(InputsOf(number, key));
      }
      found->second = Reference(*sites_[std::get<0>(key)], inputs);
    }
    return &found->second;
  }

  // As the transport's thread: it sleeps until then, or until something comes earlier.
  void WakeAt(uint32_t number, int64_t at_us) {
    Host& host = hosts_.at(number);
    if (at_us >= host.wake_us) return;
    host.wake_us = at_us;
    network_.After(at_us - now_us(), [this, number, at_us] { Wake(number, at_us); });
  }
  void Wake(uint32_t number, int64_t at_us) {
    const auto found = hosts_.find(number);
    if (found == hosts_.end() || found->second.wake_us != at_us) return;
    Host& host = found->second;
    if (WaitsForPause(host.machine, [this, number, at_us] { Wake(number, at_us); })) return;
    host.wake_us = INT64_MAX;
    if (host.has_failed) return;
    if (now_us() >= host.core->next_timer_us()) host.core->OnTimer(now_us());
    CheckStall(number, host);
    const int64_t due_us = std::min(host.core->next_timer_us(), host.stall_watch->next_timer_us());
    if (due_us != INT64_MAX) WakeAt(number, std::max(due_us, now_us()));
  }
  void CheckStall(uint32_t number, Host& host) {
    if (!host.stall_watch->IsDue(Results(host), host.core->idle(), now_us())) return;
    const Stall stall = *host.core->OldestStall();
    const StallWatch::Verdict verdict = host.stall_watch->Judge(stall.since_us, now_us());
    if (verdict.state == StallWatch::Verdict::kStalled) {
      if (verdict.is_new) host.stall_note.clear();
      const double stalled_s = static_cast<double>(verdict.stalled_us) / 1e6;
      events_.push_back({.kind = Event::kStalled, .who = number, .stalled_s = stalled_s, .stall = stall});
    } else if (verdict.state == StallWatch::Verdict::kLost) {
      const Failure failure = DeadlineExceeded(host.job, stall, verdict.stalled_us, host.stall_note, host.deadline_s);
      events_.push_back(
          {.kind = Event::kFailed, .who = number, .kind_of_failure = failure.kind, .text = failure.message});
      Fail(number, failure);
    }
  }
  static uint64_t Results(const Host& host) {
    const AllReduceStats stats = host.core->stats();
    return stats.packets_received - stats.packets_dropped;
  }

  // Whether a machine is paused; then `event` happens when it goes on.
  bool WaitsForPause(uint32_t machine, std::function<void()> event) {
    const auto paused = paused_until_.find(machine);
    if (paused == paused_until_.end() || now_us() >= paused->second) return false;
    for (auto& [number, host] : hosts_) {
      if (host.machine == machine) host.progress_us = paused->second;
    }
    network_.After(paused->second - now_us(), std::move(event));
    return true;
  }

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
  std::vector<std::shared_ptr<const SumShape>> sites_;
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
