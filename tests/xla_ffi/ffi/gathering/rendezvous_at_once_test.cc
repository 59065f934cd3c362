// Sums that are done before their start returns.
#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

#include "../tests/xla_ffi/ffi/gathering/rendezvous_fixture.h"
#include "ffi/gathering/rendezvous.h"

namespace passing {
namespace {

// Doubles the inputs' sum while it is started, on this thread or on another.
struct PromptCollective : Collective {
  uint32_t world_size() const override { return 2; }
  void Start(Sum sum) override {
    callers_wait.push_back(sum.caller_waits);
    float total = 0;
    for (const void* input : sum.inputs) total += *static_cast<const float*>(input);
    for (void* output : sum.outputs) *static_cast<float*>(output) = 2 * total;
    const auto end = [&] { sum.done(failure ? &*failure : nullptr); };
    by_another_thread ? std::thread(end).join() : end();
  }
  std::optional<Failure> failure;
  bool by_another_thread = false;
  std::vector<bool> callers_wait;
};

class RendezvousAtOnceTest : public RendezvousTest {
 protected:
  RendezvousAtOnceTest() {
    rendezvous_.Detach();
    Attach(60, nullptr, prompt_);
  }

  // Which thread completes the call.
  std::future<std::thread::id> ThreadOf(Call& call) {
    const auto promise = std::make_shared<std::promise<std::thread::id>>();
    call.done = [promise, done = std::move(call.done)](const Failure* failure) {
      done(failure);
      promise->set_value(std::this_thread::get_id());
    };
    return promise->get_future();
  }

  const std::shared_ptr<PromptCollective> prompt_ = std::make_shared<PromptCollective>();
};

TEST_F(RendezvousAtOnceTest, theLastCallEndsBeforeItReturns_theOthersOnThePool) {
  const auto site = MakeSite(7, 2);
  for (const bool fails : {false, true}) {
    if (fails) prompt_->failure = {"HostLostError", "rank 1 is gone"};
    for (const int64_t first : {0, 1}) {
      const auto run_id = static_cast<int32_t>(10 * fails + first);
      Device one{1}, two{2};
      Call call = one.MakeCall(run_id, first), last = two.MakeCall(run_id, 1 - first);
      auto pool = ThreadOf(call), own = ThreadOf(last);
      rendezvous_.Arrive(site, std::move(call));
      rendezvous_.Arrive(site, std::move(last));
      ASSERT_EQ(own.wait_for(0s), std::future_status::ready);
      EXPECT_EQ(own.get(), std::this_thread::get_id());
      EXPECT_NE(pool.get(), std::this_thread::get_id());
      for (Device* device : {&one, &two}) {
        EXPECT_EQ(device->Result(), fails ? "HostLostError: rank 1 is gone" : "");
        EXPECT_EQ(device->value, 6);
      }
    }
  }
  EXPECT_EQ(prompt_->callers_wait, std::vector<bool>(4, true));
}

TEST_F(RendezvousAtOnceTest, replicasShareTheResult) {
  const auto site = MakeSite(7, 1, /*replicas=*/2);
  Device one{1}, two{1};
  rendezvous_.Arrive(site, one.MakeCall(1, 0, 0));
  rendezvous_.Arrive(site, two.MakeCall(1, 0, 1));
  EXPECT_EQ(two.result.wait_for(0s), std::future_status::ready);
  EXPECT_EQ(one.Result(), "");
  EXPECT_EQ(one.value, 2);
  EXPECT_EQ(two.value, 2);
}

// That thread may be the transport's, which must not carry out what follows the sum.
TEST_F(RendezvousAtOnceTest, whatAnotherThreadCompletesGoesToThePool) {
  prompt_->by_another_thread = true;
  Device one{1};
  Call call = one.MakeCall(1, 0);
  auto pool = ThreadOf(call);
  rendezvous_.Arrive(MakeSite(7, 1), std::move(call));
  EXPECT_NE(pool.get(), std::this_thread::get_id());
  EXPECT_EQ(one.Result(), "");
  EXPECT_EQ(one.value, 2);
}

// Its program goes on when the sum has started: it isn't to be held up.
TEST_F(RendezvousAtOnceTest, whoFinishesLaterDoesntWait) {
  Device one{1};
  Call call = one.MakeCall(1, 0);
  std::promise<void> started;
  call.started = [&] { started.set_value(); };
  rendezvous_.Arrive(MakeSite(7, 1), std::move(call));
  EXPECT_EQ(prompt_->callers_wait, std::vector<bool>{false});
  EXPECT_EQ(one.Result(), "");
  started.get_future().wait();
}

}  // namespace
}  // namespace passing
