#include "switch/udp_switch.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "switch/fair_turns.h"
#include "switch/job_queues.h"
#include "wire/group_watch.h"

namespace passing {
namespace {

// What epoll says is readable: one of these, the first with the number of a queue, or an uplink, by its job, and
// whether its group is meant.
constexpr uint64_t kOwnSocket = 1 << 16;
constexpr uint64_t kStop = 1 << 17;
constexpr uint64_t kUplinkGroup = 1 << 18;

// With several jobs none keeps the others waiting for long: 256 KB make a turn, and a link that is full loses packets
// after a while in which the others' windows (3 ms at 1 Gbit/s) don't run out.
constexpr unsigned kSharedMessages = 4;
constexpr int kSharedWaitMs = 1;
// What is no job's has an eighth of a job's share when there is more to do than can be done: strangers send it, or
// hosts whose job has just ended.
constexpr uint64_t kOtherWeight = 8;

uint64_t MonotonicNs() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

int Opened(int fd, const char* what) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), what);
  return fd;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

}  // namespace

class UdpSwitch::Impl {
 public:
  Impl(const std::string& host, uint16_t port, uint32_t slot_count)
      : readable_(Opened(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
        stop_(Opened(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
        queues_(host, port, [this](const UdpSocket& socket, size_t queue) { Watch(socket.fd(), kOwnSocket | queue); }),
        port_(queues_.socket(JobQueues::kOther).port()),
        pool_(slot_count) {
    Watch(stop_.get(), kStop);
    thread_ = std::thread([this] { Serve(); });
    pthread_setname_np(thread_.native_handle(), "passing-switch");
  }

  ~Impl() { Close(); }

  uint16_t port() const { return port_; }

  void AddJob(const JobSlots& job, std::optional<MulticastGroup> group, std::optional<Uplink> uplink) {
    if (job.parent.has_value() != uplink.has_value()) {
      throw std::invalid_argument("a job has both a parent and a socket to it, or neither");
    }
    JobSlots native = job;
    std::lock_guard lock(mutex_);
    const UdpSocket& own = queues_.socket(JobQueues::kOther);
    for (Address& address : native.addresses) address = own.Native(address);
    if (group) group->group = own.Native(group->group);
    if (uplink) native.parent->address = uplink->socket.Peer();
    // First what may fail: a job that is refused leaves nothing behind, and what was here under its number stays. The
    // watch over a refused uplink ends with its sockets.
    if (uplink) Watch(uplink->socket.fd(), job.job);
    if (uplink && uplink->group) Watch(uplink->group->fd(), job.job | kUplinkGroup);
    pool_.AddJob(native);
    RemoveRoute(job.job);
    const size_t queue = queues_.Take(job.job, native.addresses);
    routes_.insert_or_assign(
        job.job,
        Route{.queue = queue, .workers = std::move(native.addresses), .group = group, .uplink = std::move(uplink)});
  }

  void StopMulticast(uint16_t job) {
    std::lock_guard lock(mutex_);
    if (const auto found = routes_.find(job); found != routes_.end()) found->second.group.reset();
  }

  void RemoveJob(uint16_t job) {
    std::lock_guard lock(mutex_);
    pool_.RemoveJob(job);
    RemoveRoute(job);
  }

  void Probe(const MulticastGroup& group, const wire::ProbeName& name, uint16_t lanes) {
    const wire::ProbeBurst burst = wire::MakeProbeBurst(name, lanes);
    std::lock_guard lock(mutex_);
    UdpSocket& socket = queues_.socket(JobQueues::kOther);
    const Address to = socket.Native(group.group);
    if (!socket.MulticastFrom(group.from)) {
      throw std::system_error(EADDRNOTAVAIL, std::generic_category(), "can't send to a multicast group");
    }
    socket.Send(burst.bytes.data(), burst.packet_bytes, {&to, 1});
  }

  bool HearsParentsGroup(uint16_t job) const {
    std::lock_guard lock(mutex_);
    const auto found = routes_.find(job);
    return found == routes_.end() || !found->second.parents_group.lost();
  }

  SlotVersion VersionOf(uint32_t slot, uint8_t version) const {
    std::lock_guard lock(mutex_);
    return pool_.VersionOf(slot, version);
  }

  UdpSwitchStats stats() const {
    std::lock_guard lock(mutex_);
    UdpSwitchStats stats = stats_;
    for (size_t queue = 0; queue < queues_.size(); ++queue) {
      stats.socket += queues_.socket(queue).stats();
      stats.packets_overflowed += queues_.Drops(queue);
    }
    for (const auto& [job, route] : routes_) {
      if (route.uplink) stats.socket += route.uplink->socket.stats();
    }
    for (int i = 0; i < kVerdictCount; ++i) stats.verdicts[i] = pool_.Count(static_cast<Verdict>(i));
    return stats;
  }

  std::map<uint16_t, uint64_t> Overflows() const {
    std::lock_guard lock(mutex_);
    return queues_.Overflows();
  }

  void Close() {
    std::lock_guard lock(close_mutex_);
    if (!thread_.joinable()) return;
    const uint64_t one = 1;
    while (write(stop_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
    thread_.join();
  }

 private:
  // Where a job's packets go.
  struct Route {
    size_t queue;
    std::vector<Address> workers;
    std::optional<MulticastGroup> group;
    std::optional<Uplink> uplink;
    wire::GroupWatch parents_group{};  // if the uplink has one
  };

  // Packets that go the same way, side by side in output_.
  struct Batch {
    uint16_t job;
    SendTo to;
    uint16_t worker;  // of SendTo::kWorker
    size_t first_packet;
    size_t first_byte;
  };

  void Watch(int fd, uint64_t what) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = what}};
    if (epoll_ctl(readable_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      throw std::system_error(errno, std::generic_category(), "epoll_ctl");
    }
  }

  // With mutex_ held. Closing the uplink's sockets ends the watch over them.
  void RemoveRoute(uint16_t job) {
    const auto found = routes_.find(job);
    if (found == routes_.end()) return;
    if (found->second.uplink) stats_.socket += found->second.uplink->socket.stats();
    queues_.Return(job);
    routes_.erase(found);
  }

  void Serve() {
    const OnDatagram on_datagram = [this](std::span<const uint8_t> datagram, const Address& source) {
      ++stats_.packets_received;
      stats_.bytes_received += datagram.size();
      const Action action = pool_.OnPacket(datagram, source);
      if (action.verdict == Verdict::kAnswered) CountWay(routes_.at(action.job));
      if (action.to != SendTo::kNobody) Queue(action);
    };
    std::array<epoll_event, JobQueues::kMaxQueues> events;
    while (true) {
      const int count = epoll_wait(readable_.get(), events.data(), events.size(), -1);
      const std::span ready(events.data(), static_cast<size_t>(std::max(count, 0)));  // none after EINTR
      if (std::any_of(ready.begin(), ready.end(), [](const epoll_event& one) { return one.data.u64 == kStop; })) return;
      if (!ready.empty()) ServeNext(ready, on_datagram);
    }
  }

  // One of those that are readable: the job that had least so far.
  void ServeNext(std::span<const epoll_event> ready, const OnDatagram& on_datagram) {
    std::lock_guard lock(mutex_);
    ready_queues_.clear();
    for (const epoll_event& one : ready) ready_queues_.push_back(QueueOf(one.data.u64));
    const size_t queue = turns_.Next(ready_queues_);
    const auto chosen = std::find(ready_queues_.begin(), ready_queues_.end(), queue) - ready_queues_.begin();
    const uint64_t what = ready[chosen].data.u64;
    UdpSocket* socket = SocketOf(what);
    if (socket == nullptr) return;
    by_group_ = (what & kUplinkGroup) != 0;
    const uint64_t began_ns = MonotonicNs();
    socket->Receive(on_datagram, queues_.is_shared() ? kSharedMessages : BatchReceiver::kBatch);
    Flush();
    const uint64_t took_ns = MonotonicNs() - began_ns;
    turns_.Charge(queue, queue == JobQueues::kOther ? kOtherWeight * took_ns : took_ns);
  }

  // With mutex_ held: whose time it takes to serve this.
  size_t QueueOf(uint64_t what) const {
    if ((what & kOwnSocket) != 0) return what & ~kOwnSocket;
    const auto found = routes_.find(static_cast<uint16_t>(what));
    return found == routes_.end() ? JobQueues::kOther : found->second.queue;
  }

  void CountWay(Route& route) {
    if (!route.uplink || !route.uplink->group) return;
    if (by_group_) {
      route.parents_group.OnGroupResults(1);
    } else {
      route.parents_group.OnOwnResults(1);
    }
  }

  // With mutex_ held. nullptr if the job was removed meanwhile.
  UdpSocket* SocketOf(uint64_t what) {
    if ((what & kOwnSocket) != 0) return &queues_.socket(what & ~kOwnSocket);
    const auto found = routes_.find(static_cast<uint16_t>(what));
    if (found == routes_.end() || !found->second.uplink) return nullptr;
    Uplink& uplink = *found->second.uplink;
    if ((what & kUplinkGroup) == 0) return &uplink.socket;
    return uplink.group ? &*uplink.group : nullptr;
  }

  void Queue(const Action& action) {
    const uint16_t worker = action.to == SendTo::kWorker ? action.worker : wire::kEveryWorker;
    if (batches_.empty() || batches_.back().job != action.job || batches_.back().to != action.to ||
        batches_.back().worker != worker) {
      batches_.push_back({action.job, action.to, worker, packet_bytes_.size(), output_.size()});
    }
    output_.insert(output_.end(), action.packet.begin(), action.packet.end());
    packet_bytes_.push_back(static_cast<uint16_t>(action.packet.size()));
  }

  void Flush() {
    for (size_t i = 0; i < batches_.size(); ++i) {
      const Batch& batch = batches_[i];
      const bool last = i + 1 == batches_.size();
      const size_t end = last ? packet_bytes_.size() : batches_[i + 1].first_packet;
      const size_t bytes = (last ? output_.size() : batches_[i + 1].first_byte) - batch.first_byte;
      Send(batch, std::span(packet_bytes_).subspan(batch.first_packet, end - batch.first_packet), bytes);
    }
    batches_.clear();
    output_.clear();
    packet_bytes_.clear();
  }

  void Send(const Batch& batch, std::span<const uint16_t> packet_bytes, size_t bytes) {
    Route& route = routes_.at(batch.job);
    // Of its own, so that a link which is full holds up what this job sends and no other's.
    UdpSocket* socket = &queues_.socket(route.queue);
    std::span<const Address> destinations = route.workers;
    size_t copies = destinations.size();
    if (batch.to == SendTo::kParent) {
      socket = &route.uplink->socket;
      destinations = {};  // it is connected
      copies = 1;
    } else if (batch.to == SendTo::kWorker) {
      destinations = destinations.subspan(batch.worker, 1);
      copies = 1;
    } else if (route.group && socket->MulticastFrom(route.group->from)) {
      destinations = {&route.group->group, 1};
      copies = 1;
      stats_.results_multicast += packet_bytes.size();
    }
    const int wait_ms = queues_.is_shared() ? kSharedWaitMs : BatchSender::kWaitMs;
    socket->Send(output_.data() + batch.first_byte, packet_bytes, destinations, wait_ms);
    stats_.packets_sent += packet_bytes.size() * copies;
    stats_.bytes_sent += bytes * copies;
  }

  const Descriptor readable_;  // epoll: what there is to receive from
  const Descriptor stop_;
  mutable std::mutex mutex_;  // the thread holds it for one batch of packets
  JobQueues queues_;
  const uint16_t port_;
  FairTurns turns_;  // by queue
  SlotPool pool_;
  std::unordered_map<uint16_t, Route> routes_;  // by job
  UdpSwitchStats stats_;
  bool by_group_ = false;  // whether what is being received came to a parent's group
  std::vector<size_t> ready_queues_;
  std::vector<Batch> batches_;
  std::vector<uint8_t> output_;
  std::vector<uint16_t> packet_bytes_;
  std::mutex close_mutex_;
  std::thread thread_;
};

UdpSwitch::UdpSwitch(const std::string& host, uint16_t port, uint32_t slot_count)
    : impl_(std::make_unique<Impl>(host, port, slot_count)) {}
UdpSwitch::~UdpSwitch() = default;

uint16_t UdpSwitch::port() const { return impl_->port(); }
void UdpSwitch::AddJob(const JobSlots& job, const std::optional<MulticastGroup>& group, std::optional<Uplink> uplink) {
  impl_->AddJob(job, group, std::move(uplink));
}
void UdpSwitch::StopMulticast(uint16_t job) { impl_->StopMulticast(job); }
void UdpSwitch::Probe(const MulticastGroup& group, const wire::ProbeName& name, uint16_t lanes) {
  impl_->Probe(group, name, lanes);
}
void UdpSwitch::RemoveJob(uint16_t job) { impl_->RemoveJob(job); }
bool UdpSwitch::HearsParentsGroup(uint16_t job) const { return impl_->HearsParentsGroup(job); }
SlotVersion UdpSwitch::VersionOf(uint32_t slot, uint8_t version) const { return impl_->VersionOf(slot, version); }
UdpSwitchStats UdpSwitch::stats() const { return impl_->stats(); }
std::map<uint16_t, uint64_t> UdpSwitch::Overflows() const { return impl_->Overflows(); }
void UdpSwitch::Close() { impl_->Close(); }

}  // namespace passing
