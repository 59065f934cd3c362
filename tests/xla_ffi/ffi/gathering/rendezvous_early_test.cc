#include <vector>

#include "../tests/xla_ffi/ffi/gathering/rendezvous_fixture.h"

namespace passing {
namespace {

// Early sums of two devices; XLA may make their calls in any order.
class RendezvousEarlyTest : public RendezvousTest {
 protected:
  static std::shared_ptr<SumSite> MakeEarly(uint64_t hash) {
    auto site = MakeSite(hash, 2);
    ChangeSpec(site).early = true;
    return site;
  }
  void TakeTurns(int32_t run_id, std::vector<Device>& devices) {
    for (int i = 0; i < 2; ++i) rendezvous_.TakeTurn(run_id, kFirstDevice + i, &devices[i].value);
  }
  void Arrive(const std::shared_ptr<SumSite>& site, int32_t run_id, std::vector<Device>& devices, int device) {
    rendezvous_.Arrive(site, devices[device].MakeCall(run_id, device));
  }
  std::vector<uint64_t> started() {
    std::vector<uint64_t> sites;
    for (const Sum& sum : collective_->sums) sites.push_back(sum.key.site);
    return sites;
  }
};

TEST_F(RendezvousEarlyTest, sumsStartInTheOrderOfTheirTurns) {
  const auto first = MakeEarly(1), second = MakeEarly(2), third = MakeEarly(3);
  for (const int32_t run_id : {5, 6}) {
    collective_->DropSums();
    std::vector<Device> of_first(2), of_second(2), of_third(2);
    for (auto* each : {&of_first, &of_second, &of_third}) TakeTurns(run_id, *each);
    for (const int device : {0, 1}) Arrive(third, run_id, of_third, device);
    Arrive(first, run_id, of_first, 1);
    for (const int device : {1, 0}) Arrive(second, run_id, of_second, device);
    EXPECT_EQ(started(), (std::vector<uint64_t>{}));
    Arrive(first, run_id, of_first, 0);
    ASSERT_EQ(started(), (std::vector<uint64_t>{1, 2, 3}));
    for (const size_t sum : {2, 0, 1}) collective_->Complete(sum);
    for (auto* each : {&of_first, &of_second, &of_third}) {
      for (Device& device : *each) EXPECT_EQ(device.Result(), "");
    }
  }
}

TEST_F(RendezvousEarlyTest, whatWaitsForItsTurnFailsWithTheSession) {
  const auto second = MakeEarly(2);
  std::vector<Device> of_first(2), of_second(2);
  TakeTurns(5, of_first);
  TakeTurns(5, of_second);
  for (const int device : {0, 1}) Arrive(second, 5, of_second, device);
  rendezvous_.FailSession({"HostLostError", "gone"});
  for (Device& device : of_second) EXPECT_EQ(device.Result(), "HostLostError: gone");
}

TEST_F(RendezvousEarlyTest, anExecutionThatEndedEarlyHoldsNobodyUp) {
  const auto site = MakeEarly(1);
  std::vector<Device> of_first(2), of_next(2);
  TakeTurns(5, of_first);  // and then the program failed elsewhere
  TakeTurns(6, of_next);
  for (const int device : {0, 1}) Arrive(site, 6, of_next, device);
  ASSERT_EQ(started(), (std::vector<uint64_t>{1}));
  collective_->Complete(0);
  for (Device& device : of_next) EXPECT_EQ(device.Result(), "");
}

}  // namespace
}  // namespace passing
