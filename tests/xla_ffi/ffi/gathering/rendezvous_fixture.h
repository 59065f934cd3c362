// A rendezvous whose sums the test completes.
#ifndef TESTS_XLA_FFI_FFI_GATHERING_RENDEZVOUS_FIXTURE_H_
#define TESTS_XLA_FFI_FFI_GATHERING_RENDEZVOUS_FIXTURE_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../tests/xla_ffi/ffi/make_site.h"
#include "ffi/gathering/rendezvous.h"

namespace passing {
namespace {

using namespace std::chrono_literals;

// Keeps the sums it is given until the test completes them.
class HeldCollective : public Collective {
 public:
  uint32_t world_size() const override { return ranks; }
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
  uint32_t ranks = 2;
  std::vector<Sum> sums;
  std::vector<std::pair<uint64_t, uint64_t>> ready;  // of which site how many elements
  std::promise<std::string> failed;                  // the kind
  std::vector<std::string> announced;                // and how many sums had been started
};

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

  // `collective`: in place of collective_.
  void Attach(double deadline_s = 60, std::shared_ptr<Collective> flat = nullptr,
              std::shared_ptr<Collective> collective = nullptr) {
    ASSERT_TRUE(rendezvous_.Attach({.collective = collective ? std::move(collective) : collective_,
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

}  // namespace
}  // namespace passing

#endif  // TESTS_XLA_FFI_FFI_GATHERING_RENDEZVOUS_FIXTURE_H_
