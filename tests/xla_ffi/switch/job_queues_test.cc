#include "switch/job_queues.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "net/socket_address.h"
#include "net/udp_driver.h"
#include "wire/header.h"

namespace passing {
namespace {

class JobQueuesOn : public testing::TestWithParam<std::pair<const char*, const char*>> {
 protected:
  JobQueues queues_{GetParam().first, 0, [](const UdpSocket&, size_t) {}};
  UdpSocket sender_ = UdpSocket::ConnectedTo(GetParam().second, queues_.socket(0).port());

  Address Native(const char* host) { return queues_.socket(0).Native(ResolveAddress(host, 9)); }

  void Send(uint16_t job, int count = 1) {
    std::array<uint8_t, wire::kMaxPacketBytes> packet{};
    wire::Encode({.job = job, .epoch = 1, .element_count = 360}, packet.data());
    const auto bytes = static_cast<uint16_t>(packet.size());
    for (int i = 0; i < count; ++i) sender_.Send(packet.data(), {&bytes, 1});
  }

  // How many datagrams are in a queue, at once on loopback.
  size_t Drain(size_t queue) {
    size_t all = 0;
    while (const size_t some = queues_.socket(queue).Receive([](std::span<const uint8_t>, const Address&) {})) {
      all += some;
    }
    return all;
  }
};

TEST_P(JobQueuesOn, aJobsPacketsAreInItsQueue) {
  const std::vector<Address> workers = {Native(GetParam().second)};
  const size_t one = queues_.Take(1, workers), two = queues_.Take(2, workers);
  ASSERT_EQ((std::array{one, two}), (std::array<size_t, 2>{1, 2}));
  Send(1, 3);
  Send(2, 5);
  Send(3, 7);
  EXPECT_EQ(Drain(one), 3u);
  EXPECT_EQ(Drain(two), 5u);
  EXPECT_EQ(Drain(JobQueues::kOther), 7u);

  queues_.Return(1);
  Send(1, 2);
  EXPECT_EQ(Drain(JobQueues::kOther), 2u);
  EXPECT_EQ(queues_.Take(4, workers), one);  // an unused one
  EXPECT_EQ(queues_.size(), 3u);
  Send(4, 6);
  EXPECT_EQ(Drain(one), 6u);
}

TEST_P(JobQueuesOn, whatIsTooShortForAJobIsNobodys) {
  queues_.Take(1, {Native(GetParam().second)});
  const uint8_t byte = 1;
  const uint16_t bytes = 1;
  sender_.Send(&byte, {&bytes, 1});
  EXPECT_EQ(Drain(JobQueues::kOther), 1u);
}

TEST_P(JobQueuesOn, aJobThatSendsTooMuchLosesItsOwnPacketsOnly) {
  const std::vector<Address> workers = {Native(GetParam().second)};
  const size_t loud = queues_.Take(1, workers), quiet = queues_.Take(2, workers);
  Send(1, 20'000);  // 29 MB; the buffer has at most 8 MiB
  Send(2, 10);
  EXPECT_EQ(Drain(quiet), 10u);
  const size_t taken = Drain(loud);
  EXPECT_LT(taken, 20'000u);
  const auto overflows = queues_.Overflows();
  EXPECT_EQ(overflows.at(1), 20'000 - taken);
  EXPECT_EQ(overflows.at(2), 0u);
  EXPECT_EQ(overflows.at(0), 0u);

  // They aren't the next job's that has the queue.
  queues_.Return(1);
  ASSERT_EQ(queues_.Take(3, workers), loud);
  EXPECT_EQ(queues_.Overflows().at(3), 0u);
}

INSTANTIATE_TEST_SUITE_P(Hosts, JobQueuesOn,
                         testing::Values(std::pair("127.0.0.1", "127.0.0.1"), std::pair("::1", "::1"),
                                         std::pair("::", "127.0.0.1"), std::pair("0.0.0.0", "127.0.0.1")),
                         [](const auto& info) { return "Case" + std::to_string(info.index); });

TEST(JobQueues, aForgersPacketsArentTheJobs) {
  JobQueues queues("127.0.0.1", 0, [](const UdpSocket&, size_t) {});
  std::vector<Address> workers;
  for (int i = 1; i <= 64; ++i) workers.push_back(ResolveAddress("127.0.1." + std::to_string(i), 9));
  const size_t queue = queues.Take(1, workers);
  UdpSocket forger = UdpSocket::ConnectedTo("127.0.0.1", queues.socket(0).port());
  std::array<uint8_t, wire::kMaxPacketBytes> packet{};
  wire::Encode({.job = 1, .epoch = 1, .element_count = 360}, packet.data());
  const auto bytes = static_cast<uint16_t>(packet.size());
  const auto count = [&](size_t of) {
    return queues.socket(of).Receive([](std::span<const uint8_t>, const Address&) {});
  };
  forger.Send(packet.data(), {&bytes, 1});
  EXPECT_EQ(count(JobQueues::kOther), 1u);
  EXPECT_EQ(count(queue), 0u);
  for (const char* worker : {"127.0.1.1", "127.0.1.64"}) {
    UdpSocket host = UdpSocket::BoundTo(worker, 0);
    const Address to = ResolveAddress("127.0.0.1", queues.socket(0).port());
    host.Send(packet.data(), {&bytes, 1}, {&to, 1});
    EXPECT_EQ(count(queue), 1u) << worker;
  }
}

TEST(JobQueues, aSocketThatCantBeWatchedIsNoQueue) {
  JobQueues queues("127.0.0.1", 0, [](const UdpSocket&, size_t queue) {
    if (queue > 1) throw std::system_error(ENOSPC, std::generic_category());
  });
  const std::vector<Address> workers = {ResolveAddress("127.0.0.1", 9)};
  EXPECT_EQ(queues.Take(1, workers), 1u);
  EXPECT_EQ(queues.Take(2, workers), 1u);
  EXPECT_EQ(queues.size(), 2u);
}

TEST(JobQueues, moreJobsThanQueuesShareThem) {
  JobQueues queues("127.0.0.1", 0, [](const UdpSocket&, size_t) {});
  std::vector<size_t> jobs_in(1 + JobQueues::kMaxQueues);
  for (uint16_t job = 1; job <= 2 * JobQueues::kMaxQueues; ++job) {
    ++jobs_in[queues.Take(job, {ResolveAddress("127.0.0.1", 9)})];
  }
  EXPECT_EQ(jobs_in[JobQueues::kOther], 0u);
  for (size_t queue = 1; queue <= JobQueues::kMaxQueues; ++queue) EXPECT_EQ(jobs_in[queue], 2u);
}

}  // namespace
}  // namespace passing
