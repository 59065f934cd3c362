#include "switch/udp_switch.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <vector>

namespace passing {

class UdpSwitch::Impl {
 public:
  Impl(const std::string& host, uint16_t port, uint32_t slot_count)
      : socket_(UdpSocket::BoundTo(host, port)), pool_(slot_count), stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (stop_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
    thread_ = std::thread([this] { Serve(); });
    pthread_setname_np(thread_.native_handle(), "passing-switch");
  }

  ~Impl() {
    Close();
    close(stop_);
  }

  uint16_t port() const { return socket_.port(); }

  void AddJob(const JobSlots& job, std::optional<MulticastGroup> group) {
    JobSlots native = job;
    for (Address& address : native.addresses) address = socket_.Native(address);
    if (group) group->group = socket_.Native(group->group);
    std::lock_guard lock(mutex_);
    pool_.AddJob(native);
    routes_[job.job] = {.workers = std::move(native.addresses), .group = group};
  }

  void StopMulticast(uint16_t job) {
    std::lock_guard lock(mutex_);
    if (const auto found = routes_.find(job); found != routes_.end()) found->second.group.reset();
  }

  void RemoveJob(uint16_t job) {
    std::lock_guard lock(mutex_);
    pool_.RemoveJob(job);
    routes_.erase(job);
  }

  void Probe(const MulticastGroup& group, const wire::ProbeName& name, uint16_t lanes) {
    const wire::ProbeBurst burst = wire::MakeProbeBurst(name, lanes);
    const Address to = socket_.Native(group.group);
    std::lock_guard lock(mutex_);
    if (!socket_.MulticastFrom(group.from)) {
      throw std::system_error(EADDRNOTAVAIL, std::generic_category(), "can't send to a multicast group");
    }
    socket_.Send(burst.bytes.data(), burst.packet_bytes, {&to, 1});
  }

  SlotState State(uint32_t slot, uint8_t version) const {
    std::lock_guard lock(mutex_);
    return pool_.State(slot, version);
  }

  UdpSwitchStats stats() const {
    std::lock_guard lock(mutex_);
    UdpSwitchStats stats = stats_;
    stats.socket = socket_.stats();
    for (int i = 0; i < kVerdictCount; ++i) stats.verdicts[i] = pool_.Count(static_cast<Verdict>(i));
    return stats;
  }

  void Close() {
    std::lock_guard lock(close_mutex_);
    if (!thread_.joinable()) return;
    const uint64_t one = 1;
    while (write(stop_, &one, sizeof one) < 0 && errno == EINTR) {
    }
    thread_.join();
  }

 private:
  // Where a job's results go.
  struct Route {
    std::vector<Address> workers;
    std::optional<MulticastGroup> group;
  };

  // Results that go to the same workers of the same job, side by side in output_.
  struct Batch {
    uint16_t job;
    uint16_t worker;  // or wire::kEveryWorker
    size_t first_result;
    size_t first_byte;
  };

  void Serve() {
    pollfd watched[2] = {{.fd = socket_.fd(), .events = POLLIN, .revents = 0},
                         {.fd = stop_, .events = POLLIN, .revents = 0}};
    const UdpSocket::OnDatagram on_datagram = [this](std::span<const uint8_t> datagram, const Address& source) {
      ++stats_.packets_received;
      stats_.bytes_received += datagram.size();
      const Action action = pool_.OnPacket(datagram, source);
      if (action.result.empty()) return;
      Queue(action, action.verdict == Verdict::kComplete ? wire::kEveryWorker : action.worker);
    };
    while (true) {
      if (poll(watched, 2, -1) < 0) continue;  // EINTR; nothing else can happen to two open descriptors
      if (watched[1].revents != 0) return;
      std::lock_guard lock(mutex_);
      socket_.Receive(on_datagram);
      Flush();
    }
  }

  void Queue(const Action& action, uint16_t worker) {
    if (batches_.empty() || batches_.back().job != action.job || batches_.back().worker != worker) {
      batches_.push_back({action.job, worker, result_bytes_.size(), output_.size()});
    }
    output_.insert(output_.end(), action.result.begin(), action.result.end());
    result_bytes_.push_back(static_cast<uint16_t>(action.result.size()));
  }

  void Flush() {
    for (size_t i = 0; i < batches_.size(); ++i) {
      const Batch& batch = batches_[i];
      const bool last = i + 1 == batches_.size();
      const size_t results = (last ? result_bytes_.size() : batches_[i + 1].first_result) - batch.first_result;
      const size_t bytes = (last ? output_.size() : batches_[i + 1].first_byte) - batch.first_byte;
      const Route& route = routes_.at(batch.job);
      std::span<const Address> destinations = route.workers;
      if (batch.worker != wire::kEveryWorker) {
        destinations = destinations.subspan(batch.worker, 1);
      } else if (route.group && socket_.MulticastFrom(route.group->from)) {
        destinations = {&route.group->group, 1};
        stats_.results_multicast += results;
      }
      socket_.Send(output_.data() + batch.first_byte, std::span(result_bytes_).subspan(batch.first_result, results),
                   destinations);
      stats_.packets_sent += results * destinations.size();
      stats_.bytes_sent += bytes * destinations.size();
    }
    batches_.clear();
    output_.clear();
    result_bytes_.clear();
  }

  mutable std::mutex mutex_;  // the thread holds it for one batch of packets
  UdpSocket socket_;
  SlotPool pool_;
  std::unordered_map<uint16_t, Route> routes_;  // by job
  UdpSwitchStats stats_;
  std::vector<Batch> batches_;
  std::vector<uint8_t> output_;
  std::vector<uint16_t> result_bytes_;
  int stop_;
  std::mutex close_mutex_;
  std::thread thread_;
};

UdpSwitch::UdpSwitch(const std::string& host, uint16_t port, uint32_t slot_count)
    : impl_(std::make_unique<Impl>(host, port, slot_count)) {}
UdpSwitch::~UdpSwitch() = default;

uint16_t UdpSwitch::port() const { return impl_->port(); }
void UdpSwitch::AddJob(const JobSlots& job, const std::optional<MulticastGroup>& group) { impl_->AddJob(job, group); }
void UdpSwitch::StopMulticast(uint16_t job) { impl_->StopMulticast(job); }
void UdpSwitch::Probe(const MulticastGroup& group, const wire::ProbeName& name, uint16_t lanes) {
  impl_->Probe(group, name, lanes);
}
void UdpSwitch::RemoveJob(uint16_t job) { impl_->RemoveJob(job); }
SlotState UdpSwitch::State(uint32_t slot, uint8_t version) const { return impl_->State(slot, version); }
UdpSwitchStats UdpSwitch::stats() const { return impl_->stats(); }
void UdpSwitch::Close() { impl_->Close(); }

}  // namespace passing
