#include "host/transport/striped_transport.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <stdexcept>

#include "net/clock.h"

namespace passing {
namespace {

// Each stripe of a sum has about as many bytes or more. A segment has 90 KB, and below that a second transport costs
// more to wake than it saves.
constexpr uint64_t kStripeBytes = 1 << 16;

}  // namespace

// The stripes of one sum share this.
struct StripedTransport::Pending {
  std::mutex mutex;
  uint32_t stripes;  // that aren't done
  int64_t started_us;
  uint64_t bytes;
  std::function<void(const Failure*)> done;
  std::function<void(uint64_t)> tell;  // Pieces::written
  std::vector<uint64_t> written;       // by stripe
  uint64_t told = 0;
  std::optional<Failure> failure;  // the first

  // Tells while it holds the lock, so that the numbers grow, and none comes after `done`.
  void OnWritten(uint32_t stripe, uint64_t elements) {
    std::lock_guard lock(mutex);
    written[stripe] = elements;
    const uint64_t least = *std::min_element(written.begin(), written.end());
    if (tell && least > told && least != UINT64_MAX) tell(told = least);
  }
};

StripedTransport::StripedTransport(std::vector<UdpSocket> sockets, const RankOptions& options,
                                   std::vector<std::optional<UdpSocket>> groups, const std::vector<Keys>& keys)
    : count_(static_cast<uint32_t>(keys.size())) {
  const size_t shards = options.job.shards.size();
  if (count_ == 0 || shards % count_ != 0) throw std::invalid_argument("not all transports have as many shards");
  for (uint32_t transport = 0; transport < count_; ++transport) {
    RankOptions own = options;
    own.job.shards.clear();
    own.job.check_key = keys[transport].check;
    own.job.mask_key = keys[transport].mask;
    std::vector<UdpSocket> own_sockets;
    std::vector<std::optional<UdpSocket>> own_groups;
    for (size_t shard = transport; shard < shards; shard += count_) {
      own.job.shards.push_back(options.job.shards[shard]);
      own_sockets.push_back(std::move(sockets[shard]));
      if (!groups.empty()) own_groups.push_back(std::move(groups[shard]));
    }
    transports_.push_back(
        std::make_unique<Transport>(std::move(own_sockets), own, std::move(own_groups),
                                    [this, transport](RankEvent event) { OnEvent(transport, std::move(event)); }));
  }
}

StripedTransport::~StripedTransport() { Close(); }

void StripedTransport::Start(Sum sum) {
  if (count_ == 1) return transports_.front()->Start(std::move(sum));
  auto pending = std::make_shared<Pending>();
  pending->bytes = sum.spec->bytes();
  pending->started_us = MonotonicUs();
  pending->done = std::move(sum.done);
  const auto stripes = static_cast<uint32_t>(std::clamp<uint64_t>(pending->bytes / kStripeBytes, 1, count_));
  pending->stripes = stripes;
  pending->written.resize(stripes);
  if (sum.pieces) pending->tell = std::move(sum.pieces->written);
  {
    std::lock_guard lock(counts_mutex_);
    ++sums_started_;
    times_.OnStarted(pending->started_us);
  }
  for (uint32_t index = 0; index < stripes; ++index) {
    Sum own = sum;
    own.stripe = {.index = index, .count = stripes};
    own.caller_waits = sum.caller_waits && stripes == 1;
    own.done = [this, pending, index](const Failure* failure) { OnDone(*pending, index, failure); };
    if (pending->tell) {
      own.pieces->written = [pending, index](uint64_t elements) { pending->OnWritten(index, elements); };
    }
    transports_[(sum.key.site + index) % count_]->Start(std::move(own));
  }
}

void StripedTransport::OnDone(Pending& sum, uint32_t stripe, const Failure* failure) {
  if (failure == nullptr) sum.OnWritten(stripe, UINT64_MAX);
  {
    std::lock_guard lock(sum.mutex);
    if (failure != nullptr && !sum.failure) sum.failure = *failure;
    if (--sum.stripes > 0) return;
  }
  {
    std::lock_guard lock(counts_mutex_);
    if (sum.failure) {
      has_failed_ = true;
      times_.OnFailed();
    } else if (!has_failed_) {  // others fail as well, but for those that are done just now
      ++sums_completed_;
      tensor_bytes_ += sum.bytes;
      times_.OnCompleted(sum.bytes, sum.started_us, MonotonicUs());
    }
  }
  sum.done(sum.failure ? &*sum.failure : nullptr);
}

void StripedTransport::Ready(const SumKey& key, uint64_t elements) {
  for (const auto& transport : transports_) transport->Ready(key, elements);
}

void StripedTransport::Fail(const Failure& failure) {
  for (const auto& transport : transports_) transport->Fail(failure);
}

void StripedTransport::NoteStall(const std::string& note) {
  for (const auto& transport : transports_) transport->NoteStall(note);
}

// ---------------------------------------------------------------- events

// The first byte of an order message names the transport, where there are several.
void StripedTransport::OnEvent(uint32_t transport, RankEvent event) {
  if (auto* order = std::get_if<OrderMessage>(&event); order != nullptr && count_ > 1) {
    order->bytes.insert(order->bytes.begin(), static_cast<char>(transport));
  } else if (auto* stalled = std::get_if<Stalled>(&event)) {
    stalled->stall.shard = ShardOf(transport, stalled->stall.shard);
  } else if (auto* lost = std::get_if<GroupLost>(&event)) {
    lost->shard = ShardOf(transport, lost->shard);
  }
  events_.Push(std::move(event));
}

void StripedTransport::DeliverOrderMessage(std::string message) {
  if (count_ == 1) return transports_.front()->DeliverOrderMessage(std::move(message));
  const size_t transport = message.empty() ? count_ : static_cast<uint8_t>(message.front());
  if (transport >= count_) {
    return Fail({"ProtocolError",
                 "rank 0's order of sums is for a thread that this host doesn't have. This is a defect of jax_passing, "
                 "or the control connection carried foreign data. Restart the job."});
  }
  transports_[transport]->DeliverOrderMessage(message.substr(1));
}

std::optional<RankEvent> StripedTransport::WaitEvent(double timeout_s) {
  std::optional<RankEvent> event = events_.Wait(ToUs(timeout_s));
  if (!event || !std::holds_alternative<Failure>(*event)) return event;
  Fail(std::get<Failure>(*event));
  if (std::exchange(has_told_failure_, true)) return std::nullopt;
  return event;
}

// ---------------------------------------------------------------- for the session

std::optional<Failure> StripedTransport::failure() const {
  for (const auto& transport : transports_) {
    if (std::optional<Failure> failure = transport->failure()) return failure;
  }
  return std::nullopt;
}

bool StripedTransport::Drain(double timeout_s) {
  const int64_t until_us = MonotonicUs() + ToUs(timeout_s);
  return std::all_of(transports_.begin(), transports_.end(), [&](const auto& transport) {
    return transport->Drain(static_cast<double>(std::max<int64_t>(until_us - MonotonicUs(), 0)) / 1e6);
  });
}

AllReduceStats StripedTransport::stats() const {
  AllReduceStats total = transports_.front()->stats();
  for (uint32_t transport = 1; transport < count_; ++transport) total += transports_[transport]->stats();
  if (count_ == 1) return total;
  std::lock_guard lock(counts_mutex_);
  total.sums_started = sums_started_;
  total.sums_completed = sums_completed_;
  total.tensor_bytes = tensor_bytes_;
  total.busy_us = times_.busy_us(MonotonicUs());
  return total;
}

UdpSocketStats StripedTransport::socket_stats() const {
  UdpSocketStats total;
  for (const auto& transport : transports_) total += transport->socket_stats();
  return total;
}

SumTimes::BySize StripedTransport::times() const {
  if (count_ == 1) return transports_.front()->times();
  std::lock_guard lock(counts_mutex_);
  return times_.by_size();
}

std::optional<std::pair<Stall, int64_t>> StripedTransport::Oldest() const {
  std::optional<std::pair<Stall, int64_t>> oldest;
  for (uint32_t transport = 0; transport < count_; ++transport) {
    auto found = transports_[transport]->Oldest();
    if (!found || (oldest && oldest->second >= found->second)) continue;
    found->first.shard = ShardOf(transport, found->first.shard);
    oldest = std::move(found);
  }
  return oldest;
}

void StripedTransport::Close() {
  for (const auto& transport : transports_) transport->Close();
  events_.Close();
}

}  // namespace passing
