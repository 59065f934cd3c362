// The packets of a simulated cluster: its hosts.
#include <string_view>

#include "../tests/xla_ffi/simulation/packets.h"
#include "wire/lanes.h"

namespace passing::simulation {

namespace {

SumKey NameOf(const CallKey& key) {
  const auto [site, execution, step] = key;
  return {.site = 0x9E3779B97F4A7C15 * (site + 1), .execution = execution, .step = step};
}

}  // namespace

uint32_t Packets::AddSite(DType dtype, std::vector<uint64_t> leaves, uint32_t device_count, Op op, WireDtype wire_dtype,
                          Moves moves, bool early) {
  sites_.push_back(std::make_shared<SumSpec>(SumSpec{.site_name = "site " + std::to_string(sites_.size()),
                                                     .dtype = dtype,
                                                     .leaf_elements = std::move(leaves),
                                                     .local_member_count = device_count,
                                                     .op = op,
                                                     .wire_dtype = wire_dtype,
                                                     .moves = moves,
                                                     .early = early}));
  return static_cast<uint32_t>(sites_.size() - 1);
}

uint32_t Packets::AddHost(const RankOptions& options, const std::vector<uint32_t>& sockets, uint32_t incarnation) {
  const uint32_t number = ++last_;
  Host host{.incarnation = incarnation,
            .rank = options.job.rank,
            .world_size = options.job.world_size,
            .deadline_s = options.deadline_s,
            .sockets = sockets};
  std::vector<Driver*> drivers;
  std::vector<bool> hears_group;
  for (uint32_t shard = 0; shard < sockets.size(); ++shard) {
    Socket& socket = sockets_.at(sockets[shard]);
    socket.owner = number;
    socket.shard = shard;
    host.machine = socket.own.machine;
    const bool is_masked = options.job.mask_key.has_value();
    host.drivers.push_back(std::make_unique<FakeDriver>(
        [this, number, shard, is_masked, own = socket.own, to = *socket.peer](auto packet) {
          if (is_masked) WatchMasks(number, shard, packet);
          Send(own, to, std::move(packet), up_);
        }));
    drivers.push_back(host.drivers.back().get());
    hears_group.push_back(socket.group.has_value());
  }
  host.core = std::make_unique<RankCore>(options, std::move(drivers), std::move(hears_group),
                                         [this, number](RankEvent event) { OnEvent(number, std::move(event)); });
  hosts_.emplace(number, std::move(host));
  auto& ranks = incarnations_[incarnation];
  ranks.resize(options.job.world_size);
  const uint16_t rank = options.job.rank;
  if (ranks[rank] != 0) Violate(number, "two hosts are rank " + std::to_string(rank) + " of one incarnation");
  ranks[rank] = number;
  return number;
}

void Packets::Execute(uint32_t number, uint32_t execution, const std::vector<uint32_t>& sites, int64_t spread_us) {
  Host& host = hosts_.at(number);
  host.left_of[execution] = static_cast<uint32_t>(sites.size());
  std::map<uint32_t, uint32_t> steps;
  std::set<CallKey> before;
  std::set<CallKey> awaited;  // by the last early sum
  int64_t last_us = 0;
  for (const uint32_t site : sites) {
    const CallKey key{site, execution, steps[site]++};
    int64_t delay_us = network_.Below(spread_us + 1);
    last_us = std::max(last_us, delay_us);
    const bool early = sites_[site]->early;
    if (early) delay_us = last_us;
    std::seed_seq seeds{static_cast<uint32_t>(seed_), number, site, execution, std::get<2>(key), 3u};
    if (early && std::mt19937_64(seeds)() % 2 == 0) awaited = before;  // XLA lays its memory over theirs
    if (early && !awaited.empty()) {
      host.late.emplace_back(key, awaited);
    } else {
      network_.After(delay_us, [this, number, key] { Issue(number, key); });
    }
    before.insert(key);
  }
}

void Packets::RemoveHost(uint32_t number) {
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

// Whoever sees all packets learns nothing: a mask is used once, so equal lanes come by chance alone (with a probability
// of 2^-64 for two pairs), and what is sent again is the same.
void Packets::WatchMasks(uint32_t number, uint32_t shard, std::span<const uint8_t> packet) {
  wire::Header header;
  if (wire::Decode(packet, header) != wire::DecodeError::kNone) return Violate(number, "sends no packet");
  if (header.flags != 0) Violate(number, "shows flags of confidential elements");
  if (header.lane_format != wire::LaneFormat::kSumInt32) Violate(number, "sends lanes that can't be masked");
  const uint8_t* lanes = packet.data() + wire::kHeaderBytes;
  const std::string_view bytes(reinterpret_cast<const char*>(lanes), size_t{4} * header.element_count);
  const auto [sent, is_new] =
      masked_.try_emplace({number, shard, header.sequence}, std::hash<std::string_view>()(bytes));
  if (!is_new) {
    if (sent->second != std::hash<std::string_view>()(bytes)) Violate(number, "used a mask for two contributions");
    return;
  }
  for (uint32_t pair = 0; pair < std::min(4u, header.element_count / 2u); ++pair) {
    const uint64_t both = uint64_t{wire::LoadLane(lanes, 2 * pair)} << 32 | wire::LoadLane(lanes, 2 * pair + 1);
    if (both == 0) break;  // a whole chunk's rest
    if (!masked_pairs_.emplace(pair, both).second) Violate(number, "used a mask twice");
  }
}

void Packets::OnHost(const Socket& socket, std::span<const uint8_t> packet, bool by_group) {
  Host& host = hosts_.at(socket.owner);
  if (host.core->OnPacket(socket.shard, packet, by_group, now_us())) host.progress_us = now_us();
  WakeAt(socket.owner, now_us() + GatheringUs(host.machine));
}

void Packets::OnEvent(uint32_t number, RankEvent event) {
  if (const auto* failure = std::get_if<Failure>(&event)) {
    network_.After(0, [this, number, failure = *failure] {
      if (hosts_.contains(number)) Fail(number, failure);
    });
  }
  events_.push_back({number, std::move(event)});
}

void Packets::Issue(uint32_t number, const CallKey& key) {
  const auto found = hosts_.find(number);
  if (found == hosts_.end()) return;
  Host& host = found->second;
  if (WaitsForPause(host.machine, [this, number, key] { Issue(number, key); })) return;
  HostBuffers& buffers = host.calls[key] = InputsOf(number, host.rank, host.world_size, key);
  Sum sum{.key = NameOf(key), .spec = sites_[std::get<0>(key)], .inputs = {}, .outputs = {}};
  if (sum.spec->moves != Moves::kAll) {
    sum.own_rows.resize(host.world_size);
    sum.own_rows[host.rank] = true;
  }
  for (Bytes& buffer : buffers) {
    sum.inputs.push_back(buffer.data());
    sum.outputs.push_back(buffer.data());
  }
  const auto apart = RowsAlone(number, key, sum);
  sum.done = [this, number, key, apart](const Failure* failure) { OnDone(number, key, failure); };
  if (sum.rows.empty()) DeliverLate(number, key, sum);
  Start(number, std::move(sum));
}

// Has the devices of some sums bring, or take, the host's row alone. Returns the inputs, which lie apart from results.
std::shared_ptr<HostBuffers> Packets::RowsAlone(uint32_t number, const CallKey& key, Sum& sum) {
  const auto [site, execution, step] = key;
  std::seed_seq seeds{static_cast<uint32_t>(seed_), number, site, execution, step, 2u};
  const bool are_inputs = sum.spec->moves == Moves::kGather;
  if (!are_inputs && sum.spec->moves != Moves::kScatter) return nullptr;
  if (std::mt19937_64(seeds)() % 2 != 0 || (are_inputs && sum.spec->dtype != DType::kInt32)) return nullptr;
  Host& host = hosts_.at(number);
  sum.rows.assign(sum.device_count(), host.rank);
  const auto inputs = std::make_shared<HostBuffers>(host.calls.at(key));
  for (size_t i = 0; i < inputs->size(); ++i) {
    Bytes& whole = host.calls.at(key)[i];
    const size_t row_bytes = whole.size() / host.world_size;
    const auto row = whole.begin() + static_cast<ptrdiff_t>(row_bytes * host.rank);
    if (are_inputs) (*inputs)[i].assign(row, row + static_cast<ptrdiff_t>(row_bytes));
    std::fill(whole.begin(), whole.end(), uint8_t{0xA5});
    sum.inputs[i] = (*inputs)[i].data();
    if (!are_inputs) sum.outputs[i] = &*row;
  }
  return inputs;
}

// Delivers the rest of a sum's elements later, for some sums, as a GPU would.
void Packets::DeliverLate(uint32_t number, const CallKey& key, Sum& sum) {
  const auto [site, execution, step] = key;
  std::seed_seq seeds{static_cast<uint32_t>(seed_), number, site, execution, step, 1u};
  const auto random = std::make_shared<std::mt19937_64>(seeds);
  if (plain_ || (*random)() % 4 != 0) return;
  HostBuffers& buffers = hosts_.at(number).calls.at(key);
  const auto late = std::make_shared<const HostBuffers>(buffers);
  sum.pieces.emplace().ready_elements = 1 + (*random)() % sum.spec->elements();
  Spoil(buffers, *sum.spec, sum.pieces->ready_elements);
  sum.pieces->written = [this, number, key](uint64_t elements) {
    if (!AreRight(hosts_.at(number), key, elements)) {
      Violate(number, "told of a wrong sum: " + sites_[std::get<0>(key)]->site_name);
    }
  };
  DeliverNext(number, key, sum.key, late, sum.pieces->ready_elements, random);
}

void Packets::DeliverNext(uint32_t number, const CallKey& key, const SumKey& sum_key,
                          const std::shared_ptr<const HostBuffers>& late, uint64_t begin,
                          const std::shared_ptr<std::mt19937_64>& random) {
  if (begin == sites_[std::get<0>(key)]->elements()) return;
  const auto delay_us = static_cast<int64_t>((*random)() % kLateUs);
  network_.After(delay_us, [this, number, key, sum_key, late, begin, random] {
    Deliver(number, key, sum_key, late, begin, random);
  });
}

void Packets::Deliver(uint32_t number, const CallKey& key, const SumKey& sum_key,
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
  const SumSpec& shape = *sites_[std::get<0>(key)];
  const uint64_t end = begin + 1 + (*random)() % (shape.elements() - begin);
  passing::Deliver(*late, call->second, shape, begin, end);
  OnReady(number, sum_key, end);
  DeliverNext(number, key, sum_key, late, end, random);
}

void Packets::OnDone(uint32_t number, const CallKey& key, const Failure* failure) {
  Host& host = hosts_.at(number);
  const auto found = host.calls.find(key);
  if (found == host.calls.end()) return Violate(number, "a sum is done twice");
  // One whose deadline was missed: whoever waits for it would hang.
  if (now_us() - host.progress_us > static_cast<int64_t>(host.deadline_s * 1e6) + kNoticedUs)
    Violate(number, "a sum ends too late");
  if (failure != nullptr) {
    ++sums_failed_;
    host.calls.erase(found);
    return;
  }
  const SumSpec& shape = *sites_[std::get<0>(key)];
  if (!AreRight(host, key, shape.elements())) Violate(number, "wrong sum: " + shape.site_name);
  ++sums_right_;
  host.calls.erase(found);
  std::erase_if(host.late, [this, number, &key](auto& late) {
    late.second.erase(key);
    if (late.second.empty()) network_.After(0, [this, number, issued = late.first] { Issue(number, issued); });
    return late.second.empty();
  });
  if (--host.left_of.at(std::get<1>(key)) > 0) return;
  host.left_of.erase(std::get<1>(key));
  events_.push_back({number, Executed{std::get<1>(key)}});
}

// Alike whoever asks, and unlike for any two hosts and calls.
HostBuffers Packets::InputsOf(uint32_t number, uint32_t rank, uint32_t world_size, const CallKey& key) const {
  const auto [site, execution, step] = key;
  std::seed_seq seeds{static_cast<uint32_t>(seed_), number, site, execution, step};
  std::mt19937_64 random(seeds);
  const SumSpec& shape = *sites_[site];
  const double special = random() % 8 == 0 && !plain_ ? 0.001 : 0;
  HostBuffers buffers;
  for (uint32_t device = 0; device < shape.local_member_count; ++device) {
    for (const uint64_t elements : shape.leaf_elements) {
      buffers.push_back(RandomLeaf(shape, elements, random, special));
      if (shape.moves != Moves::kGather) continue;
      Bytes& leaf = buffers.back();  // which has zeros in the others' rows
      const auto row_begin = leaf.begin() + static_cast<ptrdiff_t>(leaf.size() / world_size * rank);
      std::fill(leaf.begin(), row_begin, uint8_t{0});
      std::fill(row_begin + static_cast<ptrdiff_t>(leaf.size() / world_size), leaf.end(), uint8_t{0});
    }
  }
  return buffers;
}

bool Packets::AreRight(const Host& host, const CallKey& key, uint64_t elements) {
  const auto* reference = ReferenceOf(host.incarnation, key);
  if (reference == nullptr) return false;
  const SumSpec& shape = *sites_[std::get<0>(key)];
  const HostBuffers& buffers = host.calls.at(key);
  if (shape.moves != Moves::kScatter) return passing::AreRight(buffers, *reference, shape, 0, elements);
  uint64_t leaf_begin = 0;
  for (const uint64_t leaf : shape.leaf_elements) {
    const uint64_t row = leaf / host.world_size, begin = leaf_begin + row * host.rank;
    if (!passing::AreRight(buffers, *reference, shape, begin, std::min(begin + row, elements))) return false;
    leaf_begin += leaf;
  }
  return true;
}

// Null if a rank of the incarnation has never been there.
const std::vector<Bytes>* Packets::ReferenceOf(uint32_t incarnation, const CallKey& key) {
  auto [found, is_new] = references_.try_emplace({incarnation, key});
  if (is_new) {
    std::vector<HostBuffers> inputs;
    const auto& ranks = incarnations_.at(incarnation);
    for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
      if (ranks[rank] == 0) return references_.erase(found), nullptr;
      inputs.push_back(InputsOf(ranks[rank], rank, static_cast<uint32_t>(ranks.size()), key));
    }
    found->second = Reference(*sites_[std::get<0>(key)], inputs, NameOf(key));
  }
  return &found->second;
}

// As the transport's thread: it sleeps until then, or until something comes earlier.
void Packets::WakeAt(uint32_t number, int64_t at_us) {
  Host& host = hosts_.at(number);
  if (at_us >= host.wake_us) return;
  host.wake_us = at_us;
  network_.After(at_us - now_us(), [this, number, at_us] { Wake(number, at_us); });
}

void Packets::Wake(uint32_t number, int64_t at_us) {
  const auto found = hosts_.find(number);
  if (found == hosts_.end() || found->second.wake_us != at_us) return;
  Host& host = found->second;
  if (WaitsForPause(host.machine, [this, number, at_us] { Wake(number, at_us); })) return;
  host.wake_us = INT64_MAX;
  host.core->OnTimer(now_us());
  const int64_t due_us = host.core->next_timer_us();
  if (due_us != INT64_MAX) WakeAt(number, std::max(due_us, now_us()));
}

// Tells whether a machine is paused; then `event` happens when it goes on.
bool Packets::WaitsForPause(uint32_t machine, std::function<void()> event) {
  const auto paused = paused_until_.find(machine);
  if (paused == paused_until_.end() || now_us() >= paused->second) return false;
  for (auto& [number, host] : hosts_) {
    if (host.machine == machine) host.progress_us = paused->second;
  }
  network_.After(paused->second - now_us(), std::move(event));
  return true;
}

}  // namespace passing::simulation
