#include "ffi/cuda/starts.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../tests/xla_ffi/ffi/gathering/rendezvous_fixture.h"

namespace passing {
namespace {

class StagedStartTest : public RendezvousTest {
 protected:
  // Has a call wait for its inputs.
  void Stage(
      Call& call, StagedInputs::Await await, StagedInputs::Written written = [](uint64_t) {}) {
    call.staged = std::make_shared<StagedInputs>(starts_, std::move(await), std::move(written));
  }

  const std::shared_ptr<StagedStarts> starts_ =
      std::make_shared<StagedStarts>(pool_, [this](const Failure& failure) { rendezvous_.FailSession(failure); });
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

std::optional<Failure> AtOnce(uint64_t& elements) {
  elements = 1;
  return std::nullopt;
}

TEST_F(StagedStartTest, sumsWaitForTheirInputs_andNobodyElseDoes) {
  const auto site = MakeCudaSite(7, 2);
  Device a{0}, b{2};
  std::promise<void> copied;
  Call late = a.MakeCall(10, 0), early = b.MakeCall(10, 1);
  Stage(late, [&](uint64_t& elements) {
    copied.get_future().wait();
    return AtOnce(elements);
  });
  Stage(early, AtOnce);
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

TEST_F(StagedStartTest, sumsThatWaitStartInTheOrderInWhichTheyCame) {
  Device a{1}, b{2};
  std::promise<void> copied;
  Call first = a.MakeCall(10, 0), second = b.MakeCall(10, 0);
  Stage(first, [&](uint64_t& elements) {
    copied.get_future().wait();
    return AtOnce(elements);
  });
  std::promise<void> second_copied;
  Stage(second, [&](uint64_t& elements) {
    second_copied.set_value();
    return AtOnce(elements);
  });
  rendezvous_.Arrive(MakeCudaSite(7, 1), std::move(first));
  rendezvous_.Arrive(MakeCudaSite(8, 1), std::move(second));
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
TEST_F(StagedStartTest, sumsOfAnExecutionThatWaitStartWhenThoseBeforeAreDone) {
  std::deque<Device> devices;
  const auto first = MakeCudaSite(7, 1), second = MakeCudaSite(8, 1), third = MakeCudaSite(9, 1),
             next = MakeCudaSite(10, 1);
  for (const auto& site : {second, third, next}) site->executable = first->executable;
  for (const auto& site : {second, third, next}) static_cast<CudaSpec&>(ChangeSpec(site)).overlap_group = 8;
  const auto arrive = [&](const std::shared_ptr<SumSite>& site, int32_t run_id) {
    Call call = devices.emplace_back(Device{1}).MakeCall(run_id, 0);
    Stage(call, AtOnce);
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
  // The next execution doesn't wait for these: XLA may carry it out beside the last one, for another thread.
  arrive(next, 11);
  EXPECT_EQ(await(4), 4);
  for (size_t i = 1; i < 4; ++i) collective_->Complete(i);
  for (Device& device : devices) EXPECT_EQ(device.Result(), "");
}

TEST_F(StagedStartTest, inputsThatDontComeFailTheSession) {
  const auto site = MakeCudaSite(7, 2);
  Device a{1}, b{2};
  for (Call call : {a.MakeCall(10, 0), b.MakeCall(10, 1)}) {
    Stage(call, [device = call.device](uint64_t& elements) {
      return device == kFirstDevice ? std::optional<Failure>({"AcceleratorError", "broken"}) : AtOnce(elements);
    });
    rendezvous_.Arrive(site, std::move(call));
  }
  EXPECT_EQ(a.Result(), "AcceleratorError: broken");
  EXPECT_EQ(b.Result(), "AcceleratorError: broken");
  EXPECT_EQ(session_failure(), "AcceleratorError");
  EXPECT_EQ(collective_->count(), 0);
}

// The sum starts with the first elements that all devices have, and goes as far as the last of them.
TEST_F(StagedStartTest, sumsStartWithTheFirstInputs) {
  const auto site = MakeCudaSite(7, 2, {10});
  Device a{0}, b{2};
  Deliveries of_a, of_b;
  uint64_t written_a = 0, written_b = 0;
  Call call_a = a.MakeCall(10, 0), call_b = b.MakeCall(10, 1);
  Stage(call_a, of_a.Await(), [&](uint64_t elements) { written_a = elements; });
  Stage(call_b, of_b.Await(), [&](uint64_t elements) { written_b = elements; });
  rendezvous_.Arrive(site, std::move(call_a));
  rendezvous_.Arrive(site, std::move(call_b));
  const auto ready = [&] {
    std::lock_guard lock(collective_->mutex);
    return collective_->ready.empty() ? 0 : collective_->ready.back().second;
  };
  of_a.Deliver(7);
  of_b.Deliver(4);
  while (collective_->count() == 0) std::this_thread::yield();
  EXPECT_EQ(collective_->sums[0].pieces->ready_elements, 4);
  of_b.Deliver(9);
  while (ready() < 7) std::this_thread::yield();
  collective_->sums[0].pieces->written(3);
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
TEST_F(StagedStartTest, slicesAreThereOneAfterTheOther) {
  const auto site = MakeCudaSite(7, 3, {10}, 4);
  ChangeSpec(site).dtype = DType::kBFloat16;
  float* const elements = Ten(1);
  Device devices[] = {Device{0}, Device{1}, Device{2}};
  Deliveries deliveries[3];
  std::vector<uint64_t> written(3);
  for (const int i : {1, 2, 0}) {
    Call call = devices[i].MakeCall(10, i);
    call.inputs = {elements};
    call.outputs = {elements};
    Stage(call, deliveries[i].Await(), [&written, i](uint64_t count) { written[i] = count; });
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
  EXPECT_EQ(collective_->sums[0].spec->dtype, DType::kWideBFloat16);
  EXPECT_EQ(collective_->sums[0].pieces->ready_elements, 1);
  deliver(0, 3, 3);
  deliver(0, 4, 6);
  collective_->sums[0].pieces->written(3);
  EXPECT_EQ(written, (std::vector<uint64_t>{3, 0, 0}));
  collective_->sums[0].pieces->written(6);
  EXPECT_EQ(written, (std::vector<uint64_t>{4, 2, 0}));
  deliver(1, 4, 10);
  collective_->sums[0].pieces->written(10);
  EXPECT_EQ(written, (std::vector<uint64_t>{4, 4, 2}));
  const std::vector<std::pair<uint64_t, uint64_t>> expected = {{7, 3}, {7, 6}, {7, 10}};
  EXPECT_EQ(collective_->ready, expected);
  collective_->Complete(0);
  for (Device& device : devices) EXPECT_EQ(device.Result(), "");
}

TEST_F(StagedStartTest, slicesAreInTheSameBuffers) {
  const auto site = MakeCudaSite(7, 2, {1}, 1);
  float buffer = 5;
  const auto arrive = [&](Device& device, int32_t run_id, int64_t member, float& value) {
    Call call = device.MakeCall(run_id, member);
    call.inputs = {&value};
    call.outputs = {&value};
    Stage(call, AtOnce);
    rendezvous_.Arrive(site, std::move(call));
  };
  Device one{1}, two{1};
  arrive(two, 10, 1, buffer);
  EXPECT_EQ(collective_->count(), 0);
  arrive(one, 10, 0, buffer);
  while (collective_->count() == 0) std::this_thread::yield();
  EXPECT_EQ(collective_->sums[0].inputs, std::vector<const void*>{&buffer});
  collective_->Complete(0);
  EXPECT_EQ(one.Result(), "");
  EXPECT_EQ(two.Result(), "");
  EXPECT_EQ(buffer, 10);
  // They belong to different sums.
  Device other{1}, another{1};
  arrive(other, 11, 0, other.value);
  arrive(another, 11, 1, another.value);
  EXPECT_EQ(other.Result().substr(0, 20), "ProgramMismatchError");
  EXPECT_EQ(another.Result().substr(0, 20), "ProgramMismatchError");
  EXPECT_EQ(session_failure(), "ProgramMismatchError");
}

// Others get their sums from the first replica when all is there.
TEST_F(StagedStartTest, replicasAreToldInTheEnd) {
  const auto site = MakeCudaSite(7, 1, {10}, 0, 2);
  Device a{1}, b{1};
  Deliveries deliveries;
  int told = 0;
  deliveries.Deliver(10);
  for (auto [device, number] : {std::pair(&a, 0), std::pair(&b, 1)}) {
    Call call = device->MakeCall(10, /*member=*/0, number);
    Stage(call, deliveries.Await(), [&told](uint64_t) { ++told; });
    // Each of the ten elements stands for the first one.
    call.inputs = {Ten(device->value)};
    call.outputs = {const_cast<void*>(call.inputs[0])};
    rendezvous_.Arrive(site, std::move(call));
  }
  while (collective_->count() == 0) std::this_thread::yield();
  collective_->sums[0].pieces->written(5);
  EXPECT_EQ(told, 1);
  collective_->Complete(0);
  EXPECT_EQ(a.Result(), "");
  EXPECT_EQ(b.Result(), "");
}

// The collective ends the sum, as the session's failure does, and also where the session is over.
TEST_F(StagedStartTest, inputsThatBreakOffFailTheSession) {
  for (const bool detached : {false, true}) {
    const auto site = MakeCudaSite(7, 1, {10});
    Device a{1};
    Deliveries deliveries;
    Call call = a.MakeCall(10, 0);
    Stage(call, deliveries.Await());
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

}  // namespace
}  // namespace passing
