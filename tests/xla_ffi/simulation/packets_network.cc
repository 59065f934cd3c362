// The packets of a simulated cluster: the network, strangers and switches.
#include "../tests/xla_ffi/simulation/packets.h"

namespace passing::simulation {

uint32_t Packets::AddSwitch(const Endpoint& own, uint32_t slot_count, uint32_t whole_lanes) {
  const uint32_t socket = Open(own, std::nullopt);
  sockets_.at(socket).owner = socket;
  sockets_.at(socket).owner_is_switch = true;
  auto core = std::make_unique<SwitchCore>(slot_count, [this, socket](const Outgoing& out) { SendOut(socket, out); });
  switches_.emplace(socket, Switch{.own = own, .core = std::move(core), .whole_lanes = whole_lanes});
  return socket;
}

void Packets::AddJob(uint32_t number, JobSlots job, const std::vector<Endpoint>& workers,
                     const std::optional<Endpoint>& group, uint32_t uplink) {
  Flush(number);
  Switch& one = switches_.at(number);
  for (const Endpoint& worker : workers) job.addresses.push_back(AddressOf(worker));
  ResultWays ways;
  if (group) ways.group = {.group = AddressOf(*group), .from = AddressOf(one.own)};
  ways.ports_apart = job.epoch % 2 != 0;  // here either is right
  first_position_ = job.first_position;
  if (uplink != 0) {
    Socket& socket = sockets_.at(uplink);
    job.parent->address = AddressOf(*socket.peer);
    socket.owner = number;
    socket.owner_is_switch = true;
    socket.job = job.job;
    ways.hears_parents_group = socket.group.has_value();
  }
  one.core->AddJob(job, std::move(ways));
  one.jobs.insert_or_assign(job.job, HeldJob{.uplink = uplink, .keys = job.keys});
}

void Packets::RemoveJob(uint32_t number, uint16_t job) {
  Flush(number);
  Switch& one = switches_.at(number);
  one.core->RemoveJob(job);
  const auto held = one.jobs.find(job);
  if (held == one.jobs.end()) return;
  End(held->second);
  one.jobs.erase(held);
}

void Packets::Probe(uint32_t number, const Endpoint& group, const wire::ProbeName& name, uint16_t lanes) {
  const wire::ProbeBurst burst = wire::MakeProbeBurst(name, lanes);
  const uint8_t* at = burst.bytes.data();
  for (const uint16_t bytes : burst.packet_bytes) {
    SendToGroup(switches_.at(number).own, group, {at, at + bytes});
    at += bytes;
  }
}

void Packets::Carry(const Endpoint& from, const Endpoint& to, std::vector<uint8_t> packet, const Faults& faults,
                    double at_switch_us, bool by_group) {
  ++packet_count_;
  if (observer_) observer_(from, packet);
  if (strangers_.forge > 0) Watch({from, to, packet, by_group});
  const auto blocked = blocked_until_.find({from.machine, to.machine});
  if (blocked != blocked_until_.end() && now_us() < blocked->second) return;
  const auto arrive = [this, from, to, by_group](std::span<const uint8_t> arrived) {
    Arrive(from, to, arrived, by_group);
  };
  if (!links_.Has(to.machine)) return network_.Send(std::move(packet), faults, arrive);
  const size_t bytes = packet.size();
  links_.Reach(to.machine, at_switch_us, bytes, [this, &faults, arrive, packet = std::move(packet)]() mutable {
    network_.Send(std::move(packet), faults, arrive);
  });
}

void Packets::SendToGroup(const Endpoint& from, const Endpoint& group, const std::vector<uint8_t>& packet) {
  const double at_switch_us = links_.Leave(from.machine, packet.size());
  for (const auto& [number, socket] : sockets_) {
    if (!socket.group || socket.group->address != group || socket.peer != from) continue;
    Carry(from, socket.own, packet, down_, at_switch_us, /*by_group=*/true);
  }
}

void Packets::Watch(const Seen& seen) {
  if (network_.Chance(strangers_.forge)) Forge(seen);
  if (recorded_.size() < kRecorded) {
    recorded_.push_back(seen);
  } else if (network_.Chance(0.05)) {
    recorded_[static_cast<size_t>(network_.Below(kRecorded))] = seen;
  }
}

void Packets::Forge(const Seen& seen) {
  const Seen& earlier = recorded_.empty() ? seen : recorded_[network_.random()() % recorded_.size()];
  std::vector<uint8_t> packet = seen.packet;
  wire::Header header;
  if (wire::Decode(packet, header) != wire::DecodeError::kNone) return;
  const auto any = [this](std::span<uint8_t> bytes) {
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(network_.Below(256));
  };
  switch (network_.Below(9)) {
    case 0: {  // a bit of a lane or of the tag
      const auto bits = static_cast<int64_t>(8 * (packet.size() - wire::kHeaderBytes));
      if (bits == 0) return;
      const auto bit = static_cast<size_t>(network_.Below(bits));
      packet[wire::kHeaderBytes + bit / 8] ^= uint8_t(1u << bit % 8);
      break;
    }
    case 1:  // other lanes, and the tag of the true ones
      any(std::span(packet).subspan(wire::kHeaderBytes, size_t{4} * header.lanes_carried()));
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
      any(std::span(packet).subspan(wire::kHeaderBytes, size_t{4} * header.lanes_carried()));
      keys_of_then_[network_.random()() % keys_of_then_.size()].Seal(
          packet.data(), header.lanes_carried(), wire::PositionNear(first_position_, header.sequence));
      break;
    case 6:  // of another job, epoch or place
      return Slip(earlier, earlier.packet, network_.Below(kForgedLateUs));
    case 7:  // with lanes that were left out, or without those that weren't, or as if nobody needed the result
      header.flags ^= network_.Chance(0.5) ? wire::kFlagBare : wire::kFlagNoResult;
      packet.resize(header.packet_bytes());
      wire::Encode(header, packet.data());
      break;
    default:  // what follows the header, of another job, epoch or place
      std::copy_n(earlier.packet.begin() + wire::kHeaderBytes,
                  std::min(packet.size(), earlier.packet.size()) - wire::kHeaderBytes,
                  packet.begin() + wire::kHeaderBytes);
  }
  Slip(seen, std::move(packet), network_.Below(kForgedLateUs));
}

// `packet` on the way that another one took.
void Packets::Slip(const Seen& way, std::vector<uint8_t> packet, int64_t late_us) {
  ++forged_;
  const bool in_its_name = strangers_.from_anywhere && !network_.Chance(0.2);
  const Endpoint from = in_its_name ? way.from : kStranger;
  network_.After(late_us, [this, from, to = way.to, by_group = way.by_group, packet = std::move(packet)] {
    Arrive(from, to, packet, by_group);
  });
}

void Packets::Arrive(const Endpoint& from, const Endpoint& to, std::span<const uint8_t> packet, bool by_group) {
  auto at = socket_at_.find({to, from});
  if (at == socket_at_.end()) at = socket_at_.find({to, Endpoint{}});
  if (at == socket_at_.end()) return;
  const auto paused = paused_until_.find(to.machine);
  if (paused != paused_until_.end() && now_us() < paused->second) {
    network_.After(paused->second - now_us(), [this, from, to, kept = std::vector(packet.begin(), packet.end()),
                                               by_group] { Arrive(from, to, kept, by_group); });
    return;
  }
  Socket& socket = sockets_.at(at->second);
  if (by_group) {
    if (!socket.group) return;
    socket.group->listener.OnPacket(packet);
    if (socket.group->listener.heard_all() && !std::exchange(socket.group->heard, true)) {
      events_.push_back({at->second, Heard{}});
    }
  }
  if (socket.owner == 0) return;
  socket.owner_is_switch ? OnSwitch(socket, from, packet, by_group) : OnHost(socket, packet, by_group);
}

void Packets::OnSwitch(const Socket& socket, const Endpoint& from, std::span<const uint8_t> packet, bool by_group) {
  const uint32_t number = socket.owner;
  Switch& one = switches_.at(number);
  if (wire::Header header; one.whole_lanes != 0 && wire::Decode(packet, header) == wire::DecodeError::kNone) {
    if (header.element_count != one.whole_lanes) return;
  }
  const Verdict verdict = one.core->OnPacket(packet, AddressOf(from), by_group);
  if (verdict == Verdict::kTooFar && forged_ == 0 && flipped() == 0) {
    Violate(number, "a worker is further ahead than it can be");
  }
  if (std::exchange(one.will_flush, true)) return;
  network_.After(GatheringUs(one.own.machine), [this, number] {
    if (switches_.contains(number)) Flush(number);
  });
}

void Packets::Flush(uint32_t number) {
  Switch& one = switches_.at(number);
  one.will_flush = false;
  one.core->Flush();
}

void Packets::SendOut(uint32_t number, const Outgoing& out) {
  const Switch& one = switches_.at(number);
  const uint8_t* at = out.bytes.data();
  for (const uint16_t bytes : out.packet_bytes) {
    const std::vector<uint8_t> packet(at, at + bytes);
    at += bytes;
    if (out.workers.empty()) {
      const Socket& uplink = sockets_.at(one.jobs.at(out.job).uplink);
      Send(uplink.own, *uplink.peer, packet, up_);
    } else if (out.group != nullptr) {
      SendToGroup(one.own, EndpointOf(out.group->group), packet);
    } else {
      for (const Address& worker : out.workers) Send(one.own, EndpointOf(worker), packet, down_);
    }
  }
}

}  // namespace passing::simulation
