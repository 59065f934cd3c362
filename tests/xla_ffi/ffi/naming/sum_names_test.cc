#include "ffi/naming/sum_names.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "../tests/xla_ffi/ffi/make_site.h"

namespace passing {
namespace {

// Hears of programs, and never sums.
class Listener : public Collective {
 public:
  uint32_t world_size() const override { return 2; }
  void Start(Sum) override { FAIL(); }
  void Announce(const ProgramInfo& program) override { announced.push_back(program.name + " on " + program.devices); }
  std::vector<std::string> announced;
};

constexpr int64_t kFirstDevice = 2048;

class SumNamesTest : public testing::Test {
 protected:
  std::variant<SumKey, Failure> Name(const std::shared_ptr<SumSite>& site, int32_t run_id,
                                     std::vector<int64_t> devices = {0}) {
    for (int64_t& device : devices) device += kFirstDevice;
    return names_.Name(*site, run_id, std::move(devices));
  }
  // That it has none comes as a key that no sum has here.
  SumKey Key(const std::shared_ptr<SumSite>& site, int32_t run_id, std::vector<int64_t> devices = {0}) {
    const auto name = Name(site, run_id, std::move(devices));
    const auto* failure = std::get_if<Failure>(&name);
    EXPECT_EQ(failure, nullptr) << failure->message;
    return failure ? SumKey{} : std::get<SumKey>(name);
  }
  // "" if it has a key.
  std::string Refusal(const std::shared_ptr<SumSite>& site, int32_t run_id) {
    const auto name = Name(site, run_id);
    const auto* failure = std::get_if<Failure>(&name);
    return failure ? failure->kind + ": " + failure->message : "";
  }
  void Visit(const std::shared_ptr<SumSite>& site, int32_t run_id, int64_t device) {
    names_.Visit(site->executable, run_id, kFirstDevice + device);
  }

  Listener session_;
  SumNames names_{session_, kFirstDevice, /*max_names=*/2};
};

TEST_F(SumNamesTest, countsExecutionsAndSteps) {
  const auto site = MakeSite(7, 1);
  EXPECT_EQ(Key(site, 10), (SumKey{7, 0, 0}));
  EXPECT_EQ(Key(site, 10), (SumKey{7, 0, 1}));
  EXPECT_EQ(Key(site, 11), (SumKey{7, 1, 0}));
  EXPECT_EQ(Key(site, INT32_MAX), (SumKey{7, 2, 0}));
  EXPECT_EQ(Key(site, INT32_MIN), (SumKey{7, 3, 0}));  // run ids wrap
  EXPECT_TRUE(Refusal(site, INT32_MAX).starts_with("ProgramMismatchError: two executions"));
}

TEST_F(SumNamesTest, runIdsOfTwoExecutablesArentCompared) {
  const auto site = MakeSite(7, 1), again = MakeSite(7, 1);  // the same program, compiled again
  EXPECT_EQ(Key(site, 11), (SumKey{7, 0, 0}));
  EXPECT_EQ(Key(again, -5), (SumKey{7, 1, 0}));
}

TEST_F(SumNamesTest, aProgramStaysOnOneKindOfDevice) {
  const auto site = MakeSite(7, 1), on_gpu = MakeSite(7, 1);
  Change(on_gpu).platform = "cuda";
  EXPECT_EQ(Key(on_gpu, 11), (SumKey{7, 0, 0}));
  EXPECT_TRUE(Refusal(site, 12).starts_with("ProgramMismatchError: the program of train.py:41 ran on CPU devices"));
}

// Hosts may number their devices from anywhere, and lay out their meshes in any order.
TEST_F(SumNamesTest, nameCoversTheDevicesIndices) {
  const auto site = MakeLocalSite(7, 2);
  const SumKey key = Key(site, 10, {0, 1});
  SumNames from_zero(session_, 0);
  EXPECT_EQ(std::get<SumKey>(from_zero.Name(*site, 10, {0, 1})), key);
  EXPECT_EQ(Key(site, 11, {1, 0}), (SumKey{key.site, 1, 0}));
  EXPECT_NE(Key(site, 12, {0, 2}).site, key.site);
}

TEST_F(SumNamesTest, programsAreAnnouncedOnceForEachSetOfDevices) {
  const auto site = MakeLocalSite(7, 1), again = MakeLocalSite(7, 1);
  Key(site, 10);
  Key(site, 11);
  Key(again, 3);
  Key(site, 10, {1});
  EXPECT_EQ(session_.announced, (std::vector<std::string>{"program 7 on 0", "program 7 on 1"}));
}

// A host that skips a sum in one execution must not meet, with the next one, what others skip later.
TEST_F(SumNamesTest, whereSumsAreConditionalVisitsCountTheExecutions) {
  const auto site = MakeLocalSite(7, 2), again = MakeLocalSite(7, 2);  // the same program, compiled again
  Change(site).visits = Change(again).visits = true;
  for (int64_t device : {0, 1}) Visit(site, 10, device);
  const SumKey first = Key(site, 10, {0, 1});
  EXPECT_EQ(first, (SumKey{first.site, 0, 0}));
  EXPECT_EQ(Key(site, 10, {0, 1}), (SumKey{first.site, 0, 1}));  // the second step of a loop
  for (int64_t device : {0, 1}) {
    Visit(site, 11, device);  // comes to no sum
    Visit(again, 3, device);
    Visit(again, 3, device);  // has two loops
  }
  Visit(again, 4, 1);  // this device is ahead
  EXPECT_EQ(Key(again, 3, {0, 1}), (SumKey{first.site, 2, 0}));
}

TEST_F(SumNamesTest, sumOfAnExecutionThatTheDeviceIsNotIn) {
  const auto site = MakeSite(7, 1);
  Change(site).visits = true;
  Visit(site, 11, 0);
  EXPECT_TRUE(Refusal(site, 10).starts_with("ProgramMismatchError: two executions"));
}

// Counts of executions are never forgotten.
TEST_F(SumNamesTest, moreNamesThanItCountsAreRefused) {
  const std::shared_ptr<SumSite> sites[] = {MakeSite(7, 1), MakeSite(8, 1), MakeSite(9, 1)};
  EXPECT_EQ(Key(sites[0], 10), (SumKey{7, 0, 0}));
  EXPECT_EQ(Key(sites[1], 10), (SumKey{8, 0, 0}));
  EXPECT_EQ(Key(sites[0], 11), (SumKey{7, 1, 0}));  // known already
  EXPECT_TRUE(Refusal(sites[2], 10).starts_with("UsageError: train.py:41: "));
}

TEST_F(SumNamesTest, moreVisitsThanItCountsAreRefusedWithTheirSums) {
  const auto site = MakeSite(7, 1), other = MakeSite(8, 1);
  Change(site).visits = Change(other).visits = true;
  for (int64_t device : {0, 1}) Visit(site, 12, device);
  Visit(other, 11, 0);  // not counted
  EXPECT_TRUE(Refusal(other, 11).starts_with("UsageError: program 8: "));
}

}  // namespace
}  // namespace passing
