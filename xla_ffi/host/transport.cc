#include "host/transport.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "host/fixed_point.h"
#include "net/clock.h"
#include "net/udp_driver.h"
#include "wire/probe.h"

namespace passing {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int64_t kStallRepeatUs = 1'000'000;

constexpr uint64_t kMaxSlots = 1 << 16;  // 16 bits on the wire

// A sum of up to one super-packet is sent by the thread that starts it, if the transport sleeps: that saves the time
// to wake the transport. For a larger one the caller would encode a whole window, and might meet a full send buffer.
constexpr uint64_t kSendByCallerBytes = 1 << 16;

// The deadline counts from the last progress of any sum, so that a long queue of large sums is no fault. A sum
// that is passed by all others for this many deadlines is lost all the same.
constexpr int64_t kDeadlinesWhilePassed = 10;

int64_t ToUs(double seconds) { return static_cast<int64_t>(std::clamp(seconds, 0.0, 1e9) * 1e6); }

// After the last sum the thread wakes once more, so late. A caller that sends the next sum by then needn't wake it to
// set its timers, which are due later: no RTO is shorter.
constexpr int64_t kLingerUs = 2'000;

uint64_t BytesOf(const SumShape& shape) {
  uint64_t elements = 0;
  for (uint64_t leaf : shape.leaf_elements) elements += leaf;
  return elements * SizeOf(shape.dtype);
}

template <typename... Args>
std::string Format(const char* format, Args... args) {
  std::string text(static_cast<size_t>(std::snprintf(nullptr, 0, format, args...)), '\0');
  std::snprintf(text.data(), text.size() + 1, format, args...);
  return text;
}

const TransportOptions& Checked(const TransportOptions& options) {
  const JobConfig& job = options.job;
  const bool ranks = job.world_size <= kMaxWorldSize && job.rank < job.world_size &&
                     std::all_of(job.shards.begin(), job.shards.end(),
                                 [](const Shard& shard) { return shard.worker < wire::kMaxWorkers; });
  // The order's limits hold for a window of so many positions (order.cc).
  const bool slots = std::has_single_bit(job.slots_per_shard) && !job.shards.empty() &&
                     job.slots_per_shard * job.shards.size() <= kMaxSlots &&
                     std::all_of(job.shards.begin(), job.shards.end(), [&](const Shard& shard) {
                       return uint64_t{shard.slot_first} + job.slots_per_shard <= kMaxSlots;
                     });
  const bool lanes = job.lanes_per_chunk >= 3 && job.lanes_per_chunk <= wire::kMaxLanes &&
                     std::all_of(job.shards.begin(), job.shards.end(), [&](const Shard& shard) {
                       return shard.whole_lanes == 0 ||
                              (shard.whole_lanes >= job.lanes_per_chunk && shard.whole_lanes <= wire::kMaxLanes);
                     });
  if (ranks && slots && lanes) return options;
  std::string at;
  for (const Shard& shard : job.shards) at += Format(" %u", shard.slot_first);
  throw std::invalid_argument(Format("rank %u of %u, %u slots from%s and %u lanes in a chunk make no job", job.rank,
                                     job.world_size, job.slots_per_shard, at.c_str(), job.lanes_per_chunk));
}

}  // namespace

class Transport::Impl {
 public:
  Impl(std::vector<UdpSocket> sockets, const TransportOptions& options, std::vector<std::optional<UdpSocket>> groups)
      : options_(Checked(options)),
        warn_us_(ToUs(std::min(options.warn_s, options.deadline_s / 2))),
        deadline_us_(ToUs(options.deadline_s)),
        sockets_(std::move(sockets)),
        groups_(std::move(groups)),
        drivers_(DriversOf(sockets_, options.job.lanes_per_chunk)),
        core_(options.job, Pointers(drivers_), [this](std::string message) { EmitOrderMessage(std::move(message)); }),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (wake_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
    groups_.resize(sockets_.size());
    unicast_results_.resize(sockets_.size());
    for (const UdpSocket& socket : sockets_) watched_.push_back({.fd = socket.fd(), .events = POLLIN, .revents = 0});
    for (const auto& group : groups_) {
      watched_.push_back({.fd = group ? group->fd() : -1, .events = POLLIN, .revents = 0});  // poll skips -1
    }
    watched_.push_back({.fd = wake_, .events = POLLIN, .revents = 0});
    thread_ = std::thread([this] { Run(); });
    pthread_setname_np(thread_.native_handle(), "passing-host");
  }

  ~Impl() {
    Close();
    close(wake_);
  }

  uint32_t world_size() const { return options_.job.world_size; }

  void Start(Sum sum) {
    const bool small = BytesOf(*sum.shape) <= kSendByCallerBytes;
    {
      std::unique_lock lock(mutex_);
      if (failure_.has_value() || closed_) {
        const Failure refused = failure_.value_or(Closed());
        lock.unlock();
        return sum.done(&refused);
      }
      starts_.push_back(std::move(sum));
      idle_ = false;
      if (!asleep_) return;  // the thread looks here before it sleeps
      if (!small || !core_mutex_.try_lock()) return Wake();
    }
    std::lock_guard core(core_mutex_, std::adopt_lock);
    Work(MonotonicUs());
    std::lock_guard lock(mutex_);
    if (DueUs() < sleeps_until_us_) Wake();
  }

  void Announce(const ProgramInfo& program) {
    std::lock_guard lock(mutex_);
    if (closed_ || failure_.has_value()) return;
    events_.push_back(program);
    happened_.notify_all();
  }

  void DeliverOrderMessage(std::string message) {
    std::lock_guard lock(mutex_);
    if (closed_ || failure_.has_value()) return;
    order_messages_.push_back(std::move(message));
    Wake();
  }

  void NoteStall(std::string note) {
    std::lock_guard lock(mutex_);
    stall_note_ = std::move(note);
  }

  void Fail(const Failure& failure) {
    std::lock_guard lock(mutex_);
    if (closed_ || failure_.has_value()) return;
    FailLocked(failure);
    Wake();
  }

  std::optional<Failure> failure() const {
    std::lock_guard lock(mutex_);
    return failure_;
  }

  std::optional<TransportEvent> WaitEvent(double timeout_s) {
    std::unique_lock lock(mutex_);
    happened_.wait_for(lock, std::chrono::microseconds(ToUs(timeout_s)),
                       [this] { return !events_.empty() || closed_; });
    if (events_.empty()) return std::nullopt;
    TransportEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

  bool Drain(double timeout_s) {
    std::unique_lock lock(mutex_);
    return drained_.wait_for(lock, std::chrono::microseconds(ToUs(timeout_s)), [this] { return idle_; });
  }

  AllReduceStats stats() const {
    std::lock_guard core(core_mutex_);
    return core_.stats();
  }

  UdpSocketStats socket_stats() const {
    std::lock_guard core(core_mutex_);
    UdpSocketStats sum;
    for (const UdpSocket& socket : sockets_) {
      sum.datagrams_unsent += socket.stats().datagrams_unsent;
      sum.errors_reported += socket.stats().errors_reported;
    }
    return sum;
  }

  void Close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
      Wake();
      happened_.notify_all();
    }
    std::lock_guard lock(close_mutex_);
    if (thread_.joinable()) thread_.join();
  }

 private:
  static std::vector<UdpDriver> DriversOf(std::vector<UdpSocket>& sockets, uint32_t lanes) {
    std::vector<UdpDriver> drivers;
    for (UdpSocket& socket : sockets) drivers.emplace_back(socket, wire::kHeaderBytes + 4 * size_t{lanes});
    return drivers;
  }

  static std::vector<Driver*> Pointers(std::vector<UdpDriver>& drivers) {
    std::vector<Driver*> pointers;
    for (UdpDriver& driver : drivers) pointers.push_back(&driver);
    return pointers;
  }

  static Failure Closed() { return {"ClosedError", "the session was shut down before this sum was complete"}; }

  // With mutex_ held. No system call unless the thread sleeps.
  void Wake() {
    if (!asleep_ || std::exchange(woken_, true)) return;
    const uint64_t one = 1;
    while (write(wake_, &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

  void FailLocked(const Failure& failure) {
    failure_ = failure;
    events_.push_back(failure);
    happened_.notify_all();
  }

  // The rest runs with core_mutex_ held and without mutex_: on the thread, Work on callers' threads too.
  void Emit(TransportEvent event) {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    happened_.notify_all();
  }

  void EmitOrderMessage(std::string message) { Emit(OrderMessage{std::move(message)}); }

  void Run() {
    std::unique_lock core(core_mutex_);
    bool lingered = false;
    while (true) {
      const int64_t now_us = MonotonicUs();
      Work(now_us);
      int64_t due_us = DueUs();
      if (due_us != kNever) {
        lingered = false;
      } else if (!std::exchange(lingered, true)) {
        due_us = now_us + kLingerUs;
      }
      {
        std::lock_guard lock(mutex_);
        if (failure_.has_value() || closed_) break;
        if (!starts_.empty() || !order_messages_.empty()) continue;
        if (core_.idle() && !std::exchange(idle_, true)) drained_.notify_all();
        sleeps_until_us_ = due_us;
        asleep_ = true;
      }
      core.unlock();
      const bool readable = Sleep(due_us);
      core.lock();
      {
        std::lock_guard lock(mutex_);
        asleep_ = false;
        if (std::exchange(woken_, false)) ClearWake();
      }
      if (readable) Receive();
    }
    End();
  }

  // Takes what the callers left and does what can be done now.
  void Work(int64_t now_us) {
    {
      std::lock_guard lock(mutex_);
      starts_.swap(taken_starts_);
      order_messages_.swap(taken_order_messages_);
    }
    for (Sum& sum : taken_starts_) core_.Start(std::move(sum), now_us);
    taken_starts_.clear();
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

  int64_t DueUs() const { return std::min(core_.next_timer_us(), next_check_us_); }

  // Without any lock. Until a packet (then true), a call or `due_us`.
  bool Sleep(int64_t due_us) {
    timespec timeout{};
    if (due_us != kNever) {
      const int64_t left_us = std::max<int64_t>(due_us - MonotonicUs(), 0);
      timeout = {.tv_sec = left_us / 1'000'000, .tv_nsec = left_us % 1'000'000 * 1000};
    }
    if (ppoll(watched_.data(), watched_.size(), due_us == kNever ? nullptr : &timeout, nullptr) <= 0) return false;
    return std::any_of(watched_.begin(), watched_.end() - 1, [](const pollfd& socket) { return socket.revents != 0; });
  }

  void ClearWake() {
    uint64_t count;
    while (read(wake_, &count, sizeof count) < 0 && errno == EINTR) {
    }
  }

  void Receive() {
    for (uint32_t shard = 0; shard < sockets_.size(); ++shard) ReceiveFrom(shard);
  }

  void ReceiveFrom(uint32_t shard) {
    std::optional<UdpSocket>& group = groups_[shard];
    if (watched_[sockets_.size() + shard].revents != 0 && Receive(shard, *group) > 0) unicast_results_[shard] = 0;
    if (watched_[shard].revents == 0) return;
    const uint64_t accepted = Receive(shard, sockets_[shard]);
    if (!group || unicast_results_[shard] >= wire::kGroupLostResults) return;
    unicast_results_[shard] += accepted;
    if (unicast_results_[shard] >= wire::kGroupLostResults) Emit(GroupLost{shard});
  }

  // One batch. Returns how many results a sum waited for.
  uint64_t Receive(uint32_t shard, UdpSocket& socket) {
    const int64_t now_us = MonotonicUs();
    const uint64_t before = Accepted();
    socket.Receive([this, shard, now_us](std::span<const uint8_t> packet, const Address&) {
      core_.OnPacket(shard, packet, now_us);
    });
    return Accepted() - before;
  }

  uint64_t Accepted() const {
    const AllReduceStats stats = core_.stats();
    return stats.packets_received - stats.packets_dropped;
  }

  // Start refuses from the failure or the closing on, so nothing comes after starts_.
  void End() {
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

  void CheckStall(int64_t now_us) {
    const uint64_t accepted = Accepted();
    if (std::exchange(accepted_, accepted) != accepted) progress_us_ = now_us;
    if (core_.idle()) {
      next_check_us_ = kNever;
      return;
    }
    if (next_check_us_ == kNever) next_check_us_ = now_us + warn_us_;
    if (now_us < next_check_us_) return;

    const std::optional<Stall> stall = core_.OldestStall();
    assert(stall);  // as the core isn't idle
    const int64_t since_us = std::max(stall->since_us, progress_us_);
    const int64_t stalled_us = now_us - since_us;
    const bool passed = now_us - stall->since_us >= kDeadlinesWhilePassed * deadline_us_;
    if (stalled_us >= deadline_us_ || passed) {
      Fail(DeadlineExceeded(*stall, passed ? now_us - stall->since_us : stalled_us));
      next_check_us_ = kNever;
    } else if (stalled_us >= warn_us_) {
      EmitStall(*stall, since_us, stalled_us);
      next_check_us_ = std::min(now_us + kStallRepeatUs, since_us + deadline_us_);
    } else {
      next_check_us_ = since_us + warn_us_;
    }
  }

  void EmitStall(const Stall& stall, int64_t since_us, int64_t stalled_us) {
    std::lock_guard lock(mutex_);
    if (std::exchange(stall_since_us_, since_us) != since_us) stall_note_.clear();  // it was about another stall
    // One is enough for a session that doesn't ask.
    std::erase_if(events_, [](const TransportEvent& event) { return std::holds_alternative<Stalled>(event); });
    events_.push_back(Stalled{stall, static_cast<double>(stalled_us) / 1e6});
    happened_.notify_all();
  }

  Failure DeadlineExceeded(const Stall& stall, int64_t stalled_us) const {
    const JobConfig& job = options_.job;
    std::string note;
    {
      std::lock_guard lock(mutex_);
      note = stall_note_;
    }
    std::string waits;
    const char* advice;
    if (!stall.job_is_at.empty()) {
      waits = "rank 0 comes to " + stall.job_is_at + " first, which this host hasn't started";
      advice = "The hosts run different programs, or this one is late with that sum.";
    } else if (stall.waits_for_order) {
      waits = "rank 0 hasn't started this sum";
      advice = "Rank 0 is slow or stopped, or runs another program: look at its log.";
    } else {
      waits = Format("no result for slot %u, version %u, sequence %u of %s", stall.slot, stall.version, stall.sequence,
                     job.shards[stall.shard].name.c_str());
      advice =
          "Another host is slow or stopped, or runs another program, or packets to the switch are lost: look at the "
          "other hosts' logs and at the switch's.";
    }
    return {"DeadlineExceededError",
            Format("%s (execution %u, step %u) made no progress for %.1f s: %s. This is rank %u of %u, job %u, epoch "
                   "%u.%s%s %s "
                   "If hosts may wait that long for each other, raise deadline_s (now %.1f).",
                   stall.site_name.c_str(), stall.key.execution, stall.key.step, static_cast<double>(stalled_us) / 1e6,
                   waits.c_str(), job.rank, job.world_size, job.shards[0].job, job.shards[0].epoch,
                   note.empty() ? "" : " ", note.c_str(), advice, options_.deadline_s)};
  }

  const TransportOptions options_;
  const int64_t warn_us_;
  const int64_t deadline_us_;

  std::vector<pollfd> watched_;  // the sockets, the groups, then wake_; the thread's alone

  // Taken before mutex_ by who needs both. The thread holds it whenever it is awake; a caller never waits for it.
  mutable std::mutex core_mutex_;
  std::vector<UdpSocket> sockets_;                // by shard
  std::vector<std::optional<UdpSocket>> groups_;  // by shard: where results come by multicast
  std::vector<UdpDriver> drivers_;
  std::vector<uint64_t> unicast_results_;  // by shard with a group: results in a row that came to us alone
  AllReduce core_;
  uint64_t accepted_ = 0;       // packets that a sum waited for
  int64_t progress_us_ = 0;     // when the last of them came
  int64_t stall_since_us_ = 0;  // the stall that was reported last
  int64_t next_check_us_ = kNever;
  std::vector<Sum> taken_starts_;  // empty but during Work, as the next
  std::vector<std::string> taken_order_messages_;

  int wake_;
  mutable std::mutex mutex_;
  std::condition_variable happened_;  // an event, or closed_
  std::condition_variable drained_;   // idle_; apart, as it comes with every sum and somebody always waits for events
  bool asleep_ = false;               // the thread is, or is about to be
  bool woken_ = false;                // wake_ is readable
  int64_t sleeps_until_us_ = 0;
  bool closed_ = false;
  bool idle_ = true;
  std::optional<Failure> failure_;
  std::vector<Sum> starts_;
  std::vector<std::string> order_messages_;
  std::deque<TransportEvent> events_;
  std::string stall_note_;

  std::mutex close_mutex_;
  std::thread thread_;
};

Transport::Transport(std::vector<UdpSocket> sockets, const TransportOptions& options,
                     std::vector<std::optional<UdpSocket>> groups)
    : impl_(std::make_unique<Impl>(std::move(sockets), options, std::move(groups))) {}
Transport::~Transport() = default;

uint32_t Transport::world_size() const { return impl_->world_size(); }
void Transport::Start(Sum sum) { impl_->Start(std::move(sum)); }
void Transport::Announce(const ProgramInfo& program) { impl_->Announce(program); }
void Transport::DeliverOrderMessage(std::string message) { impl_->DeliverOrderMessage(std::move(message)); }
void Transport::NoteStall(std::string note) { impl_->NoteStall(std::move(note)); }
void Transport::Fail(const Failure& failure) { impl_->Fail(failure); }
std::optional<Failure> Transport::failure() const { return impl_->failure(); }
std::optional<TransportEvent> Transport::WaitEvent(double timeout_s) { return impl_->WaitEvent(timeout_s); }
bool Transport::Drain(double timeout_s) { return impl_->Drain(timeout_s); }
AllReduceStats Transport::stats() const { return impl_->stats(); }
UdpSocketStats Transport::socket_stats() const { return impl_->socket_stats(); }
void Transport::Close() { impl_->Close(); }

}  // namespace passing
