#include "switch/udp_switch.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace passing {
namespace {

// Where several jobs share the switch, none keeps the others waiting for long: a turn takes 256 KB at most, and packets
// for a full link are dropped after a wait that the other jobs' windows survive (3 ms at 1 Gbit/s).
constexpr unsigned kSharedMessages = 4;
constexpr int kSharedWaitMs = 1;
// Packets that belong to no job come from strangers, or from hosts whose job has just ended. When there is more to do
// than can be done, they get an eighth of a job's share.
constexpr uint64_t kOtherWeight = 8;

uint64_t MonotonicNs() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

int Opened(int fd, const char* what) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), what);
  return fd;
}

}  // namespace

UdpSwitch::Descriptor::~Descriptor() { close(fd_); }

UdpSwitch::UdpSwitch(const std::string& host, uint16_t port, uint32_t slot_count)
    : epoll_(Opened(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      stop_(Opened(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
      queues_(host, port,
              [this](const UdpSocket& socket, size_t queue) {
                Watch(socket.fd(), {Source::kQueue, static_cast<uint32_t>(queue)});
              }),
      port_(queues_.socket(JobQueues::kOther).port()),
      pool_(slot_count) {
  Watch(stop_.get(), {Source::kStop});
  thread_ = std::thread([this] { Serve(); });
  pthread_setname_np(thread_.native_handle(), "passing-switch");
}

UdpSwitch::~UdpSwitch() { Close(); }

void UdpSwitch::AddJob(const JobSlots& job, std::optional<MulticastGroup> group, std::optional<Uplink> uplink,
                       std::vector<Address> own_addresses) {
  if (job.parent.has_value() != uplink.has_value()) {
    throw std::invalid_argument("a job has both a parent and a socket to it, or neither");
  }
  if (!own_addresses.empty() && own_addresses.size() != job.addresses.size()) {
    throw std::invalid_argument("each worker knows us by one address");
  }
  JobSlots native = job;
  std::lock_guard lock(mutex_);
  const UdpSocket& own = queues_.socket(JobQueues::kOther);
  for (Address& address : native.addresses) address = own.Native(address);
  for (Address& address : own_addresses) address = own.Native(address);
  if (group) group->group = own.Native(group->group);
  if (uplink) native.parent->address = uplink->socket.Peer();
  // The steps that may fail come first: a refused job leaves nothing behind, and an earlier job under its number stays.
  // epoll forgets a refused uplink when its sockets are closed.
  if (uplink) Watch(uplink->socket.fd(), {Source::kUplink, job.job});
  if (uplink && uplink->group) Watch(uplink->group->fd(), {Source::kUplinkGroup, job.job});
  pool_.AddJob(native);
  RemoveRoute(job.job);
  const size_t queue = queues_.Take(job.job, native.addresses);
  routes_.insert_or_assign(job.job, Route{.queue = queue,
                                          .workers = std::move(native.addresses),
                                          .own = std::move(own_addresses),
                                          .group = group,
                                          .uplink = std::move(uplink)});
}

void UdpSwitch::StopMulticast(uint16_t job) {
  std::lock_guard lock(mutex_);
  if (const auto found = routes_.find(job); found != routes_.end()) found->second.group.reset();
}

void UdpSwitch::RemoveJob(uint16_t job) {
  std::lock_guard lock(mutex_);
  pool_.RemoveJob(job);
  RemoveRoute(job);
}

void UdpSwitch::Probe(const MulticastGroup& group, const wire::ProbeName& name, uint16_t lanes) {
  const wire::ProbeBurst burst = wire::MakeProbeBurst(name, lanes);
  std::lock_guard lock(mutex_);
  UdpSocket& socket = queues_.socket(JobQueues::kOther);
  const Address to = socket.Native(group.group);
  if (!socket.MulticastFrom(group.from)) {
    throw std::system_error(EADDRNOTAVAIL, std::generic_category(), "can't send to a multicast group");
  }
  socket.Send(burst.bytes.data(), burst.packet_bytes, {&to, 1});
}

bool UdpSwitch::HearsParentsGroup(uint16_t job) const {
  std::lock_guard lock(mutex_);
  const auto found = routes_.find(job);
  return found == routes_.end() || !found->second.parents_group.lost();
}

SlotVersion UdpSwitch::VersionOf(uint32_t slot, uint8_t version) const {
  std::lock_guard lock(mutex_);
  return pool_.VersionOf(slot, version);
}

UdpSwitchStats UdpSwitch::stats() const {
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

std::map<uint16_t, uint64_t> UdpSwitch::Overflows() const {
  std::lock_guard lock(mutex_);
  return queues_.Overflows();
}

void UdpSwitch::Close() {
  std::lock_guard lock(close_mutex_);
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  while (write(stop_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  thread_.join();
}

void UdpSwitch::Watch(int fd, Source source) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = std::bit_cast<uint64_t>(source)}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
}

void UdpSwitch::RemoveRoute(uint16_t job) {
  const auto found = routes_.find(job);
  if (found == routes_.end()) return;
  if (found->second.uplink) stats_.socket += found->second.uplink->socket.stats();
  queues_.Return(job);
  routes_.erase(found);
}

// ---------------------------------------------------------------- what the thread does

void UdpSwitch::Serve() {
  std::array<epoll_event, JobQueues::kMaxQueues> events;
  while (true) {
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), -1);
    readable_.clear();
    for (int i = 0; i < count; ++i) readable_.push_back(std::bit_cast<Source>(uint64_t{events[i].data.u64}));
    const auto is_stop = [](const Source& source) { return source.kind == Source::kStop; };
    if (std::any_of(readable_.begin(), readable_.end(), is_stop)) return;
    if (!readable_.empty()) ServeNext();  // it is empty after EINTR
  }
}

void UdpSwitch::ServeNext() {
  std::lock_guard lock(mutex_);
  readable_queues_.clear();
  for (const Source& source : readable_) readable_queues_.push_back(QueueOf(source));
  const size_t queue = turns_.Next(readable_queues_);
  const auto chosen = std::find(readable_queues_.begin(), readable_queues_.end(), queue) - readable_queues_.begin();
  const Source source = readable_[chosen];
  UdpSocket* socket = SocketOf(source);
  if (socket == nullptr) return;
  const bool by_group = source.kind == Source::kUplinkGroup;
  const uint64_t began_ns = MonotonicNs();
  socket->Receive([this, by_group](auto datagram, const Address& from) { OnDatagram(datagram, from, by_group); },
                  queues_.is_shared() ? kSharedMessages : BatchReceiver::kBatch);
  Flush();
  const uint64_t took_ns = MonotonicNs() - began_ns;
  turns_.Charge(queue, queue == JobQueues::kOther ? kOtherWeight * took_ns : took_ns);
}

void UdpSwitch::OnDatagram(std::span<const uint8_t> datagram, const Address& from, bool by_group) {
  ++stats_.packets_received;
  stats_.bytes_received += datagram.size();
  const Action action = pool_.OnPacket(datagram, from);
  if (action.verdict == Verdict::kAnswered) CountWay(routes_.at(action.job), by_group);
  if (action.to != SendTo::kNobody) Queue(action);
}

void UdpSwitch::CountWay(Route& route, bool by_group) {
  if (!route.uplink || !route.uplink->group) return;
  if (by_group) {
    route.parents_group.OnGroupResults(1);
  } else {
    route.parents_group.OnOwnResults(1);
  }
}

size_t UdpSwitch::QueueOf(const Source& source) const {
  if (source.kind == Source::kQueue) return source.number;
  const auto found = routes_.find(static_cast<uint16_t>(source.number));
  return found == routes_.end() ? JobQueues::kOther : found->second.queue;
}

UdpSocket* UdpSwitch::SocketOf(const Source& source) {
  if (source.kind == Source::kQueue) return &queues_.socket(source.number);
  const auto found = routes_.find(static_cast<uint16_t>(source.number));
  if (found == routes_.end() || !found->second.uplink) return nullptr;
  Uplink& uplink = *found->second.uplink;
  if (source.kind == Source::kUplink) return &uplink.socket;
  return uplink.group ? &*uplink.group : nullptr;
}

void UdpSwitch::Queue(const Action& action) {
  const uint16_t worker = action.to == SendTo::kWorker ? action.worker : wire::kEveryWorker;
  if (batches_.empty() || batches_.back().job != action.job || batches_.back().to != action.to ||
      batches_.back().worker != worker) {
    batches_.push_back({action.job, action.to, worker, packet_bytes_.size(), output_.size()});
  }
  output_.insert(output_.end(), action.packet.begin(), action.packet.end());
  packet_bytes_.push_back(static_cast<uint16_t>(action.packet.size()));
}

void UdpSwitch::Flush() {
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

void UdpSwitch::Send(const Batch& batch, std::span<const uint16_t> packet_bytes, size_t bytes) {
  Route& route = routes_.at(batch.job);
  // The job's own socket: a full link holds up what this job sends, and no other job.
  UdpSocket* socket = &queues_.socket(route.queue);
  std::span<const Address> destinations = route.workers, from = route.own;
  size_t copies = destinations.size();
  if (batch.to == SendTo::kParent) {
    socket = &route.uplink->socket;
    destinations = from = {};  // it is connected
    copies = 1;
  } else if (batch.to == SendTo::kWorker) {
    destinations = destinations.subspan(batch.worker, 1);
    if (!from.empty()) from = from.subspan(batch.worker, 1);
    copies = 1;
  } else if (route.group && socket->MulticastFrom(route.group->from)) {
    destinations = {&route.group->group, 1};
    from = {};  // see MulticastFrom
    copies = 1;
    stats_.results_multicast += packet_bytes.size();
  }
  const int wait_ms = queues_.is_shared() ? kSharedWaitMs : BatchSender::kWaitMs;
  socket->Send(output_.data() + batch.first_byte, packet_bytes, destinations, wait_ms, from);
  stats_.packets_sent += packet_bytes.size() * copies;
  stats_.bytes_sent += bytes * copies;
}

}  // namespace passing
