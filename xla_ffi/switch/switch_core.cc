#include "switch/switch_core.h"

#include <stdexcept>
#include <utility>

#include "wire/header.h"

namespace passing {

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
  if (action.verdict == Verdict::kAnswered) {
    Route& route = routes_.at(action.job);
    if (by_group) {
      route.parents_group.OnGroupResult();
    } else if (route.ways.hears_parents_group) {
      route.parents_group.OnOwnResult();
    }
  }
  if (action.to != SendTo::kNobody) Queue(action);
  return action.verdict;
}

void SwitchCore::Queue(const Action& action) {
  const uint16_t worker = action.to == SendTo::kWorker ? action.worker : wire::kEveryWorker;
  if (batches_.empty() || batches_.back().job != action.job || batches_.back().to != action.to ||
      batches_.back().worker != worker) {
    batches_.push_back({action.job, action.to, worker, packet_bytes_.size(), output_.size()});
  }
  output_.insert(output_.end(), action.packet.begin(), action.packet.end());
  packet_bytes_.push_back(static_cast<uint16_t>(action.packet.size()));
}

void SwitchCore::Flush() {
  for (size_t i = 0; i < batches_.size(); ++i) {
    const Batch& batch = batches_[i];
    const bool last = i + 1 == batches_.size();
    const size_t end = last ? packet_bytes_.size() : batches_[i + 1].first_packet;
    const size_t end_byte = last ? output_.size() : batches_[i + 1].first_byte;
    Outgoing out = WayOf(batch);
    out.bytes = std::span(output_).subspan(batch.first_byte, end_byte - batch.first_byte);
    out.packet_bytes = std::span(packet_bytes_).subspan(batch.first_packet, end - batch.first_packet);
    send_(out);
  }
  batches_.clear();
  output_.clear();
  packet_bytes_.clear();
}

Outgoing SwitchCore::WayOf(const Batch& batch) const {
  const auto& [workers, ways, parents_group] = routes_.at(batch.job);
  Outgoing out{.job = batch.job, .bytes = {}, .packet_bytes = {}, .workers = {}, .from = {}, .group = nullptr};
  if (batch.to == SendTo::kParent) return out;
  out.workers = workers;
  out.from = ways.own;
  if (batch.to == SendTo::kWorker) {
    out.workers = out.workers.subspan(batch.worker, 1);
    if (!out.from.empty()) out.from = out.from.subspan(batch.worker, 1);
  } else if (ways.group) {
    out.group = &*ways.group;
  }
  return out;
}

bool SwitchCore::HearsParentsGroup(uint16_t job) const {
  const auto found = routes_.find(job);
  return found == routes_.end() || !found->second.parents_group.lost();
}

}  // namespace passing
