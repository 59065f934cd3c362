// Hosts whose devices share one communicator: transports over loopback, and a server that knows them all.
#ifndef TESTS_XLA_FFI_MPI_HOSTS_H_
#define TESTS_XLA_FFI_MPI_HOSTS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "../tests/xla_ffi/host/support/loopback_cluster.h"
#include "ffi/local_collective.h"
#include "mpi/communicator.h"
#include "mpi/failures.h"
#include "mpi/server.h"

namespace passing::mpi {

// Brings what is sent to where it is received, in order.
class TestServer : public Server {
 public:
  World Begin() override { return {.rank = 0, .size = 1}; }
  Group Split(int32_t, int32_t) override { throw Failed("JoinError", "no group"); }
  void Send(int64_t, int32_t own_index, int32_t to_index, int32_t tag, std::shared_ptr<Message> sent) override {
    if (refusal) throw Failed(*refusal);
    sent_bytes += sent->bytes().size();
    Match(own_index, to_index, tag, std::move(sent), true);
  }
  void Receive(int64_t, int32_t own_index, int32_t from_index, int32_t tag,
               std::shared_ptr<Message> received) override {
    Match(from_index, own_index, tag, std::move(received), false);
  }
  uint64_t MovedBytes() override { return std::min<uint64_t>(++looks, moving_looks); }
  std::optional<Failure> Stalled(int64_t, int32_t, int64_t number, const std::string& name, double) override {
    const std::lock_guard lock(mutex_);
    stalls.emplace_back(number, name);
    if (stall_throws) throw std::runtime_error("no such server");
    for (auto& [_, cell] : cells_) {
      for (auto* messages : {&cell.sent, &cell.received}) {
        for (auto& message : *messages) {
          if (stall_failure) message->Done(stall_failure);
        }
      }
    }
    return stall_failure;
  }
  void End() override {}

  std::vector<std::pair<int64_t, std::string>> stalls;
  std::optional<Failure> stall_failure;  // ends all messages, too
  std::optional<Failure> refusal;        // of what is to be sent
  std::atomic<size_t> sent_bytes = 0;
  std::atomic<uint64_t> looks = 0;  // of all that wait
  uint64_t moving_looks = 0;        // so many of them find that messages have moved
  bool stall_throws = false;

 private:
  struct Cell {
    std::deque<std::shared_ptr<Message>> sent, received;
  };
  void Match(int32_t from, int32_t to, int32_t tag, std::shared_ptr<Message> message, bool is_sent) {
    const std::lock_guard lock(mutex_);
    Cell& cell = cells_[{from, to, tag}];
    (is_sent ? cell.sent : cell.received).push_back(std::move(message));
    while (!cell.sent.empty() && !cell.received.empty()) {
      std::ranges::copy(cell.sent.front()->bytes(), cell.received.front()->bytes().begin());
      cell.received.front()->Done(std::nullopt);
      cell.sent.front()->Done(std::nullopt);
      cell.received.pop_front();
      cell.sent.pop_front();
    }
  }

  std::mutex mutex_;
  std::map<std::tuple<int32_t, int32_t, int32_t>, Cell> cells_;
};

// `hosts`: of each device. Each host may have another number of devices, in any order.
class Hosts {
 public:
  explicit Hosts(std::vector<int32_t> hosts, double deadline_s = 20) : hosts_(std::move(hosts)) {
    const int32_t host_count = *std::max_element(hosts_.begin(), hosts_.end()) + 1;
    if (host_count > 1) cluster_ = std::make_unique<LoopbackCluster>(host_count, deadline_s, deadline_s);
    for (int32_t host = 0; host < host_count; ++host) {
      Group group{.id = 77, .name = "test's devices", .hosts = hosts_, .collective = {}, .deadline_s = deadline_s};
      if (cluster_) {
        group.collective = std::shared_ptr<Collective>(std::shared_ptr<void>(), &cluster_->host(host));
      } else {
        group.collective = std::make_shared<LocalCollective>();
      }
      communicators_.push_back(std::make_shared<Communicator>(server, group, host));
    }
    for (size_t device = 0; device < hosts_.size(); ++device) {
      devices.emplace_back(communicators_[hosts_[device]], static_cast<int32_t>(device));
    }
  }

  // Each device does its work in a thread of its own; returns how each one failed, if it did.
  std::vector<std::optional<Failure>> Run(const std::function<void(Device&)>& work) {
    std::vector<std::optional<Failure>> failures(devices.size());
    std::vector<std::thread> threads;
    for (size_t device = 0; device < devices.size(); ++device) {
      threads.emplace_back([&, device] {
        try {
          work(devices[device]);
        } catch (const Failed& failed) {
          failures[device] = failed.failure();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return failures;
  }

  size_t size() const { return devices.size(); }
  void Fail(int32_t host, const Failure& failure) { cluster_->host(host).Fail(failure); }
  // Why a host of several can't sum any more.
  std::optional<Failure> failure(int32_t host) const { return cluster_->host(host).failure(); }
  // Counts the sums that rank 0 had to tell the others, as they didn't expect them.
  uint64_t announcements() const { return cluster_->host(0).stats().order_messages; }

  TestServer server;
  std::vector<Device> devices;

 private:
  const std::vector<int32_t> hosts_;
  std::unique_ptr<LoopbackCluster> cluster_;
  std::vector<std::shared_ptr<Communicator>> communicators_;
};

inline void ExpectSuccess(const std::vector<std::optional<Failure>>& failures) {
  for (const auto& failure : failures) EXPECT_FALSE(failure) << failure->kind << ": " << failure->message;
}

}  // namespace passing::mpi

#endif  // TESTS_XLA_FFI_MPI_HOSTS_H_
