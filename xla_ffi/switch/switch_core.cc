#include "switch/switch_core.h"

#include <bit>
#include <stdexcept>
#include <utility>

#include "wire/header.h"

namespace passing {
namespace {

// A group spares a port nothing if only one worker is behind it, and brings workers what they don't need. But to send a
// result to each worker by itself takes us time, and for many workers spares little: one of so many copies.
constexpr int kMaxCopies = 8;

// Nor does it spare anything where it is always the same worker that needs no lanes, as the root of a broadcast: its
// port is idle. The hosts of a gather take turns, after no more chunks than this.
constexpr uint32_t kLongestTurn = 512;

}  // namespace

SwitchCore::SwitchCore(uint32_t slot_count, std::function<void(const Outgoing&)> send)
    : send_(std::move(send)), pool_(slot_count) {}

void SwitchCore::AddJob(const JobSlots& job, ResultWays ways) {
  if (!ways.own.empty() && ways.own.size() != job.addresses.size()) {
    throw std::invalid_argument("each worker knows us by one address");
  }
  pool_.AddJob(job);
  routes_.insert_or_assign(job.job, Route{.workers = job.addresses, .ways = std::move(ways)});
}

void SwitchCore::RemoveJob(uint16_t job) {
  pool_.RemoveJob(job);
  routes_.erase(job);
}

void SwitchCore::StopMulticast(uint16_t job) {
  if (const auto found = routes_.find(job); found != routes_.end()) found->second.ways.group.reset();
}

Verdict SwitchCore::OnPacket(std::span<const uint8_t> packet, const Address& source, bool by_group) {
  const Action action = pool_.OnPacket(packet, source);
  if (const auto route = routes_.find(action.job); route != routes_.end()) {
    wire::GroupWatch& parents_group = route->second.parents_group;
    if (by_group) {
      parents_group.OnGroupResult();
    } else if (action.verdict == Verdict::kAnswered && route->second.ways.hears_parents_group) {
      parents_group.OnOwnResult(action.own_result);
    }
  }
  if (action.to != SendTo::kNobody) {
    Queue(action);
    ++answer_count_;
  }
  return action.verdict;
}

// A group hears whole results as soon as two workers need them, and its other workers hear them in vain: sent to each
// by itself, they would pass a single link to all of them several times. Where no two workers share one, each gets what
// it needs.
void SwitchCore::Queue(const Action& action) {
  if (action.bare_workers == 0) {
    const bool to_one = action.to == SendTo::kWorker;
    return Queue(action, to_one ? BitOf(action.worker) : 0, action.packet);
  }
  Route& route = routes_.at(action.job);
  const uint64_t others = AllWorkers(route.workers.size()) & ~action.bare_workers;
  const bool has_group = route.ways.group.has_value();
  if (has_group && std::popcount(others) > MostCopies(action)) return Queue(action, 0, action.packet);
  Queue(action, others, action.packet);
  const bool is_for_one = route.ways.ports_apart && std::has_single_bit(action.bare_workers);
  Queue(action, has_group && !is_for_one ? 0 : action.bare_workers, action.bare);
}

// How many workers are sent such a result each by itself.
int SwitchCore::MostCopies(const Action& action) {
  Route& route = routes_.at(action.job);
  route.bare_in_row = route.bare == action.bare_workers ? route.bare_in_row + 1 : 0;
  route.bare = action.bare_workers;
  return route.ways.ports_apart && route.bare_in_row < kLongestTurn ? kMaxCopies : 1;
}

// Those that go the same way leave together: one that is sent by itself costs as much as 44. Each worker gets its
// answers in their order, but that of results of which some workers get a header, whole ones overtake headers, or the
// reverse; few of them.
void SwitchCore::Queue(const Action& action, uint64_t workers, std::span<const uint8_t> packet) {
  const auto is_same = [&](const Batch& one) {
    return one.job == action.job && one.to == action.to && one.workers == workers;
  };
  const bool has_headers = action.bare_workers != 0;
  const auto is_in_the_way = [&](const Batch& one) {
    const bool is_other_way = (one.to == SendTo::kParent) != (action.to == SendTo::kParent);
    const bool share = one.workers == 0 || workers == 0 || (one.workers & workers) != 0;
    const bool is_far = answer_count_ - one.first >= wire::kReorderedChunks;
    return one.job == action.job && !is_other_way && share && (is_far || !has_headers || !one.has_headers);
  };
  size_t at = batch_count_;
  while (at > 0 && !is_same(batches_[at - 1]) && !is_in_the_way(batches_[at - 1])) --at;
  if (at == 0 || !is_same(batches_[at - 1])) {
    if (batch_count_ == batches_.size()) batches_.emplace_back();
    at = ++batch_count_;
    Batch& added = batches_[at - 1];
    added.job = action.job;
    added.to = action.to;
    added.workers = workers;
    added.has_headers = has_headers;
    added.first = answer_count_;
    added.bytes.clear();
    added.packet_bytes.clear();
  }
  Batch& batch = batches_[at - 1];
  batch.bytes.insert(batch.bytes.end(), packet.begin(), packet.end());
  batch.packet_bytes.push_back(static_cast<uint16_t>(packet.size()));
}

void SwitchCore::Flush() {
  for (size_t i = 0; i < batch_count_; ++i) send_(WayOf(batches_[i]));
  batch_count_ = 0;
}

Outgoing SwitchCore::WayOf(const Batch& batch) {
  const Route& route = routes_.at(batch.job);
  const std::vector<Address>& workers = route.workers;
  const ResultWays& ways = route.ways;
  Outgoing out{.job = batch.job,
               .bytes = batch.bytes,
               .packet_bytes = batch.packet_bytes,
               .workers = {},
               .from = {},
               .group = nullptr};
  if (batch.to == SendTo::kParent) return out;
  if (batch.workers == 0) {
    out.workers = workers;
    out.from = ways.own;
    if (ways.group) out.group = &*ways.group;
    return out;
  }
  some_workers_.clear();
  some_own_.clear();
  for (uint64_t left = batch.workers; left != 0; left &= left - 1) {
    const int worker = std::countr_zero(left);
    some_workers_.push_back(workers[worker]);
    if (!ways.own.empty()) some_own_.push_back(ways.own[worker]);
  }
  out.workers = some_workers_;
  out.from = some_own_;
  return out;
}

bool SwitchCore::HearsParentsGroup(uint16_t job) const {
  const auto found = routes_.find(job);
  return found == routes_.end() || !found->second.parents_group.lost();
}

}  // namespace passing
