#include "ffi/gathering/rendezvous.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "../tests/xla_ffi/ffi/gathering/rendezvous_fixture.h"
#include "ffi/local_collective.h"

namespace passing {
namespace {

// How often this process's threads went to sleep of their own accord, but for this one.
uint64_t SleepsOfOthers() {
  uint64_t sleeps = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(gettid())) continue;
    std::ifstream status(task.path() / "status");
    for (std::string word; status >> word;) {
      uint64_t count = 0;
      if (word == "voluntary_ctxt_switches:" && status >> count) sleeps += count;
    }
  }
  return sleeps;
}

// It is woken when a gathering stays open, and then looks by itself for a while. Both devices are on this thread.
TEST_F(RendezvousTest, sumsDontWakeTheWatch) {
  constexpr int kSums = 1'000;
  const auto site = MakeSite(7, 2);
  const uint64_t before = SleepsOfOthers();
  for (int32_t run_id = 0; run_id < kSums; ++run_id) {
    Device a{1}, b{2};
    rendezvous_.Arrive(site, a.MakeCall(run_id, 0));
    std::this_thread::yield();
    rendezvous_.Arrive(site, b.MakeCall(run_id, 1));
  }
  EXPECT_LT(SleepsOfOthers() - before, kSums / 10);
  EXPECT_EQ(collective_->count(), kSums);
}

TEST_F(RendezvousTest, startsWhenAllDevicesCame_inOrderOfMembers) {
  const auto site = MakeSite(7, 3);
  Device a{1}, b{2}, c{3};
  rendezvous_.Arrive(site, c.MakeCall(10, 2));
  rendezvous_.Arrive(site, a.MakeCall(10, 0));
  EXPECT_EQ(collective_->count(), 0);
  rendezvous_.Arrive(site, b.MakeCall(10, 1));
  ASSERT_EQ(collective_->count(), 1);
  EXPECT_EQ(collective_->sums[0].inputs, (std::vector<const void*>{&a.value, &b.value, &c.value}));
  EXPECT_EQ(collective_->sums[0].key, (SumKey{7, 0, 0}));
  collective_->Complete(0);
  for (Device* device : {&a, &b, &c}) {
    EXPECT_EQ(device->Result(), "");
    EXPECT_EQ(device->value, 12);
  }
}

TEST_F(RendezvousTest, callsHearThatTheirSumHasStarted) {
  const auto site = MakeSite(7, 2);
  Device a{1}, b{2};
  std::promise<void> started[2];
  for (Device* device : {&a, &b}) {
    const int member = device == &b;
    Call call = device->MakeCall(10, member);
    call.started = [&started, member] { started[member].set_value(); };
    EXPECT_EQ(collective_->count(), 0);
    rendezvous_.Arrive(site, std::move(call));
  }
  for (auto& each : started) EXPECT_EQ(each.get_future().wait_for(60s), std::future_status::ready);
  collective_->Complete(0);
  for (Device* device : {&a, &b}) EXPECT_EQ(device->Result(), "");
}

TEST_F(RendezvousTest, callsOfASumThatFailsBeforeDontHearThatItHasStarted) {
  const auto site = MakeSite(7, 2);
  Device a{1};
  Call call = a.MakeCall(10, 0);
  call.started = [] { ADD_FAILURE(); };
  rendezvous_.Arrive(site, std::move(call));
  rendezvous_.FailSession({"HostLostError", ""});
  EXPECT_EQ(a.Result(), "HostLostError: ");
}

TEST_F(RendezvousTest, handlesEndWithTheAttachment) {
  const float value = 1;
  const HandleLeaf leaf{0, sizeof(value), &value};
  const auto call = std::make_shared<HandleCall>("the sum", 1);
  auto& handles = rendezvous_.handles();
  EXPECT_FALSE(handles.Put(handles.NewNumber(), 0, call, std::make_shared<HandlePart>(std::vector{leaf})));
  EXPECT_EQ(handles.Unfinished().size(), 1);
  rendezvous_.Detach();
  EXPECT_TRUE(handles.Unfinished().empty());
}

TEST_F(RendezvousTest, replicasShareTheResult) {
  const auto site = MakeSite(7, 2, 2);
  Device a{1}, a2{1}, b{2}, b2{2};
  rendezvous_.Arrive(site, b.MakeCall(10, 1, 3));
  rendezvous_.Arrive(site, a.MakeCall(10, 0, 2));
  rendezvous_.Arrive(site, b2.MakeCall(10, 1, 1));
  rendezvous_.Arrive(site, a2.MakeCall(10, 0, 0));
  ASSERT_EQ(collective_->count(), 1);
  EXPECT_EQ(collective_->sums[0].inputs.size(), 2);
  collective_->Complete(0);
  for (Device* device : {&a, &a2, &b, &b2}) {
    EXPECT_EQ(device->Result(), "");
    EXPECT_EQ(device->value, 6);
  }
}

TEST_F(RendezvousTest, devicesThatDontBelongTogetherFailTheSession) {
  const auto site = MakeSite(7, 2);
  Device a{1}, b{2};
  rendezvous_.Arrive(site, a.MakeCall(10, 1, 0));
  rendezvous_.Arrive(site, b.MakeCall(10, 1, 1));
  EXPECT_TRUE(a.Result().starts_with("ProgramMismatchError"));
  EXPECT_TRUE(b.Result().starts_with("ProgramMismatchError"));
  EXPECT_EQ(session_failure(), "ProgramMismatchError");
}

TEST_F(RendezvousTest, allDevicesFailTogether) {
  const auto site = MakeSite(7, 2);
  Device a{1}, b{2};
  rendezvous_.Arrive(site, a.MakeCall(10, 0));
  rendezvous_.Arrive(site, b.MakeCall(10, 1));
  const Failure failure{"HostLostError", "rank 1"};
  collective_->sums[0].done(&failure);
  EXPECT_EQ(a.Result(), "HostLostError: rank 1");
  EXPECT_EQ(b.Result(), "HostLostError: rank 1");
}

TEST_F(RendezvousTest, tellsWhyNoSumSucceeds) {
  EXPECT_FALSE(rendezvous_.failure());
  rendezvous_.FailSession({"HostLostError", "rank 1"});
  ASSERT_TRUE(rendezvous_.failure());
  EXPECT_EQ(rendezvous_.failure()->kind, "HostLostError");
  rendezvous_.Detach();
  EXPECT_EQ(rendezvous_.failure()->kind, "ClosedError");
}

TEST_F(RendezvousTest, overlappingExecutionsFailTheSession) {
  const auto site = MakeSite(7, 2);
  Device a{1}, b{2};
  rendezvous_.Arrive(site, a.MakeCall(10, 0));
  rendezvous_.Arrive(site, b.MakeCall(11, 1));
  EXPECT_TRUE(a.Result().starts_with("ProgramMismatchError: two executions"));
  EXPECT_TRUE(b.Result().starts_with("ProgramMismatchError: two executions"));
  EXPECT_EQ(session_failure(), "ProgramMismatchError");
}

TEST_F(RendezvousTest, executionOutOfOrderFailsTheSession) {
  const auto site = MakeSite(7, 1);
  Device a{1}, b{2};
  rendezvous_.Arrive(site, a.MakeCall(11, 0));
  rendezvous_.Arrive(site, b.MakeCall(10, 0));
  EXPECT_TRUE(b.Result().starts_with("ProgramMismatchError"));
  EXPECT_EQ(session_failure(), "ProgramMismatchError");
}

TEST_F(RendezvousTest, anotherExecutableOnADeviceThatStillWaitsFailsTheSession) {
  const auto site = MakeLocalSite(7, 2);
  const auto again = MakeLocalSite(7, 2);  // the same program, compiled again
  Device a{1}, b{2};
  rendezvous_.Arrive(site, a.MakeCall(10, 0));
  rendezvous_.Arrive(again, b.MakeCall(10, 0));
  EXPECT_TRUE(a.Result().starts_with("ProgramMismatchError: two executions"));
  EXPECT_TRUE(b.Result().starts_with("ProgramMismatchError: two executions"));
  EXPECT_EQ(session_failure(), "ProgramMismatchError");
}

// One program, compiled for devices {0, 1} and for {2, 3}: they run beside each other, in any order.
TEST_F(RendezvousTest, programsOnOtherDevicesShareNoQueue) {
  const auto low = MakeLocalSite(7, 2), high = MakeLocalSite(7, 2);
  std::vector<Device> devices(12);
  rendezvous_.Arrive(low, devices[0].MakeCall(10, 0, 0));
  rendezvous_.Arrive(high, devices[1].MakeCall(10, 0, 2));  // both gatherings are open
  rendezvous_.Arrive(high, devices[2].MakeCall(10, 1, 3));
  rendezvous_.Arrive(high, devices[3].MakeCall(11, 1, 3));
  rendezvous_.Arrive(high, devices[4].MakeCall(11, 0, 2));
  rendezvous_.Arrive(low, devices[5].MakeCall(10, 1, 1));
  ASSERT_EQ(collective_->count(), 3);
  const SumKey first = collective_->sums[0].key, second = collective_->sums[1].key, third = collective_->sums[2].key;
  EXPECT_EQ(second, (SumKey{first.site, 1, 0}));  // of devices {2, 3}
  EXPECT_NE(third.site, first.site);
  EXPECT_EQ(third.execution, 0);  // of devices {0, 1}: none of theirs was counted
  EXPECT_EQ(collective_->announced, (std::vector<std::string>{"program 7 on 2,3 after 0", "program 7 on 0,1 after 2"}));
  EXPECT_EQ(session_failure(), "");
  for (size_t i = 0; i < 3; ++i) collective_->Complete(i);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(devices[i].Result(), "");
}

TEST_F(RendezvousTest, visitsCountExecutions_asDoesASumThatComesBeforeThem) {
  const auto site = MakeSite(7, 1);
  Change(site).visits = true;
  Device a{1}, b{2};
  const auto visit = [&](int32_t run_id) { rendezvous_.Visit(site->executable, run_id, kFirstDevice); };
  visit(10);  // comes to no sum
  visit(11);
  rendezvous_.Arrive(site, a.MakeCall(11, 0));
  rendezvous_.Arrive(site, b.MakeCall(12, 0));
  visit(12);
  ASSERT_EQ(collective_->count(), 2);
  EXPECT_EQ(collective_->sums[0].key, (SumKey{7, 1, 0}));
  EXPECT_EQ(collective_->sums[1].key, (SumKey{7, 2, 0}));
  for (size_t i = 0; i < 2; ++i) collective_->Complete(i);
  EXPECT_EQ(a.Result() + b.Result(), "");
}

TEST_F(RendezvousTest, programsAreAnnouncedOnceInOrder_beforeTheirFirstSum) {
  const auto first = MakeLocalSite(7, 2), second = MakeLocalSite(8, 1), again = MakeLocalSite(7, 2);
  const auto other_sum = MakeLocalSite(9, 2);
  other_sum->executable = first->executable;
  std::vector<Device> devices(20);
  size_t next = 0;
  const auto run = [&](const std::shared_ptr<SumSite>& site, int32_t run_id) {
    for (uint32_t member = 0; member < site->spec->local_member_count; ++member) {
      rendezvous_.Arrive(site, devices[next++].MakeCall(run_id, member));
    }
    collective_->Complete(collective_->count() - 1);
  };
  rendezvous_.Arrive(first, devices[next++].MakeCall(10, 0));  // opened first, complete second
  run(second, 5);
  rendezvous_.Arrive(first, devices[next++].MakeCall(10, 1));
  collective_->Complete(1);
  run(other_sum, 10);
  run(again, 3);
  run(second, 6);
  EXPECT_EQ(collective_->announced, (std::vector<std::string>{"program 8 on 0 after 0", "program 7 on 0,1 after 1"}));
  rendezvous_.Detach();
  collective_ = MakeCollective();
  Attach(60, MakeCollective());
  ChangeSpec(first).flat = true;  // announced to the host's session all the same
  for (int member : {0, 1}) rendezvous_.Arrive(first, devices[next++].MakeCall(11, member));
  EXPECT_EQ(collective_->announced, std::vector<std::string>{"program 7 on 0,1 after 0"});
}

TEST_F(RendezvousTest, lookAlikesWithoutFingerprintFailTheSession) {
  const auto site = MakeLocalSite(7, 2);
  Change(site).refused = Failure{"ProgramMismatchError", "2 sums"};
  Device a{1}, b{2};
  rendezvous_.Arrive(site, a.MakeCall(10, 0));
  rendezvous_.Arrive(site, b.MakeCall(10, 1));
  EXPECT_EQ(a.Result(), "ProgramMismatchError: 2 sums");
  EXPECT_EQ(b.Result(), "ProgramMismatchError: 2 sums");
  EXPECT_EQ(session_failure(), "ProgramMismatchError");
  EXPECT_EQ(collective_->announced.size(), 0);
}

TEST_F(RendezvousTest, deviceThatNeverComesFailsAtTheDeadline) {
  rendezvous_.Detach();
  Attach(0.3);
  const auto site = MakeSite(7, 2);
  Device a{1};
  rendezvous_.Arrive(site, a.MakeCall(10, 1));
  const std::string result = a.Result();
  EXPECT_TRUE(result.starts_with("DeadlineExceededError: train.py:41: only 1 of 2 devices")) << result;
  EXPECT_NE(result.find("(members 1)"), std::string::npos) << result;
  EXPECT_EQ(session_failure(), "DeadlineExceededError");
}

TEST_F(RendezvousTest, openGatheringsLearnOfTheSessionsFailure) {
  const auto site = MakeSite(7, 2);
  Device a{1};
  rendezvous_.Arrive(site, a.MakeCall(10, 0));
  const auto expect_one = [&] {  // the flight record tells of it before and afterwards
    const auto open = rendezvous_.open();
    ASSERT_EQ(open.size(), 1u);
    EXPECT_EQ(open[0].calls, 1u);
    EXPECT_EQ(open[0].call_count, 2u);
    EXPECT_GT(open[0].opened_us, 0);
  };
  expect_one();
  {
    std::lock_guard lock(mutex_);
    failure_ = Failure{"SwitchLostError", "gone"};
  }
  EXPECT_EQ(a.Result(), "SwitchLostError: gone");
  expect_one();
}

// Many sites, devices as threads, sums completed from other threads: each device gets its own sums.
TEST_F(RendezvousTest, manySitesAtOnce) {
  rendezvous_.Detach();
  auto local = std::make_shared<LocalCollective>();
  ASSERT_TRUE(rendezvous_.Attach({.collective = local,
                                  .failure = [local] { return local->failure(); },
                                  .fail = [local](const Failure& failure) { local->Fail(failure); }}));
  constexpr int kDevices = 4, kSites = 50, kSteps = 20;
  constexpr int kStrides[kDevices] = {1, 3, 7, 9};
  std::vector<std::shared_ptr<SumSite>> sites;
  for (int i = 0; i < kSites; ++i) {
    sites.push_back(MakeSite(100 + i, kDevices));
    ChangeSpec(sites.back()).world_size = 1;
  }
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int member = 0; member < kDevices; ++member) {
    threads.emplace_back([&, member] {
      for (int step = 0; step < kSteps; ++step) {
        std::vector<Device> devices(kSites);
        for (int i = 0; i < kSites; ++i) {
          const int at = (i * kStrides[member] + step) % kSites;  // each device in another order
          devices[at].value = static_cast<float>(at + 1000 * step + member);
          rendezvous_.Arrive(sites[at], devices[at].MakeCall(step, member));
        }
        for (int i = 0; i < kSites; ++i) {
          if (devices[i].Result() != "" || devices[i].value != 4 * (i + 1000 * step) + 6) ++wrong;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace passing
