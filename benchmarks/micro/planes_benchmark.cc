// Packets a second of 1, 2, 4 … planes, as many as there are cores for: a packet generator against slot pools alone,
// and against UDP switches over loopback. Each plane has a thread of its own, pinned to a core, and nothing else is
// shared.
//
//   planes_benchmark [SECONDS]   of each measurement; 2 unless said
//
// In the first table a thread makes packets and hands them to its pool, without sockets: what planes share would show
// as a ratio below their number and, also on busy cores, as more processor time by the packet. In the second one all
// threads use one pool behind a lock, as several threads of one plane would. In the third one a plane is a switch's
// thread on one core and a generator's thread on another one, so n planes need 2 n cores; where there are fewer, one
// plane shows what its switch spends by the packet: processor time, waits (voluntary switches, which are sleeps for
// packets), preemptions (involuntary ones) and calls of futex (waits for locks and their wake-ups; counted as root, by
// the kernel's tracepoints).
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "net/socket_address.h"
#include "net/udp_socket.h"
#include "switch/slot_pool.h"
#include "switch/udp_switch.h"
#include "thread_counts.h"
#include "wire/header.h"

namespace passing {
namespace {

constexpr uint16_t kWorkers = 2, kLanes = 360;
constexpr uint32_t kSlots = 256;
constexpr uint32_t kRun = 44;      // packets of a super-packet
constexpr uint32_t kInFlight = 4;  // runs

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double CpuSeconds() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

std::vector<int> Cores() {
  cpu_set_t allowed;
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  return cores;
}

void Pin(pthread_t thread, int core) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  pthread_setaffinity_np(thread, sizeof one, &one);
}

// One worker's contribution to each position of a run, side by side.
class Contributions {
 public:
  explicit Contributions(uint16_t worker, uint16_t job = 1)
      : header_{.job = job, .epoch = 1, .worker = worker, .element_count = kLanes} {
    bytes_.resize(kRun * header_.packet_bytes(), 1);
    sizes_.assign(kRun, static_cast<uint16_t>(header_.packet_bytes()));
  }
  void Number(uint64_t first) {
    for (uint32_t i = 0; i < kRun; ++i) {
      const uint64_t position = first + i;
      header_.slot = static_cast<uint16_t>((header_.job - 1) * kSlots + position % kSlots);
      header_.sequence = static_cast<uint32_t>(position);
      header_.version = static_cast<uint8_t>(position / kSlots % 2);
      wire::Encode(header_, &bytes_[i * header_.packet_bytes()]);
    }
  }
  std::span<const uint8_t> Packet(uint32_t i) const {
    return std::span(bytes_).subspan(i * header_.packet_bytes(), header_.packet_bytes());
  }
  void SendBy(UdpSocket& socket) const { socket.Send(bytes_.data(), sizes_); }

 private:
  wire::Header header_;
  std::vector<uint8_t> bytes_;
  std::vector<uint16_t> sizes_;
};

JobSlots MakeJob(std::vector<Address> addresses, uint16_t job = 1) {
  return {.job = job,
          .epoch = 1,
          .slot_first = (job - 1) * kSlots,
          .slot_count = kSlots,
          .addresses = std::move(addresses)};
}

// ---------------------------------------------------------------- slot pools alone

struct Rate {
  double packets_s = 0;  // of all threads together
  double cpu_ns = 0;     // processor time by the packet
};

// `pool_lock`: all threads use one pool, each for a job of its own.
Rate PoolRate(const std::vector<int>& cores, uint32_t threads, double seconds, std::mutex* pool_lock) {
  std::atomic<uint32_t> ready = 0;
  std::atomic<bool> go = false, stop = false;
  std::vector<uint64_t> packets(threads);
  std::vector<double> cpu_s(threads);
  std::vector<Address> addresses(kWorkers, ResolveAddress("127.0.0.1", 1));
  std::optional<SlotPool> shared;
  if (pool_lock != nullptr) shared.emplace(threads * kSlots);
  for (uint32_t job = 1; shared && job <= threads; ++job) {
    shared->AddJob(MakeJob(addresses, static_cast<uint16_t>(job)));
  }
  std::vector<std::thread> running;
  for (uint32_t thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] {
      Pin(pthread_self(), cores[thread]);
      std::optional<SlotPool> own;
      if (pool_lock == nullptr) own.emplace(kSlots).AddJob(MakeJob(addresses));
      SlotPool& pool = own ? *own : *shared;
      const auto job = static_cast<uint16_t>(own ? 1 : thread + 1);
      std::array<Contributions, kWorkers> workers{Contributions(0, job), Contributions(1, job)};
      uint64_t count = 0;
      ++ready;
      while (!go) {
      }
      const double cpu_before = CpuSeconds();
      for (uint64_t first = 0; !stop; first += kRun) {
        for (Contributions& worker : workers) worker.Number(first);
        for (uint32_t i = 0; i < kRun; ++i) {
          for (const Contributions& worker : workers) {
            std::unique_lock<std::mutex> lock;
            if (pool_lock != nullptr) lock = std::unique_lock(*pool_lock);
            pool.OnPacket(worker.Packet(i), addresses[0]);
          }
        }
        count += kRun * kWorkers;
      }
      packets[thread] = count;
      cpu_s[thread] = CpuSeconds() - cpu_before;
    });
  }
  while (ready < threads) std::this_thread::yield();
  const double began = Seconds();
  go = true;
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop = true;
  const double took = Seconds() - began;
  double all = 0, all_cpu_s = 0;
  for (uint32_t thread = 0; thread < threads; ++thread) {
    running[thread].join();
    all += static_cast<double>(packets[thread]);
    all_cpu_s += cpu_s[thread];
  }
  return {.packets_s = all / took, .cpu_ns = all_cpu_s / all * 1e9};
}

// ---------------------------------------------------------------- UDP switches

// The two workers of a job on a plane, which keep four runs in flight until they are told to stop.
class Generator {
 public:
  explicit Generator(UdpSwitch& plane) {
    std::vector<Address> addresses;
    for (int worker = 0; worker < kWorkers; ++worker) {
      sockets_.push_back(UdpSocket::ConnectedTo("127.0.0.1", plane.port()));
      addresses.push_back(ResolveAddress("127.0.0.1", sockets_.back().port()));
    }
    plane.AddJob(MakeJob(addresses));
  }
  // Returns how many contributions were answered.
  uint64_t Run(const std::atomic<bool>& stop) {
    std::array<Contributions, kWorkers> workers{Contributions(0), Contributions(1)};
    std::array<uint64_t, kWorkers> answered{};
    uint64_t sent = 0;
    double progress = Seconds();
    while (!stop) {
      const uint64_t least = *std::min_element(answered.begin(), answered.end());
      for (; sent < least + kInFlight * kRun; sent += kRun) {
        for (uint16_t worker = 0; worker < kWorkers; ++worker) {
          workers[worker].Number(sent);
          workers[worker].SendBy(sockets_[worker]);
        }
      }
      bool idle = true;
      for (uint16_t worker = 0; worker < kWorkers; ++worker) {
        const size_t count = sockets_[worker].Receive([](std::span<const uint8_t>, const Address&) {});
        answered[worker] += count;
        idle = idle && count == 0;
      }
      if (!idle) progress = Seconds();
      if (idle && Seconds() > progress + 1) {
        std::fprintf(stderr, "packets were lost: no result for a second\n");
        std::exit(1);
      }
    }
    return answered[0] + answered[1];
  }

 private:
  std::vector<UdpSocket> sockets_;
};

// Prints a line. `of_one`: the rate of one plane, once that is known.
double UdpRate(const std::vector<int>& cores, uint32_t planes, double seconds, double of_one) {
  std::vector<std::unique_ptr<UdpSwitch>> switches;
  std::vector<std::unique_ptr<Generator>> generators;
  for (uint32_t plane = 0; plane < planes; ++plane) {
    switches.push_back(std::make_unique<UdpSwitch>("127.0.0.1", 0, kSlots));
    generators.push_back(std::make_unique<Generator>(*switches.back()));
  }
  const std::vector<pid_t> threads = ThreadsNamed("passing-switch");
  std::vector<std::unique_ptr<FutexCalls>> futexes;
  std::vector<ThreadCounts> counts;
  for (uint32_t plane = 0; plane < planes; ++plane) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cores[2 * plane], &one);
    sched_setaffinity(threads[plane], sizeof one, &one);
    futexes.push_back(std::make_unique<FutexCalls>(threads[plane]));
    counts.push_back(CountsOf(threads[plane], *futexes.back()));
  }
  std::atomic<bool> stop = false;
  std::vector<uint64_t> packets(planes);
  std::vector<std::thread> running;
  const double began = Seconds();
  for (uint32_t plane = 0; plane < planes; ++plane) {
    running.emplace_back([&, plane] {
      Pin(pthread_self(), cores[2 * plane + 1]);
      packets[plane] = generators[plane]->Run(stop);
    });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop = true;
  const double took = Seconds() - began;
  ThreadCounts all;
  for (uint32_t plane = 0; plane < planes; ++plane) {
    running[plane].join();
    const ThreadCounts now = CountsOf(threads[plane], *futexes[plane]);
    all.cpu_s += now.cpu_s - counts[plane].cpu_s;
    all.waits += now.waits - counts[plane].waits;
    all.preemptions += now.preemptions - counts[plane].preemptions;
    all.futexes = now.futexes < 0 ? -1 : all.futexes + now.futexes - counts[plane].futexes;
  }
  double sum = 0;
  for (const uint64_t of_plane : packets) sum += static_cast<double>(of_plane);
  const auto by_1000 = [&](uint64_t count) { return static_cast<double>(count) / sum * 1000; };
  const double rate = sum / took;
  std::printf("%7u %12.0f %8.0f %8.2f %12.3f %16.3f %13s\n", planes, rate, all.cpu_s / sum * 1e9,
              of_one > 0 ? rate / of_one : 1, by_1000(all.waits), by_1000(all.preemptions),
              all.futexes < 0 ? "?" : std::to_string(by_1000(static_cast<uint64_t>(all.futexes))).c_str());
  return rate;
}

void ShowPools(const std::vector<int>& cores, double seconds, bool share) {
  double of_one = 0;
  for (uint32_t threads = 1; threads <= cores.size(); threads *= 2) {
    std::mutex lock;
    const Rate rate = PoolRate(cores, threads, seconds, share ? &lock : nullptr);
    if (threads == 1) of_one = rate.packets_s;
    std::printf("%7u %12.0f %8.0f %8.2f\n", threads, rate.packets_s, rate.cpu_ns, rate.packets_s / of_one);
  }
}

void Run(double seconds) {
  const std::vector<int> cores = Cores();
  std::printf("Slot pools alone, %zu cores\n%7s %12s %8s %8s\n", cores.size(), "planes", "packets/s", "ns CPU",
              "ratio");
  ShowPools(cores, seconds, /*share=*/false);
  std::printf("Threads that share one pool behind a lock\n%7s %12s %8s %8s\n", "threads", "packets/s", "ns CPU",
              "ratio");
  ShowPools(cores, seconds, /*share=*/true);
  std::printf("UDP switches\n%7s %12s %8s %8s %12s %16s %13s\n", "planes", "packets/s", "ns CPU", "ratio", "waits/1000",
              "preemptions/1000", "futexes/1000");
  double of_one = 0;
  for (uint32_t planes = 1; 2 * planes <= cores.size(); planes *= 2) {
    const double rate = UdpRate(cores, planes, seconds, of_one);
    if (planes == 1) of_one = rate;
  }
}

}  // namespace
}  // namespace passing

int main(int argc, char** argv) {
  passing::Run(argc > 1 ? std::atof(argv[1]) : 2);
  return 0;
}
