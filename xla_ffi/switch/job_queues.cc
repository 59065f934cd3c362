#include "switch/job_queues.h"

#include <linux/filter.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <system_error>
#include <utility>

#include "net/socket_address.h"

namespace passing {
namespace {

constexpr uint32_t kJobOffset = 4;      // in a packet's header (wire/header.h)
constexpr uint32_t kSourceOffset = 12;  // in the header of IPv4

// The kernel takes no longer program, and its jumps lead over at most 255 instructions: 64 workers fit.
constexpr size_t kMaxInstructions = BPF_MAXINSNS;

// IPv4 addresses of all, as numbers, each once; none if one of them is of IPv6.
std::vector<uint32_t> SourcesOf(const std::vector<Address>& workers) {
  std::vector<uint32_t> sources;
  for (const Address& worker : workers) {
    uint32_t source;
    if (Family(worker) == AF_INET) {
      sockaddr_in address;
      std::memcpy(&address, worker.bytes.data(), sizeof address);
      source = ntohl(address.sin_addr.s_addr);
    } else {
      sockaddr_in6 address;
      std::memcpy(&address, worker.bytes.data(), sizeof address);
      if (!IN6_IS_ADDR_V4MAPPED(&address.sin6_addr)) return {};
      std::memcpy(&source, &address.sin6_addr.s6_addr[12], sizeof source);
      source = ntohl(source);
    }
    if (std::find(sources.begin(), sources.end(), source) == sources.end()) sources.push_back(source);
  }
  return sources;
}

}  // namespace

JobQueues::JobQueues(const std::string& host, uint16_t port, OnOpened on_opened) : on_opened_(std::move(on_opened)) {
  sockets_.push_back(UdpSocket::BoundTo(host, port));
  on_opened_(sockets_[kOther], kOther);
}

// nullopt if there can't be one.
std::optional<size_t> JobQueues::OpenAnother() {
  if (sockets_.size() > kMaxQueues) return std::nullopt;
  try {
    UdpSocket another = sockets_[kOther].AtSameAddress();
    on_opened_(another, sockets_.size());
    sockets_.push_back(std::move(another));
  } catch (const std::system_error&) {  // out of descriptors, say: jobs share what is here
    return std::nullopt;
  }
  return sockets_.size() - 1;
}

size_t JobQueues::Take(uint16_t job, const std::vector<Address>& workers) {
  Return(job);
  std::vector<size_t> jobs_in(sockets_.size());
  for (const auto& [other, held] : jobs_) ++jobs_in[held.queue];
  jobs_in.erase(jobs_in.begin());  // kOther
  const auto least = std::min_element(jobs_in.begin(), jobs_in.end());
  const bool unused = least != jobs_in.end() && *least == 0;
  size_t queue = least == jobs_in.end() ? kOther : 1 + static_cast<size_t>(least - jobs_in.begin());
  if (!unused) queue = OpenAnother().value_or(queue);
  jobs_[job] = {.queue = queue, .drops_before = Drops(queue), .sources = SourcesOf(workers)};
  Steer();
  return queue;
}

void JobQueues::Return(uint16_t job) {
  if (jobs_.erase(job) != 0) Steer();
}

// Tells the kernel which job's packets go to which queue. If it refuses, the last program stays; packets are right in
// any queue.
void JobQueues::Steer() {
  if (sockets_.size() == 1) return;
  std::vector<sock_filter> program = {BPF_STMT(BPF_LD | BPF_H | BPF_ABS, kJobOffset)};
  for (const auto& [job, held] : jobs_) {
    const auto queue = static_cast<uint32_t>(held.queue);
    const size_t sources = held.sources.size();
    if (program.size() + sources + 5 > kMaxInstructions) break;  // the last ones share the first queue
    if (sources == 0) {
      program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, job, 0, 1));
    } else {
      program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, job, 0, static_cast<uint8_t>(sources + 3)));
      program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(SKF_NET_OFF) + kSourceOffset));
      for (size_t i = 0; i < sources; ++i) {
        program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, held.sources[i], static_cast<uint8_t>(sources - i), 0));
      }
      program.push_back(BPF_STMT(BPF_RET | BPF_K, kOther));
    }
    program.push_back(BPF_STMT(BPF_RET | BPF_K, queue));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, kOther));
  const sock_fprog steering{.len = static_cast<unsigned short>(program.size()), .filter = program.data()};
  setsockopt(sockets_[kOther].fd(), SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &steering, sizeof steering);
}

uint32_t JobQueues::Drops(size_t queue) const {
  std::array<uint32_t, SK_MEMINFO_VARS> values{};
  socklen_t size = sizeof values;
  if (getsockopt(sockets_[queue].fd(), SOL_SOCKET, SO_MEMINFO, values.data(), &size) != 0) return 0;
  return values[SK_MEMINFO_DROPS];
}

std::map<uint16_t, uint64_t> JobQueues::Overflows() const {
  std::map<uint16_t, uint64_t> overflows = {{0, Drops(kOther)}};
  for (const auto& [job, held] : jobs_) {
    if (held.queue != kOther) overflows[job] = Drops(held.queue) - held.drops_before;
  }
  return overflows;
}

}  // namespace passing
