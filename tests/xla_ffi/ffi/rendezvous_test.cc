#include "ffi/rendezvous.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../tests/xla_ffi/ffi/make_site.h"
#include "ffi/local_collective.h"

namespace passing {
namespace {

using namespace std::chrono_literals;

// Keeps the sums it is given until the test completes them.
class HeldCollective : public Collective {
 public:
  uint32_t world_size() const override { return 2; }
  void Start(Sum sum) override {
    std::lock_guard lock(mutex);
    sums.push_back(std::move(sum));
  }
  void Ready(const SumKey& key, uint64_t elements) override {
    std::lock_guard lock(mutex);
    ready.emplace_back(key.site, elements);
  }
  void Fail(const Failure& failure) override { failed.set_value(failure.kind); }
  void Announce(const ProgramInfo& program) override {
    std::lock_guard lock(mutex);
    announced.push_back(program.name + " on " + program.devices + " after " + std::to_string(sums.size()));
  }
  size_t count() {
    std::lock_guard lock(mutex);
    return sums.size();
  }
  void DropSums() {
    std::lock_guard lock(mutex);
    sums.clear();
  }
  // Doubles the inputs' sum, as if another host had sent the same.
  void Complete(size_t index) {
    Sum& sum = sums[index];
    float total = 0;
    for (const void* input : sum.inputs) total += *static_cast<const float*>(input);
    for (void* output : sum.outputs) *static_cast<float*>(output) = 2 * total;
    sum.done(nullptr);
  }

  std::mutex mutex;
  std::vector<Sum> sums;
  std::vector<std::pair<uint64_t, uint64_t>> ready;  // of which site how many elements
  std::promise<std::string> failed;                  // the kind
  std::vector<std::string> announced;                // and how many sums had been started
};

// Blocks until the test says so, for each further element.
struct Deliveries {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t delivered = 0;
  std::optional<Failure> failure;

  void Deliver(uint64_t elements) {
    std::lock_guard lock(mutex);
    delivered = elements;
    changed.notify_all();
  }
  void Break() {
    std::lock_guard lock(mutex);
    failure = {"AcceleratorError", "broken"};
    changed.notify_all();
  }
  std::function<std::optional<Failure>(uint64_t&)> Await() {
    return [this](uint64_t& elements) -> std::optional<Failure> {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return delivered > elements || failure; });
      if (!failure) elements = delivered;
      return failure;
    };
  }
};

std::shared_ptr<SumSite> MakeSiteOf(uint64_t elements, uint32_t members, uint32_t replicas = 1) {
  const auto site = MakeSite(7, members, replicas);
  site->shape = std::make_shared<SumShape>(SumShape{"train.py:41", DType::kFloat32, {elements}, members});
  return site;
}

constexpr int64_t kFirstDevice = 2048;

// One call of one device with one float, summed in place.
struct Device {
  float value;
  // Shared, as set_value may still be at it when the future is ready.
  std::shared_ptr<std::promise<std::string>> promise = std::make_shared<std::promise<std::string>>();
  std::future<std::string> result = promise->get_future();

  // On the device of the member's number, unless told another.
  Call MakeCall(int32_t run_id, int64_t member, int64_t device = -1) {
    return {.run_id = run_id,
            .device = kFirstDevice + (device < 0 ? member : device),
            .member = member,
            .inputs = {&value},
            .outputs = {&value},
            .done = [promise = promise](const Failure* failure) {
              promise->set_value(failure ? failure->kind + ": " + failure->message : "");
            }};
  }
  // "" for success, else what went wrong.
  std::string Result() {
    if (result.wait_for(60s) != std::future_status::ready) return "still waiting";
    return result.get();
  }
};

class RendezvousTest : public testing::Test {
 protected:
  RendezvousTest() { Attach(); }
  // A held sum holds its gathering, which holds the collective: nothing else opens that circle.
  ~RendezvousTest() override {
    for (const auto& collective : collectives_) collective->DropSums();
  }

  std::shared_ptr<HeldCollective> MakeCollective() {
    return collectives_.emplace_back(std::make_shared<HeldCollective>());
  }

  void Attach(double deadline_s = 60, std::shared_ptr<Collective> flat = nullptr) {
    ASSERT_TRUE(rendezvous_.Attach({.collective = collective_,
                                    .flat = std::move(flat),
                                    .failure =
                                        [this] {
                                          std::lock_guard lock(mutex_);
                                          return failure_;
                                        },
                                    .fail =
                                        [this](const Failure& failure) {
                                          std::lock_guard lock(mutex_);
                                          failure_ = failure;
                                        },
                                    .deadline_s = deadline_s,
                                    .rank = 1,
                                    .first_device_id = kFirstDevice}));
  }

  std::string session_failure() {
    std::lock_guard lock(mutex_);
    return failure_ ? failure_->kind : "";
  }

  // In memory that lasts as long as the test.
  float* Ten(float value) { return tens_.emplace_back(10, value).data(); }

  std::deque<std::vector<float>> tens_;
  std::vector<std::shared_ptr<HeldCollective>> collectives_;
  std::shared_ptr<HeldCollective> collective_ = MakeCollective();
  std::mutex mutex_;
  std::optional<Failure> failure_;
  CompletionPool pool_;
  Rendezvous rendezvous_{pool_};
};

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

TEST_F(RendezvousTest, flatSumsHaveACollectiveOfTheirOwn) {
  const auto site = MakeSite(7, 1);
  site->flat = true;
  Device refused{1}, summed{2};
  rendezvous_.Arrive(site, refused.MakeCall(10, 0));
  EXPECT_EQ(refused.Result().substr(0, 11), "ConfigError");
  EXPECT_EQ(session_failure(), "");
  rendezvous_.Detach();
  const auto flat = MakeCollective();
  Attach(60, flat);
  rendezvous_.Arrive(site, summed.MakeCall(11, 0));
  ASSERT_EQ(flat->count(), 1);
  EXPECT_EQ(collective_->count(), 0);
  flat->Complete(0);
  EXPECT_EQ(summed.Result(), "");
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

TEST_F(RendezvousTest, slicesAreInTheSameBuffers) {
  const auto site = MakeSite(7, 1);
  site->slice_count = 2;
  float buffer = 5;
  const auto in_buffer = [&](Device& device, int64_t member) {
    Call call = device.MakeCall(10, member);
    call.inputs = {&buffer};
    call.outputs = {&buffer};
    return call;
  };
  Device one{1}, two{1};
  rendezvous_.Arrive(site, in_buffer(two, 1));
  EXPECT_EQ(collective_->count(), 0);
  rendezvous_.Arrive(site, in_buffer(one, 0));
  ASSERT_EQ(collective_->count(), 1);
  EXPECT_EQ(collective_->sums[0].inputs, std::vector<const void*>{&buffer});
  collective_->Complete(0);
  EXPECT_EQ(one.Result(), "");
  EXPECT_EQ(two.Result(), "");
  EXPECT_EQ(buffer, 10);
  // They belong to different sums.
  Device other{1}, another{1};
  rendezvous_.Arrive(site, other.MakeCall(11, 0));
  rendezvous_.Arrive(site, another.MakeCall(11, 1));
  EXPECT_EQ(other.Result().substr(0, 20), "ProgramMismatchError");
  EXPECT_EQ(another.Result().substr(0, 20), "ProgramMismatchError");
  EXPECT_EQ(session_failure(), "ProgramMismatchError");
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

TEST_F(RendezvousTest, sumsWaitForTheirInputs_andNobodyElseDoes) {
  const auto site = MakeSite(7, 2);
  Device a{0}, b{2};
  std::promise<void> copied;
  Call late = a.MakeCall(10, 0), early = b.MakeCall(10, 1);
  late.await_inputs = [&](uint64_t& elements) -> std::optional<Failure> {
    copied.get_future().wait();
    elements = 1;
    return std::nullopt;
  };
  early.await_inputs = [](uint64_t& elements) -> std::optional<Failure> {
    elements = 1;
    return std::nullopt;
  };
  rendezvous_.Arrive(site, std::move(early));
  rendezvous_.Arrive(site, std::move(late));
  EXPECT_EQ(collective_->count(), 0);
  a.value = 1;
  copied.set_value();
  while (collective_->count() == 0) std::this_thread::yield();
  collective_->Complete(0);
  EXPECT_EQ(a.Result(), "");
  EXPECT_EQ(b.Result(), "");
  EXPECT_EQ(a.value, 6);
}

TEST_F(RendezvousTest, sumsThatWaitStartInTheOrderInWhichTheyCame) {
  Device a{1}, b{2};
  std::promise<void> copied;
  Call first = a.MakeCall(10, 0), second = b.MakeCall(10, 0);
  first.await_inputs = [&](uint64_t& elements) -> std::optional<Failure> {
    copied.get_future().wait();
    elements = 1;
    return std::nullopt;
  };
  std::promise<void> second_copied;
  second.await_inputs = [&](uint64_t& elements) -> std::optional<Failure> {
    second_copied.set_value();
    elements = 1;
    return std::nullopt;
  };
  rendezvous_.Arrive(MakeSite(7, 1), std::move(first));
  rendezvous_.Arrive(MakeSite(8, 1), std::move(second));
  second_copied.get_future().wait();
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(collective_->count(), 0);
  copied.set_value();
  while (collective_->count() < 2) std::this_thread::yield();
  EXPECT_EQ(collective_->sums[0].key.site, 7);
  EXPECT_EQ(collective_->sums[1].key.site, 8);
  collective_->Complete(0);
  collective_->Complete(1);
  EXPECT_EQ(a.Result(), "");
  EXPECT_EQ(b.Result(), "");
}

// Else a host on which XLA calls each sum when those before are done would wait for what it has not come to.
TEST_F(RendezvousTest, sumsOfAnExecutionThatWaitStartWhenThoseBeforeAreDone) {
  std::deque<Device> devices;
  const auto first = MakeSite(7, 1), second = MakeSite(8, 1), third = MakeSite(9, 1), next = MakeSite(10, 1);
  for (const auto& site : {second, third, next}) site->executable = first->executable;
  second->overlap_group = third->overlap_group = next->overlap_group = 8;
  const auto arrive = [&](const std::shared_ptr<SumSite>& site, int32_t run_id) {
    Call call = devices.emplace_back(Device{1}).MakeCall(run_id, 0);
    call.await_inputs = [](uint64_t& elements) -> std::optional<Failure> {
      elements = 1;
      return std::nullopt;
    };
    rendezvous_.Arrive(site, std::move(call));
  };
  const auto await = [&](size_t count) {
    while (collective_->count() < count) std::this_thread::yield();
    std::this_thread::sleep_for(20ms);
    return collective_->count();
  };
  arrive(first, 10);
  arrive(second, 10);
  arrive(third, 10);
  EXPECT_EQ(await(1), 1);
  collective_->Complete(0);
  EXPECT_EQ(await(3), 3);
  // Of the next execution none waits for these: XLA may carry it out beside the last one, for another thread.
  arrive(next, 11);
  EXPECT_EQ(await(4), 4);
  for (size_t i = 1; i < 4; ++i) collective_->Complete(i);
  for (Device& device : devices) EXPECT_EQ(device.Result(), "");
}

TEST_F(RendezvousTest, inputsThatDontComeFailTheSession) {
  const auto site = MakeSite(7, 2);
  Device a{1}, b{2};
  for (Call call : {a.MakeCall(10, 0), b.MakeCall(10, 1)}) {
    call.await_inputs = [device = call.device](uint64_t& elements) -> std::optional<Failure> {
      elements = 1;
      return device == kFirstDevice ? std::optional<Failure>({"AcceleratorError", "broken"}) : std::nullopt;
    };
    rendezvous_.Arrive(site, std::move(call));
  }
  EXPECT_EQ(a.Result(), "AcceleratorError: broken");
  EXPECT_EQ(b.Result(), "AcceleratorError: broken");
  EXPECT_EQ(session_failure(), "AcceleratorError");
  EXPECT_EQ(collective_->count(), 0);
}

// The sum starts with the first elements that all devices have, and goes as far as the last of them.
TEST_F(RendezvousTest, sumsStartWithTheFirstInputs) {
  const auto site = MakeSiteOf(10, 2);
  Device a{0}, b{2};
  Deliveries of_a, of_b;
  uint64_t written_a = 0, written_b = 0;
  Call call_a = a.MakeCall(10, 0), call_b = b.MakeCall(10, 1);
  call_a.await_inputs = of_a.Await();
  call_b.await_inputs = of_b.Await();
  call_a.written = [&](uint64_t elements) { written_a = elements; };
  call_b.written = [&](uint64_t elements) { written_b = elements; };
  rendezvous_.Arrive(site, std::move(call_a));
  rendezvous_.Arrive(site, std::move(call_b));
  const auto ready = [&] {
    std::lock_guard lock(collective_->mutex);
    return collective_->ready.empty() ? 0 : collective_->ready.back().second;
  };
  of_a.Deliver(7);
  of_b.Deliver(4);
  while (collective_->count() == 0) std::this_thread::yield();
  EXPECT_EQ(collective_->sums[0].ready_elements, 4);
  of_b.Deliver(9);
  while (ready() < 7) std::this_thread::yield();
  collective_->sums[0].written(3);
  EXPECT_EQ(written_a, 3);
  EXPECT_EQ(written_b, 3);
  of_a.Deliver(10);
  while (ready() < 9) std::this_thread::yield();
  of_b.Deliver(10);
  while (ready() < 10) std::this_thread::yield();
  const std::vector<std::pair<uint64_t, uint64_t>> expected = {{7, 7}, {7, 9}, {7, 10}};
  EXPECT_EQ(collective_->ready, expected);
  collective_->Complete(0);
  EXPECT_EQ(a.Result(), "");
  EXPECT_EQ(b.Result(), "");
}

// Each call brings four of the ten elements, the last one also two that belong to no leaf.
TEST_F(RendezvousTest, slicesAreThereOneAfterTheOther) {
  const auto site = MakeSite(7, 1);
  site->shape = std::make_shared<SumShape>(SumShape{"train.py:41", DType::kWideBFloat16, {10}, 1});
  site->slice_count = 3;
  site->slice_elements = 4;
  float* const elements = Ten(1);
  Device devices[] = {Device{0}, Device{1}, Device{2}};
  Deliveries deliveries[3];
  std::vector<uint64_t> written(3);
  for (const int i : {1, 2, 0}) {
    Call call = devices[i].MakeCall(10, i);
    call.inputs = {elements};
    call.outputs = {elements};
    call.await_inputs = deliveries[i].Await();
    call.written = [&written, i](uint64_t count) { written[i] = count; };
    rendezvous_.Arrive(site, std::move(call));
  }
  const auto ready = [&] {
    std::lock_guard lock(collective_->mutex);
    return collective_->ready.empty() ? 0 : collective_->ready.back().second;
  };
  const auto deliver = [&](int i, uint64_t count, uint64_t makes) {
    deliveries[i].Deliver(count);
    while (ready() < makes) std::this_thread::yield();
    EXPECT_EQ(ready(), makes);
  };
  deliveries[0].Deliver(1);
  deliveries[2].Deliver(4);
  deliveries[1].Deliver(2);
  while (collective_->count() == 0) std::this_thread::yield();
  EXPECT_EQ(collective_->sums[0].ready_elements, 1);
  deliver(0, 3, 3);
  deliver(0, 4, 6);
  collective_->sums[0].written(3);
  EXPECT_EQ(written, (std::vector<uint64_t>{3, 0, 0}));
  collective_->sums[0].written(6);
  EXPECT_EQ(written, (std::vector<uint64_t>{4, 2, 0}));
  deliver(1, 4, 10);
  collective_->sums[0].written(10);
  EXPECT_EQ(written, (std::vector<uint64_t>{4, 4, 2}));
  const std::vector<std::pair<uint64_t, uint64_t>> expected = {{7, 3}, {7, 6}, {7, 10}};
  EXPECT_EQ(collective_->ready, expected);
  collective_->Complete(0);
  for (Device& device : devices) EXPECT_EQ(device.Result(), "");
}

// Others get their sums from the first replica when all is there.
TEST_F(RendezvousTest, replicasAreToldInTheEnd) {
  const auto site = MakeSiteOf(10, 1, 2);
  Device a{1}, b{1};
  Deliveries deliveries;
  int told = 0;
  deliveries.Deliver(10);
  for (auto [device, number] : {std::pair(&a, 0), std::pair(&b, 1)}) {
    Call call = device->MakeCall(10, /*member=*/0, number);
    call.await_inputs = deliveries.Await();
    call.written = [&told](uint64_t) { ++told; };
    // Each of the ten elements stands for the first one.
    call.inputs = {Ten(device->value)};
    call.outputs = {const_cast<void*>(call.inputs[0])};
    rendezvous_.Arrive(site, std::move(call));
  }
  while (collective_->count() == 0) std::this_thread::yield();
  collective_->sums[0].written(5);
  EXPECT_EQ(told, 1);
  collective_->Complete(0);
  EXPECT_EQ(a.Result(), "");
  EXPECT_EQ(b.Result(), "");
}

// The collective ends the sum, as the session's failure does, and also where the session is over.
TEST_F(RendezvousTest, inputsThatBreakOffFailTheSession) {
  for (const bool detached : {false, true}) {
    const auto site = MakeSiteOf(10, 1);
    Device a{1};
    Deliveries deliveries;
    Call call = a.MakeCall(10, 0);
    call.await_inputs = deliveries.Await();
    rendezvous_.Arrive(site, std::move(call));
    deliveries.Deliver(5);
    while (collective_->count() == 0) std::this_thread::yield();
    if (detached) rendezvous_.Detach();
    deliveries.Break();
    EXPECT_EQ(collective_->failed.get_future().get(), "AcceleratorError");
    EXPECT_EQ(session_failure(), detached ? "" : "AcceleratorError");
    const Failure failure{"AcceleratorError", "told"};
    collective_->sums[0].done(&failure);
    EXPECT_EQ(a.Result(), "AcceleratorError: told");
    if (detached) break;
    rendezvous_.Detach();
    collective_ = MakeCollective();
    failure_.reset();
    Attach();
  }
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
    for (uint32_t member = 0; member < site->shape->device_count; ++member) {
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
  first->flat = true;  // announced to the host's session all the same
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

TEST_F(RendezvousTest, rankAndWorldSizeAreTheSessions) {
  ASSERT_TRUE(rendezvous_.attached());
  EXPECT_EQ(rendezvous_.attached()->rank, 1);
  EXPECT_EQ(rendezvous_.attached()->world_size, 2);
  rendezvous_.Detach();
  EXPECT_FALSE(rendezvous_.attached());
}

TEST_F(RendezvousTest, withoutSession) {
  rendezvous_.Detach();
  Device a{1};
  rendezvous_.Arrive(MakeSite(7, 1), a.MakeCall(10, 0));
  EXPECT_TRUE(a.Result().starts_with("NotInitializedError"));
}

TEST_F(RendezvousTest, anotherWorldSize) {
  const auto site = MakeSite(7, 1);
  site->world_size = 3;
  Device a{1};
  rendezvous_.Arrive(site, a.MakeCall(10, 0));
  EXPECT_NE(a.Result().find("ConfigError: train.py:41 was compiled for 3 ranks, but the session has 2"),
            std::string::npos);
  EXPECT_EQ(session_failure(), "");
}

TEST_F(RendezvousTest, anyWorldSize) {
  const auto site = MakeSite(7, 1);
  site->world_size = kAnyWorldSize;
  Device a{1};
  rendezvous_.Arrive(site, a.MakeCall(10, 0));
  collective_->Complete(0);
  EXPECT_EQ(a.Result(), "");
}

TEST_F(RendezvousTest, detachFailsOpenGatherings_andRefusesTheirExecutions) {
  const auto site = MakeSite(7, 2);
  Device a{1}, b{2}, c{3}, d{4};
  rendezvous_.Arrive(site, a.MakeCall(10, 0));
  rendezvous_.Detach();
  EXPECT_TRUE(a.Result().starts_with("ClosedError"));
  Attach();
  rendezvous_.Arrive(site, b.MakeCall(10, 1));  // the straggler of the execution that died
  EXPECT_TRUE(b.Result().starts_with("ClosedError"));
  rendezvous_.Arrive(site, c.MakeCall(11, 0));
  rendezvous_.Arrive(site, d.MakeCall(11, 1));
  ASSERT_EQ(collective_->count(), 1);
  EXPECT_EQ(collective_->sums[0].key, (SumKey{7, 0, 0}));  // counted from attach
}

TEST_F(RendezvousTest, executionSeenBetweenSessionsIsRefusedByTheNext) {
  rendezvous_.Detach();
  const auto site = MakeSite(7, 2);
  Device a{1}, b{2};
  rendezvous_.Arrive(site, a.MakeCall(10, 0));
  EXPECT_TRUE(a.Result().starts_with("NotInitializedError"));
  Attach();
  rendezvous_.Arrive(site, b.MakeCall(10, 1));
  EXPECT_TRUE(b.Result().starts_with("ClosedError"));
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
  {
    std::lock_guard lock(mutex_);
    failure_ = Failure{"SwitchLostError", "gone"};
  }
  EXPECT_EQ(a.Result(), "SwitchLostError: gone");
}

TEST_F(RendezvousTest, oneSessionAtATime) { EXPECT_FALSE(rendezvous_.Attach({})); }

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
    sites.back()->world_size = 1;
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
