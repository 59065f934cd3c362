// Software costs of the path: H hosts and one software switch in this process, over loopback.
//
//   transport_benchmark                    the whole table, about 30 s
//   transport_benchmark HOSTS DTYPE BYTES  one line of it, repeated until stopped: for a profiler, as in
//                                          perf record -g -p $(pgrep transport_bench)
//   transport_benchmark HOSTS DTYPE BYTES plain int16 int8 int4 checked masked confidential gather scatter
//                                          the same, of these in turns: sums that travel in so many bits, that are
//                                          checked, whose lanes are masked, or both; gathers of so many bytes in all,
//                                          or scatters, by rows alone
//
// Each host has a thread that starts a sum and waits for it, as a program does, and the next one at once. Times are
// of one sum on one host; CPU is what the threads ran (the scheduler's count), per KB of the sum on one host: a host's
// is that of its caller and its transport, the switch's counts each rank's KB once. Sleeps are those of a host's two
// threads for a sum. On loopback a sender also does the receiver's work up to its socket. Loopback has no line rate:
// this measures software.
//
// Predicted before optimising, 1 KB: 45 us at H=2, 75 at H=4, 120 at H=8.
// Measured, medians of runs on two cores of a busy virtual machine, 1 KB: int32 46-94 us at H=2, 79-130 at H=4 (mostly
// 95-105), 144-205 at H=8; float32 92-126 at H=4. 64 MiB of float32 at H=4: 440-510 ns/KB a host, 214-235 the switch
// (nothing was predicted). In a profile about a third is sleeping and waking, a third the kernel's sends and receives,
// a seventh of a host's share fixed point.
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "benchmark_cluster.h"
#include "host/transport/transport.h"
#include "net/socket_address.h"
#include "switch/udp_switch.h"

namespace passing {
namespace {

using Clock = std::chrono::steady_clock;

// Counts the processor time and the sleeps of threads.
struct Usage {
  double cpu_ns = 0;
  double sleeps = 0;

  Usage& operator+=(const Usage& other) {
    cpu_ns += other.cpu_ns;
    sleeps += other.sleeps;
    return *this;
  }
  friend Usage operator-(const Usage& now, const Usage& before) {
    return {now.cpu_ns - before.cpu_ns, now.sleeps - before.sleeps};
  }
};

// Returns the usage of this process's threads of that name.
Usage UsageOf(const std::string& thread_name) {
  Usage total;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    double ran_ns = 0;
    if (name != thread_name || !(std::ifstream(task.path() / "schedstat") >> ran_ns)) continue;
    total.cpu_ns += ran_ns;
    std::ifstream status(task.path() / "status");
    const std::string field = "voluntary_ctxt_switches:";
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with(field)) total.sleeps += std::strtod(line.c_str() + field.size(), nullptr);
    }
  }
  return total;
}

// Returns the usage of this thread since it began.
Usage OwnUsage() {
  timespec ran{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ran);
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return {static_cast<double>(ran.tv_sec) * 1e9 + static_cast<double>(ran.tv_nsec),
          static_cast<double>(usage.ru_nvcsw)};
}

struct Case {
  uint32_t world_size;
  DType dtype;
  uint64_t bytes;
  int sums;
  std::string kind = "plain";
};

struct Line {
  double median_us, p10_us, p90_us, p99_us, host_ns_per_kb, switch_ns_per_kb, sleeps, resent_share;
};

// Runs one host: `sums` sums, one after the other, from `in` to `out`. Returns the times.
std::vector<double> SumInTurn(Transport& host, uint32_t rank, const Case& c, uint32_t first_execution, int sums,
                              const std::vector<uint32_t>& in, std::vector<uint32_t>& out) {
  const Moves moves = c.kind == "gather" ? Moves::kGather : c.kind == "scatter" ? Moves::kScatter : Moves::kAll;
  const auto shape = std::make_shared<SumSpec>(SumSpec{.site_name = "benchmark",
                                                       .dtype = moves == Moves::kGather ? DType::kInt32 : c.dtype,
                                                       .leaf_elements = {c.bytes / SizeOf(c.dtype)},
                                                       .wire_dtype = ParseWireDtype(c.kind).value_or(WireDtype::kFull),
                                                       .moves = moves});
  std::vector<bool> own_rows(moves == Moves::kAll ? 0 : c.world_size);
  if (!own_rows.empty()) own_rows[rank] = true;
  const std::vector<uint64_t> rows(own_rows.empty() ? 0 : 1, rank);
  struct Progress {
    std::mutex mutex;
    std::condition_variable changed;
    int done = 0;
  };
  const auto progress = std::make_shared<Progress>();  // may be notified a moment after the last wait for it
  std::vector<double> times_us;
  for (int i = 0; i < sums; ++i) {
    const auto start = Clock::now();
    host.Start({.key = {.site = 1, .execution = first_execution + static_cast<uint32_t>(i), .step = 0},
                .spec = shape,
                .inputs = {in.data()},
                .outputs = {out.data()},
                .done =
                    [progress](const Failure* failure) {
                      if (failure != nullptr) {
                        std::fprintf(stderr, "%s: %s\n", failure->kind.c_str(), failure->message.c_str());
                        std::exit(1);
                      }
                      {
                        std::lock_guard lock(progress->mutex);
                        ++progress->done;
                      }
                      progress->changed.notify_one();
                    },
                .own_rows = own_rows,
                .rows = rows,
                .caller_waits = true});
    std::unique_lock lock(progress->mutex);
    progress->changed.wait(lock, [&] { return progress->done > i; });
    times_us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  return times_us;
}

Line Measure(const Case& c) {
  Cluster cluster(c.world_size, {.checked = c.kind == "checked" || c.kind == "confidential",
                                 .masked = c.kind == "masked" || c.kind == "confidential"});
  // As float32 it is 1, so that nothing is denormal: a CPU may take several times as long for such elements.
  const std::vector<uint32_t> in(c.bytes / 4, std::bit_cast<uint32_t>(1.0F));
  std::vector<std::vector<uint32_t>> outs(c.world_size, in);
  std::vector<double> times_us;
  std::mutex mutex;
  Usage callers;
  const auto run = [&](uint32_t first_execution, int sums) {
    times_us.clear();
    callers = {};
    std::vector<std::thread> programs;
    for (uint32_t rank = 0; rank < c.world_size; ++rank) {
      programs.emplace_back([&, rank] {
        const auto mine = SumInTurn(cluster.host(rank), rank, c, first_execution, sums, in, outs[rank]);
        const Usage own = OwnUsage();
        std::lock_guard lock(mutex);
        callers += own;
        times_us.insert(times_us.end(), mine.begin(), mine.end());
      });
    }
    for (std::thread& program : programs) program.join();
  };
  run(0, 4);  // learns the order
  const Usage hosts_before = UsageOf("passing-host"), switch_before = UsageOf("passing-switch");
  run(4, c.sums);
  Usage hosts = UsageOf("passing-host") - hosts_before;
  hosts += callers;
  const Usage of_switch = UsageOf("passing-switch") - switch_before;
  const double kb = static_cast<double>(c.bytes) / 1024 * c.sums * c.world_size;
  const AllReduceStats stats = cluster.host(0).stats();
  std::sort(times_us.begin(), times_us.end());
  const auto quantile = [&](double q) { return times_us[static_cast<size_t>(q * (times_us.size() - 1))]; };
  return {.median_us = quantile(0.5),
          .p10_us = quantile(0.1),
          .p90_us = quantile(0.9),
          .p99_us = quantile(0.99),
          .host_ns_per_kb = hosts.cpu_ns / kb,
          .switch_ns_per_kb = of_switch.cpu_ns / kb,
          .sleeps = hosts.sleeps / c.sums / c.world_size,
          .resent_share = static_cast<double>(stats.packets_resent) / static_cast<double>(stats.packets_sent)};
}

void Print(const Case& c) {
  const Line line = Measure(c);
  std::printf("%5u  %-7s  %-12s  %8llu  %10.1f  %10.1f  %10.1f  %10.1f  %7.2f  %7.0f  %7.0f  %6.2f  %6.3f %%\n",
              c.world_size, c.dtype == DType::kInt32 ? "int32" : "float32", c.kind.c_str(),
              static_cast<unsigned long long>(c.bytes), line.p10_us, line.median_us, line.p90_us, line.p99_us,
              static_cast<double>(c.bytes) / line.median_us / 1e3, line.host_ns_per_kb, line.switch_ns_per_kb,
              line.sleeps, 100 * line.resent_share);
  std::fflush(stdout);
}

void Main(int argc, char** argv) {
  std::printf(
      "hosts  dtype    kind             bytes      p10 us   median us      p90 us      p99 us     GB/s  host ns/KB  "
      "switch  sleeps   "
      "resent\n");
  const auto sums = [](uint64_t bytes) { return bytes <= 1 << 16 ? 4000 : 6; };
  if (argc >= 4) {
    const uint64_t bytes = std::strtoull(argv[3], nullptr, 10);
    Case one{.world_size = static_cast<uint32_t>(std::atoi(argv[1])),
             .dtype = std::strcmp(argv[2], "int32") == 0 ? DType::kInt32 : DType::kFloat32,
             .bytes = bytes,
             .sums = sums(bytes)};
    for (int turn = 0;; ++turn) {
      if (argc > 4) one.kind = argv[4 + turn % (argc - 4)];
      Print(one);
    }
  }
  for (const uint32_t world_size : {2u, 4u, 8u}) {
    for (const uint64_t bytes : {uint64_t{1} << 10, uint64_t{1} << 16, uint64_t{1} << 26}) {
      for (const DType dtype : {DType::kInt32, DType::kFloat32}) {
        Print({.world_size = world_size, .dtype = dtype, .bytes = bytes, .sums = sums(bytes)});
      }
    }
  }
}

}  // namespace
}  // namespace passing

int main(int argc, char** argv) { passing::Main(argc, argv); }
