#include "ffi/gathering/host_calls.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace passing {
namespace {

// Doubles each sum, as if another host had sent the same, and keeps its key.
class DoublingCollective : public Collective {
 public:
  uint32_t world_size() const override { return 2; }
  void Start(Sum sum) override {
    float total = 0;
    for (const void* input : sum.inputs) total += *static_cast<const float*>(input);
    for (void* output : sum.outputs) *static_cast<float*>(output) = 2 * total;
    {
      std::lock_guard lock(mutex);
      keys.push_back(sum.key);
    }
    sum.done(failure ? &*failure : nullptr);
  }

  std::mutex mutex;
  std::vector<SumKey> keys;
  std::optional<Failure> failure;
};

SumSpec Spec(uint32_t devices, const std::string& identity) {
  SumSpec spec;
  spec.program = "jit_step";
  spec.identity = identity;
  spec.site_name = "train.py:41";
  spec.leaf_elements = {1};
  spec.member_count = 2 * devices;
  spec.local_member_count = devices;
  spec.world_size = 2;
  return spec;
}

SumSpec Visit() {
  SumSpec spec;
  spec.program = "jit_step";
  return spec;
}

class HostCallsTest : public testing::Test {
 protected:
  HostCallsTest() { Attach(); }

  void Attach() {
    collective_ = std::make_shared<DoublingCollective>();
    ASSERT_TRUE(rendezvous_.Attach({.collective = collective_,
                                    .failure = [this] { return Failed(); },
                                    .fail = [](const Failure&) {},
                                    .first_device_id = 2048}));
  }

  // Only this thread learns of it: the rendezvous's own, which looks for failures now and then, doesn't.
  std::optional<Failure> Failed() const { return std::this_thread::get_id() == thread_ ? failure_ : std::nullopt; }

  // "4" or "HostLostError: why"; of device `device`, whose number is that of the member, too.
  std::string Sum(size_t site, int32_t execution, int64_t device, float value) {
    float sum = 0;
    const auto failure = program_.Sum(site, execution, 0, device, device, {{&value}, {&sum}, {sizeof(float)}});
    return failure ? failure->kind + ": " + failure->message : std::to_string(static_cast<int>(sum));
  }

  std::shared_ptr<DoublingCollective> collective_;
  const std::thread::id thread_ = std::this_thread::get_id();
  std::optional<Failure> failure_;  // of the session
  CompletionPool pool_;
  Rendezvous rendezvous_{pool_};
  HostProgram program_{rendezvous_};
};

TEST_F(HostCallsTest, devicesMeetInOneExecution) {
  const size_t site = program_.Add(Spec(2, "a"));
  for (int32_t execution = 1; execution <= 2; ++execution) {
    ASSERT_EQ(program_.Begin(0, 0), execution);
    ASSERT_EQ(program_.Begin(0, 1), execution);
    auto other = std::async(std::launch::async, [&] { return Sum(site, execution, 1, 2); });
    EXPECT_EQ(Sum(site, execution, 0, 1), "6");
    EXPECT_EQ(other.get(), "6");
  }
  ASSERT_EQ(collective_->keys.size(), 2);
  EXPECT_EQ(collective_->keys[0].execution, 0);
  EXPECT_EQ(collective_->keys[1].execution, 1);
  EXPECT_EQ(collective_->keys[0].site, collective_->keys[1].site);
}

TEST_F(HostCallsTest, stepsOfOneExecutionAreTold) {
  const size_t site = program_.Add(Spec(1, "a"));
  const int32_t first = program_.Begin(0, 0);
  EXPECT_EQ(Sum(site, first, 0, 1), "2");
  EXPECT_EQ(Sum(site, first, 0, 1), "2");
  EXPECT_EQ(Sum(site, program_.Begin(0, 0), 0, 1), "2");
  std::vector<std::pair<uint32_t, uint32_t>> counts;
  for (const SumKey& key : collective_->keys) counts.emplace_back(key.execution, key.step);
  EXPECT_EQ(counts, (std::vector<std::pair<uint32_t, uint32_t>>{{0, 0}, {0, 1}, {1, 0}}));
}

TEST_F(HostCallsTest, entriesOfOneExecutionHaveOneNumber) {
  EXPECT_EQ(program_.Begin(0, 0), 1);
  EXPECT_EQ(program_.Begin(1, 0), 1);
  EXPECT_EQ(program_.Begin(1, 0), 2);
  EXPECT_EQ(program_.Begin(0, 0), 2);
}

TEST_F(HostCallsTest, executionsWithoutSumsCountWhereSumsAreConditional) {
  SumSpec spec = Spec(1, "a");
  spec.conditional = true;
  const size_t site = program_.Add(std::move(spec));
  program_.Add(Visit());
  program_.Begin(0, 0);
  program_.Begin(0, 0);
  EXPECT_EQ(Sum(site, program_.Begin(0, 0), 0, 1), "2");
  EXPECT_EQ(collective_->keys.at(0).execution, 2);
}

TEST_F(HostCallsTest, namesAreThoseOfInstances) {
  // The same program, called by XLA.
  Instance instance(Spec(1, "a"));
  const auto site = instance.SiteOf(0);
  const size_t own = program_.Add(Spec(1, "a"));
  EXPECT_EQ(Sum(own, program_.Begin(0, 0), 0, 1), "2");
  SumNames names(*collective_, 2048);
  EXPECT_EQ(std::get<SumKey>(names.Name(*site, 7, {2048})), collective_->keys.at(0));
}

TEST_F(HostCallsTest, failureIsReturned) {
  const size_t site = program_.Add(Spec(1, "a"));
  collective_->failure = Failure{"HostLostError", "rank 1"};
  EXPECT_EQ(Sum(site, program_.Begin(0, 0), 0, 1), "HostLostError: rank 1");
}

TEST_F(HostCallsTest, devicesDontWaitForEachOtherInAFailedSession) {
  const size_t site = program_.Add(Spec(2, "a"));
  const int32_t execution = program_.Begin(0, 0);
  program_.Begin(0, 1);
  failure_ = Failure{"HostLostError", "rank 1"};
  EXPECT_EQ(Sum(site, execution, 0, 1), "HostLostError: rank 1");
  EXPECT_EQ(Sum(site, execution, 1, 1), "HostLostError: rank 1");
}

TEST_F(HostCallsTest, withoutASession) {
  const size_t site = program_.Add(Spec(1, "a"));
  rendezvous_.Detach();
  EXPECT_TRUE(Sum(site, program_.Begin(0, 0), 0, 1).starts_with("UsageError: "));
}

TEST_F(HostCallsTest, devicesCountAnewInTheNextSession) {
  const size_t site = program_.Add(Spec(2, "a"));
  const int32_t old = program_.Begin(0, 0);
  program_.Begin(0, 1);
  program_.Begin(0, 1);  // one device was ahead when the session failed
  rendezvous_.Detach();
  Attach();
  EXPECT_TRUE(Sum(site, old, 0, 1).starts_with("ClosedError: "));
  const int32_t first = program_.Begin(0, 0);
  EXPECT_TRUE(Sum(site, old, 0, 1).starts_with("ClosedError: "));
  ASSERT_EQ(program_.Begin(0, 1), first);
  EXPECT_GT(first, old + 1);
  auto other = std::async(std::launch::async, [&] { return Sum(site, first, 1, 2); });
  EXPECT_EQ(Sum(site, first, 0, 1), "6");
  EXPECT_EQ(other.get(), "6");
  EXPECT_EQ(collective_->keys.at(0).execution, 0);
}

TEST_F(HostCallsTest, buffersOfOtherSizesAreRefused) {
  const size_t site = program_.Add(Spec(1, "a"));
  const int32_t execution = program_.Begin(0, 0);
  double value = 1, sum = 0;
  EXPECT_THROW(program_.Sum(site, execution, 0, 0, 0, {{&value}, {&sum}, {sizeof(double)}}), std::invalid_argument);
  EXPECT_THROW(program_.Sum(site, execution, 0, 0, 0, {{}, {}, {}}), std::invalid_argument);
}

}  // namespace
}  // namespace passing
