#include "host/transport/transport.h"

#include <pthread.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <span>
#include <stdexcept>
#include <utility>

#include "host/failures.h"
#include "net/clock.h"

namespace passing {
namespace {

// A sum of up to one super-packet is sent by the thread that starts it, if the transport sleeps: that saves the time
// to wake the transport. For a larger one the caller would encode a whole window, and might meet a full send buffer.
constexpr uint64_t kSendByCallerBytes = 1 << 16;

int64_t ToUs(double seconds) { return static_cast<int64_t>(std::clamp(seconds, 0.0, 1e9) * 1e6); }

const TransportOptions& Checked(const TransportOptions& options) {
  if (!IsInRange(options.job)) throw std::invalid_argument(NoJob(options.job));
  return options;
}

}  // namespace

Transport::Transport(std::vector<UdpSocket> sockets, const TransportOptions& options,
                     std::vector<std::optional<UdpSocket>> groups)
    : options_(Checked(options)),
      sockets_(std::move(sockets), std::move(groups), options.job.lanes_per_chunk, wake_up_.fd()),
      group_watches_(sockets_.shard_count()),
      core_(options.job, sockets_.drivers(),
            [this](std::string message) { events_.Push(OrderMessage{std::move(message)}); }),
      stall_watch_(ToUs(std::min(options.warn_s, options.deadline_s / 2)), ToUs(options.deadline_s)) {
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "passing-host");
}

Transport::~Transport() { Close(); }

// ---------------------------------------------------------------- what callers do, on their threads

void Transport::Start(Sum sum) {
  const bool small = sum.spec->bytes() <= kSendByCallerBytes;
  {
    std::unique_lock lock(mutex_);
    if (over()) {
      const Failure refused = failure_.value_or(Closed());
      lock.unlock();
      return sum.done(&refused);
    }
    starts_.push_back(std::move(sum));
    idle_ = false;
    if (!wake_up_.asleep()) return;  // the thread looks here before it sleeps
    if (!small || !core_mutex_.try_lock()) return wake_up_.Wake();
  }
  std::lock_guard core(core_mutex_, std::adopt_lock);
  Work(MonotonicUs());
  std::lock_guard lock(mutex_);
  wake_up_.WakeBy(DueUs());
}

void Transport::Ready(const SumKey& key, uint64_t elements) {
  std::lock_guard lock(mutex_);
  if (over()) return;
  ready_.push_back({key, elements});
  wake_up_.Wake();
}

void Transport::Announce(const ProgramInfo& program) {
  std::lock_guard lock(mutex_);
  if (!over()) events_.Push(program);
}

void Transport::DeliverOrderMessage(std::string message) {
  std::lock_guard lock(mutex_);
  if (over()) return;
  order_messages_.push_back(std::move(message));
  wake_up_.Wake();
}

void Transport::NoteStall(std::string note) {
  std::lock_guard lock(mutex_);
  stall_note_ = std::move(note);
}

void Transport::Fail(const Failure& failure) {
  std::lock_guard lock(mutex_);
  if (over()) return;
  failure_ = failure;
  events_.Push(failure);
  wake_up_.Wake();
}

std::optional<Failure> Transport::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

std::optional<TransportEvent> Transport::WaitEvent(double timeout_s) { return events_.Wait(ToUs(timeout_s)); }

bool Transport::Drain(double timeout_s) {
  std::unique_lock lock(mutex_);
  return drained_.wait_for(lock, std::chrono::microseconds(ToUs(timeout_s)), [this] { return idle_; });
}

AllReduceStats Transport::stats() const {
  std::lock_guard core(core_mutex_);
  return core_.stats();
}

UdpSocketStats Transport::socket_stats() const {
  std::lock_guard core(core_mutex_);
  return sockets_.stats();
}

void Transport::Close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    wake_up_.Wake();
    events_.Close();
  }
  std::lock_guard closing(close_mutex_);
  if (!thread_.joinable()) return;
  thread_.join();
  // An object that outlives its session must hold no descriptors. A caller may still be in Start, with the core's lock.
  std::lock_guard core(core_mutex_);
  sockets_.Close();
  std::lock_guard lock(mutex_);
  wake_up_.Close();
}

// ---------------------------------------------------------------- what the thread does

void Transport::Run() {
  std::unique_lock core(core_mutex_);
  while (true) {
    const int64_t now_us = MonotonicUs();
    Work(now_us);
    int64_t until_us;
    {
      std::lock_guard lock(mutex_);
      if (over()) break;
      if (!starts_.empty() || !ready_.empty() || !order_messages_.empty()) continue;
      if (core_.idle() && !std::exchange(idle_, true)) drained_.notify_all();
      until_us = wake_up_.OnSleep(now_us, DueUs());
    }
    core.unlock();
    const bool readable = sockets_.Sleep(until_us);
    core.lock();
    {
      std::lock_guard lock(mutex_);
      wake_up_.OnAwake(readable);
    }
    if (readable) Receive();
  }
  End();
}

// Takes what the callers left and does what can be done now.
void Transport::Work(int64_t now_us) {
  {
    std::lock_guard lock(mutex_);
    starts_.swap(taken_starts_);
    ready_.swap(taken_ready_);
    order_messages_.swap(taken_order_messages_);
  }
  for (Sum& sum : taken_starts_) core_.Start(std::move(sum), now_us);
  taken_starts_.clear();
  for (const ReadyElements& ready : taken_ready_) core_.OnReady(ready.key, ready.elements);
  taken_ready_.clear();
  for (const std::string& message : taken_order_messages_) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(message.data());
    if (const std::optional<Failure> failure = core_.OnOrderMessage({bytes, message.size()})) {
      Fail(*failure);
      break;
    }
  }
  taken_order_messages_.clear();
  if (now_us >= core_.next_timer_us()) core_.OnTimer(now_us);
  CheckStall(now_us);
}

int64_t Transport::DueUs() const { return std::min(core_.next_timer_us(), stall_watch_.next_timer_us()); }

void Transport::Receive() {
  for (uint32_t shard = 0; shard < sockets_.shard_count(); ++shard) {
    wire::GroupWatch& watch = group_watches_[shard];
    if (UdpSocket* group = sockets_.ReadableGroup(shard)) watch.OnGroupResults(ReceiveFrom(shard, *group));
    UdpSocket* own = sockets_.ReadableSocket(shard);
    if (own == nullptr) continue;
    const uint64_t results = ReceiveFrom(shard, *own);
    if (sockets_.HasGroup(shard) && watch.OnOwnResults(results)) events_.Push(GroupLost{shard});
  }
  if (core_.failure()) Fail(*core_.failure());
}

// One batch. Returns how many results a sum waited for.
uint64_t Transport::ReceiveFrom(uint32_t shard, UdpSocket& socket) {
  const int64_t now_us = MonotonicUs();
  const uint64_t before = Results();
  socket.Receive([this, shard, now_us](std::span<const uint8_t> packet, const Address&) {
    core_.OnPacket(shard, packet, now_us);
  });
  return Results() - before;
}

// The number of awaited results since the beginning.
uint64_t Transport::Results() const {
  const AllReduceStats stats = core_.stats();
  return stats.packets_received - stats.packets_dropped;
}

void Transport::CheckStall(int64_t now_us) {
  if (!stall_watch_.IsDue(Results(), core_.idle(), now_us)) return;
  const std::optional<Stall> stall = core_.OldestStall();
  assert(stall);  // as the core isn't idle
  const StallWatch::Verdict verdict = stall_watch_.Judge(stall->since_us, now_us);
  if (verdict.state == StallWatch::Verdict::kGoesOn) return;
  std::unique_lock lock(mutex_);
  if (verdict.state == StallWatch::Verdict::kStalled) {
    if (verdict.is_new) stall_note_.clear();  // it was about another stall
    events_.PushLatest({*stall, static_cast<double>(verdict.stalled_us) / 1e6});
    return;
  }
  const std::string note = stall_note_;
  lock.unlock();
  Fail(DeadlineExceeded(options_.job, *stall, verdict.stalled_us, note, options_.deadline_s));
}

// Start refuses from the failure or the closing on, so nothing comes after starts_.
void Transport::End() {
  std::vector<Sum> starts;
  Failure failure;
  {
    std::lock_guard lock(mutex_);
    failure = failure_.value_or(Closed());
    starts.swap(starts_);
  }
  core_.Fail(failure);
  for (const Sum& sum : starts) sum.done(&failure);
  std::lock_guard lock(mutex_);
  idle_ = true;
  drained_.notify_all();
}

}  // namespace passing
