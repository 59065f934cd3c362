// This benchmark tells the cost of the flight recorder: two hosts and a switch in this process sum 1 KB over loopback,
// with the recorder and without, in turns, as machines slow down and speed up. Built with -DPASSING_BUILD_TESTS=ON.
//
//   flight_recorder_benchmark [ROUNDS]    300 by default, some 0.1 s each
//
// A host's thread starts a sum, waits for it, and starts the next. The recorder is called where the rendezvous calls
// it: before the sum starts, and where it is done.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "benchmark_cluster.h"
#include "ffi/flight_recorder.h"
#include "host/transport/transport.h"

namespace passing {
namespace {

constexpr uint32_t kHosts = 2, kSumsOfRound = 500;
constexpr uint64_t kElements = 256;

using Clock = std::chrono::steady_clock;

double NsSince(Clock::time_point start, double count) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count() / count;
}

// Two hosts sum, with the recorder or without.
class Recorded {
 public:
  // Returns the time of a sum. `recorder` may be null.
  double SumNs(FlightRecorder* recorder) {
    const uint32_t first = executions_;
    executions_ += kSumsOfRound;
    const auto start = Clock::now();
    std::vector<std::thread> programs;
    for (uint32_t rank = 0; rank < kHosts; ++rank) {
      programs.emplace_back([this, rank, first, recorder] { SumInTurn(cluster_.host(rank), first, recorder); });
    }
    for (std::thread& program : programs) program.join();
    return NsSince(start, kSumsOfRound);
  }

 private:
  static void SumInTurn(Transport& host, uint32_t first, FlightRecorder* recorder) {
    const auto spec = std::make_shared<SumSpec>(
        SumSpec{.site_name = "train.py:41:9 in step psum of float32[256] over d", .leaf_elements = {kElements}});
    struct Progress {
      std::mutex mutex;
      std::condition_variable changed;
      uint32_t done = 0;
    };
    const auto progress = std::make_shared<Progress>();  // may be notified a moment after the last wait for it
    std::vector<float> values(kElements, 1.0f);
    for (uint32_t i = 0; i < kSumsOfRound; ++i) {
      const SumKey key{.site = 1, .execution = first + i};
      const uint64_t number = recorder == nullptr ? 0 : recorder->Start(key, *spec, kHosts);
      const auto done = [progress, recorder, number](const Failure* failure) {
        if (recorder != nullptr) recorder->End(number, failure);
        if (failure != nullptr) {
          std::fprintf(stderr, "%s: %s\n", failure->kind.c_str(), failure->message.c_str());
          std::exit(1);
        }
        {
          const std::lock_guard lock(progress->mutex);
          ++progress->done;
        }
        progress->changed.notify_one();
      };
      host.Start({.key = key, .spec = spec, .inputs = {values.data()}, .outputs = {values.data()}, .done = done});
      std::unique_lock lock(progress->mutex);
      progress->changed.wait(lock, [&] { return progress->done > i; });
      values.assign(kElements, 1.0f);
    }
  }

  Cluster cluster_{kHosts};
  uint32_t executions_ = 0;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The recorder alone, of `threads` that record without a pause.
double RecordNs(FlightRecorder& recorder, int threads) {
  constexpr uint32_t kSums = 1'000'000;
  const SumSpec spec{.site_name = "train.py:41:9 in step psum of float32[256] over d", .leaf_elements = {kElements}};
  const auto start = Clock::now();
  std::vector<std::thread> recording;
  for (int thread = 0; thread < threads; ++thread) {
    recording.emplace_back([&] {
      for (uint32_t i = 0; i < kSums; ++i) recorder.End(recorder.Start({.execution = i}, spec, kHosts), nullptr);
    });
  }
  for (std::thread& each : recording) each.join();
  return NsSince(start, kSums);
}

void Main(int rounds) {
  auto& recorder = FlightRecorder::OfProcess();
  std::printf("memory: %zu bytes\n", sizeof(RecordedSum) * FlightRecorder::kSums);
  for (const int threads : {1, 2})
    std::printf("start and end, %d threads: %.0f ns\n", threads, RecordNs(recorder, threads));
  const auto start = Clock::now();
  const size_t sums = recorder.Sums().size();
  std::printf("a look at %zu sums: %.0f us\n", sums, NsSince(start, 1e3));
  Recorded hosts;
  hosts.SumNs(nullptr);  // learns the order
  std::vector<double> with, without, differences;
  for (int round = 0; round < rounds; ++round) {
    const bool first = round % 2 == 0;  // each goes first as often
    const double one = hosts.SumNs(first ? &recorder : nullptr);
    const double other = hosts.SumNs(first ? nullptr : &recorder);
    with.push_back(first ? one : other);
    without.push_back(first ? other : one);
    differences.push_back(100 * (with.back() / without.back() - 1));
  }
  std::printf("a sum of 1 KB, median of %d rounds: %.2f us with, %.2f us without; median of the differences %+.2f %%\n",
              rounds, Median(with) / 1e3, Median(without) / 1e3, Median(differences));
}

}  // namespace
}  // namespace passing

int main(int argc, char** argv) { passing::Main(argc > 1 ? std::atoi(argv[1]) : 300); }
