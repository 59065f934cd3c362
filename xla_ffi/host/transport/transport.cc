#include "host/transport/transport.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "host/failures.h"
#include "net/clock.h"

namespace passing {
namespace {

// A sum of up to one super-packet is sent by the thread that starts it, if the transport sleeps: that saves the time
// to wake the transport. For a larger one the caller would encode a whole window, and might meet a full send buffer.
constexpr uint64_t kSendByCallerBytes = 1 << 16;

// How many this process may use; 1 if the system doesn't say.
unsigned CoreCount() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? static_cast<unsigned>(CPU_COUNT(&cores)) : 1;
}

}  // namespace

Transport::Transport(std::vector<UdpSocket> sockets, const RankOptions& options,
                     std::vector<std::optional<UdpSocket>> groups, std::function<void(RankEvent)> on_event)
    : on_event_(std::move(on_event)),
      sockets_(std::move(sockets), std::move(groups), FullPacketBytes(options.job), wake_up_.fd()),
      core_(options, sockets_.drivers(), sockets_.hears_group(),
            [this](RankEvent event) { OnEvent(std::move(event)); }),
      caller_wait_(CoreCount()) {
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "passing-host");
}

Transport::~Transport() { Close(); }

// ---------------------------------------------------------------- what callers do, on their threads

void Transport::Start(Sum sum) {
  const bool small = sum.spec->bytes() <= kSendByCallerBytes;
  const bool caller_waits = sum.caller_waits;
  bool serves = false;
  {
    std::unique_lock lock(mutex_);
    if (over()) {
      const Failure refused = failure_.value_or(Closed());
      lock.unlock();
      return sum.done(&refused);
    }
    starts_.push_back(std::move(sum));
    const bool alone = std::exchange(idle_, false);
    if (small && !caller_waits) caller_wait_.OnOther();
    const bool waits = small && caller_waits && alone && caller_wait_.OnStart(MonotonicUs());
    if (!wake_up_.asleep()) return;  // whoever serves looks here before it sleeps
    if (!small || !core_mutex_.try_lock()) return wake_up_.Wake();
    serves = waits && wake_up_.parked();
    if (serves) wake_up_.ServeByCaller();
  }
  std::lock_guard core(core_mutex_, std::adopt_lock);
  if (serves) return ServeByCaller();
  Work(MonotonicUs());
  std::lock_guard lock(mutex_);
  wake_up_.WakeBy(core_.next_timer_us());
}

// Until its sum is done, as no other is pending, or until the thread is to go on.
void Transport::ServeByCaller() {
  int64_t now_us = MonotonicUs(), yielded_us = 0;
  while (true) {
    Work(now_us);
    int64_t until_us = 0;
    bool looks;
    {
      std::lock_guard lock(mutex_);
      const bool done = core_.idle();
      if (done || over() || has_left() || now_us >= caller_wait_.until_us()) {
        done ? caller_wait_.OnDone(now_us) : caller_wait_.OnGivenUp();
        if (!done || over() || has_left()) return wake_up_.LeaveToThread();
        wake_up_.LeaveToNobody();
        return NoteIdle();
      }
      caller_wait_.OnYield(std::exchange(yielded_us, 0));
      looks = caller_wait_.looks(now_us);
      if (!looks) until_us = wake_up_.OnSleep(now_us, std::min(core_.next_timer_us(), caller_wait_.until_us()));
    }
    const bool readable = sockets_.Sleep(until_us);  // if it looks, not at all
    if (readable) {
      Receive();
    } else if (looks) {
      const int64_t before_us = MonotonicUs();
      sched_yield();
      yielded_us = MonotonicUs() - before_us;
    }
    if (!looks) {
      std::lock_guard lock(mutex_);
      wake_up_.OnAwake(readable);
    }
    now_us = MonotonicUs();
  }
}

void Transport::Ready(const SumKey& key, uint64_t elements) {
  std::lock_guard lock(mutex_);
  if (over()) return;
  ready_.push_back({key, elements});
  wake_up_.Wake();
}

void Transport::Announce(const ProgramInfo& program) {
  std::lock_guard lock(mutex_);
  if (!over()) Push(program);
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
  Push(failure);
  wake_up_.Wake();
}

std::optional<Failure> Transport::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

std::optional<RankEvent> Transport::WaitEvent(double timeout_s) { return events_.Wait(ToUs(timeout_s)); }

bool Transport::Drain(double timeout_s) {
  std::unique_lock lock(mutex_);
  return drained_.wait_for(lock, std::chrono::microseconds(ToUs(timeout_s)), [this] { return idle_; });
}

AllReduceStats Transport::stats() const {
  std::lock_guard core(core_mutex_);
  AllReduceStats stats = core_.stats();
  stats.busy_us = core_.times().busy_us(MonotonicUs());
  return stats;
}

SumTimes::BySize Transport::times() const {
  std::lock_guard core(core_mutex_);
  return core_.times().by_size();
}

std::optional<std::pair<Stall, int64_t>> Transport::Oldest() const {
  std::lock_guard core(core_mutex_);
  std::optional<Stall> oldest = core_.OldestStall();
  if (!oldest) return std::nullopt;
  return std::pair(*oldest, MonotonicUs() - oldest->since_us);
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
      std::unique_lock lock(mutex_);
      if (over()) break;
      if (has_left()) continue;
      if (core_.idle()) NoteIdle();
      if (core_.idle() && caller_wait_.is_next()) {
        core.unlock();
        wake_up_.Park(lock);
        lock.unlock();
        core.lock();
        continue;
      }
      until_us = wake_up_.OnSleep(now_us, core_.next_timer_us());
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

void Transport::NoteIdle() {
  if (!std::exchange(idle_, true)) drained_.notify_all();
}

// Takes what the callers left and does what can be done now.
void Transport::Work(int64_t now_us) {
  std::optional<std::string> stall_note;
  {
    std::lock_guard lock(mutex_);
    starts_.swap(taken_starts_);
    ready_.swap(taken_ready_);
    order_messages_.swap(taken_order_messages_);
    stall_note_.swap(stall_note);
  }
  for (Sum& sum : taken_starts_) core_.Start(std::move(sum), now_us);
  taken_starts_.clear();
  for (const ReadyElements& ready : taken_ready_) core_.OnReady(ready.key, ready.elements);
  taken_ready_.clear();
  for (const std::string& message : taken_order_messages_) {
    core_.OnOrderMessage({reinterpret_cast<const uint8_t*>(message.data()), message.size()});
  }
  taken_order_messages_.clear();
  if (stall_note) core_.NoteStall(std::move(*stall_note));
  core_.OnTimer(now_us);
}

void Transport::Receive() {
  for (uint32_t shard = 0; shard < sockets_.shard_count(); ++shard) {
    ReceiveFrom(shard, sockets_.ReadableGroup(shard), /*is_group=*/true);
    ReceiveFrom(shard, sockets_.ReadableSocket(shard), /*is_group=*/false);
  }
}

// One batch, if there is any.
void Transport::ReceiveFrom(uint32_t shard, UdpSocket* socket, bool is_group) {
  if (socket == nullptr) return;
  const int64_t now_us = MonotonicUs();
  socket->Receive([this, shard, is_group, now_us](std::span<const uint8_t> packet, const Address&) {
    core_.OnPacket(shard, packet, is_group, now_us);
  });
}

void Transport::OnEvent(RankEvent event) {
  if (const auto* failure = std::get_if<Failure>(&event)) return Fail(*failure);  // End tells the core
  Push(std::move(event));
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
  NoteIdle();
}

}  // namespace passing
