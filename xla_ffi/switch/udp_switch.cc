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
#include <cstring>
#include <random>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "net/socket_address.h"
#include "wire/sip_hash.h"

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

uint64_t RandomNumber() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

int Opened(int fd, const char* what) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), what);
  return fd;
}

}  // namespace

UdpSwitch::Descriptor::~Descriptor() { close(fd_); }

UdpSwitch::UdpSwitch(const std::string& host, uint16_t port, uint32_t slot_count)
    : path_secret_{RandomNumber(), RandomNumber()},
      epoll_(Opened(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      stop_(Opened(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
      queues_(host, port,
              [this](const UdpSocket& socket, size_t queue) {
                Watch(socket.fd(), {Source::kQueue, static_cast<uint32_t>(queue)});
              }),
      port_(queues_.socket(JobQueues::kOther).port()),
      core_(slot_count, [this](const Outgoing& out) { Send(out); }) {
  queues_.socket(JobQueues::kOther).NoteOwnAddress();  // probes of paths come there
  Watch(stop_.get(), {Source::kStop});
  thread_ = std::thread([this] { Serve(); });
  pthread_setname_np(thread_.native_handle(), "passing-switch");
}

UdpSwitch::~UdpSwitch() { Close(); }

void UdpSwitch::AddJob(const JobSlots& job, std::optional<MulticastGroup> group, std::optional<Uplink> uplink,
                       std::vector<Address> own_addresses, bool ports_apart) {
  if (job.parent.has_value() != uplink.has_value()) {
    throw std::invalid_argument("a job has both a parent and a socket to it, or neither");
  }
  JobSlots native = job;
  std::lock_guard lock(mutex_);
  core_.SetTime(MonotonicNs() / 1000);
  const UdpSocket& own = queues_.socket(JobQueues::kOther);
  for (Address& address : native.addresses) address = own.Native(address);
  for (Address& address : own_addresses) address = own.Native(address);
  if (group) group->group = own.Native(group->group);
  if (uplink) native.parent->address = uplink->socket.Peer();
  // The steps that may fail come first: a refused job leaves nothing behind, and an earlier job under its number stays.
  // epoll forgets a refused uplink when its sockets are closed.
  if (uplink) Watch(uplink->socket.fd(), {Source::kUplink, job.job});
  if (uplink && uplink->group) Watch(uplink->group->fd(), {Source::kUplinkGroup, job.job});
  core_.AddJob(native, {.group = group,
                        .own = std::move(own_addresses),
                        .hears_parents_group = uplink && uplink->group.has_value(),
                        .ports_apart = ports_apart});
  CloseSockets(job.job);
  const size_t queue = queues_.Take(job.job, native.addresses);
  sockets_.insert_or_assign(job.job, Sockets{.queue = queue, .uplink = std::move(uplink)});
}

void UdpSwitch::StopMulticast(uint16_t job) {
  std::lock_guard lock(mutex_);
  core_.StopMulticast(job);
}

void UdpSwitch::RemoveJob(uint16_t job) {
  std::lock_guard lock(mutex_);
  core_.RemoveJob(job);
  CloseSockets(job);
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

uint32_t UdpSwitch::PathNonce(const Address& host) const {
  const Address address = queues_.socket(JobQueues::kOther).Native(host);
  std::array<uint64_t, 2> words{};
  if (Family(address) == AF_INET) {
    std::memcpy(words.data(), &address.bytes[offsetof(sockaddr_in, sin_addr)], sizeof(in_addr));
  } else {
    std::memcpy(words.data(), &address.bytes[offsetof(sockaddr_in6, sin6_addr)], sizeof(in6_addr));
  }
  return static_cast<uint32_t>(wire::SipHash(path_secret_, words));
}

bool UdpSwitch::HearsParentsGroup(uint16_t job) const {
  std::lock_guard lock(mutex_);
  return core_.HearsParentsGroup(job);
}

SlotVersion UdpSwitch::VersionOf(uint32_t slot, uint8_t version) const {
  std::lock_guard lock(mutex_);
  return core_.VersionOf(slot, version);
}

std::optional<JobCounts> UdpSwitch::CountsOf(uint16_t job) {
  std::lock_guard lock(mutex_);
  core_.SetTime(MonotonicNs() / 1000);
  return core_.CountsOf(job);
}

UdpSwitchStats UdpSwitch::stats() const {
  std::lock_guard lock(mutex_);
  UdpSwitchStats stats = stats_;
  for (size_t queue = 0; queue < queues_.size(); ++queue) {
    stats.socket += queues_.socket(queue).stats();
    stats.packets_overflowed += queues_.Drops(queue);
  }
  for (const auto& [job, sockets] : sockets_) {
    if (sockets.uplink) stats.socket += sockets.uplink->socket.stats();
  }
  for (int i = 0; i < kVerdictCount; ++i) stats.verdicts[i] = core_.Count(static_cast<Verdict>(i));
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

void UdpSwitch::CloseSockets(uint16_t job) {
  const auto found = sockets_.find(job);
  if (found == sockets_.end()) return;
  if (found->second.uplink) stats_.socket += found->second.uplink->socket.stats();
  queues_.Return(job);
  sockets_.erase(found);
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
  core_.SetTime(began_ns / 1000);
  const auto on_datagram = [&](std::span<const uint8_t> datagram, const Address& from) {
    ++stats_.packets_received;
    stats_.bytes_received += datagram.size();
    if (const auto nonce = wire::NonceOfPathProbe(datagram); nonce && *nonce == PathNonce(from)) {
      ++stats_.paths_probed;
      return socket->SendUncut(datagram, &from, socket->came_to());  // the host takes packets from no other address
    }
    core_.OnPacket(datagram, from, by_group);
  };
  socket->Receive(on_datagram, queues_.is_shared() ? kSharedMessages : BatchReceiver::kBatch);
  core_.Flush();
  const uint64_t took_ns = MonotonicNs() - began_ns;
  turns_.Charge(queue, queue == JobQueues::kOther ? kOtherWeight * took_ns : took_ns);
}

size_t UdpSwitch::QueueOf(const Source& source) const {
  if (source.kind == Source::kQueue) return source.number;
  const auto found = sockets_.find(static_cast<uint16_t>(source.number));
  return found == sockets_.end() ? JobQueues::kOther : found->second.queue;
}

UdpSocket* UdpSwitch::SocketOf(const Source& source) {
  if (source.kind == Source::kQueue) return &queues_.socket(source.number);
  const auto found = sockets_.find(static_cast<uint16_t>(source.number));
  if (found == sockets_.end() || !found->second.uplink) return nullptr;
  Uplink& uplink = *found->second.uplink;
  if (source.kind == Source::kUplink) return &uplink.socket;
  return uplink.group ? &*uplink.group : nullptr;
}

void UdpSwitch::Send(const Outgoing& out) {
  Sockets& own = sockets_.at(out.job);
  // Its own socket: a full link holds up what this job sends, and no other job. The uplink's is connected.
  UdpSocket& socket = out.workers.empty() ? own.uplink->socket : queues_.socket(own.queue);
  std::span<const Address> to = out.workers, from = out.from;
  if (out.group != nullptr && socket.MulticastFrom(out.group->from)) {
    to = {&out.group->group, 1};
    from = {};  // see MulticastFrom
    stats_.results_multicast += out.packet_bytes.size();
  }
  const int wait_ms = queues_.is_shared() ? kSharedWaitMs : BatchSender::kWaitMs;
  socket.Send(out.bytes.data(), out.packet_bytes, to, wait_ms, from);
  const size_t copies = std::max<size_t>(to.size(), 1);
  stats_.packets_sent += out.packet_bytes.size() * copies;
  stats_.bytes_sent += out.bytes.size() * copies;
}

}  // namespace passing
