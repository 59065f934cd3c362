#include "ffi/instance.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <thread>

namespace passing {
namespace {

// Modules of different tests must not meet: the registry is the process's.
SiteInfo Info(int64_t ordinal, int64_t site, const std::string& program = "") {
  SiteInfo info;
  info.program = program.empty() ? testing::UnitTest::GetInstance()->current_test_info()->name() : program;
  info.ordinal = ordinal;
  info.site = site;
  info.site_name = "train.py:41 psum of float32[8]";
  info.leaf_elements = {8};
  info.member_count = 4;
  info.local_member_count = 2;
  return info;
}

uint64_t HashOf(Instance& instance, int64_t group = 0) { return instance.SiteOf(group)->hash; }

TEST(Instance, hostsAgree_whateverTheirOrdinalsAndOtherModules) {
  Instance a0(Info(0, 0)), a1(Info(0, 1)), other(Info(1, 5));
  Instance b1(Info(7, 1)), b0(Info(7, 0));
  EXPECT_EQ(HashOf(a0), HashOf(b0));
  EXPECT_EQ(HashOf(a1), HashOf(b1));
  EXPECT_NE(HashOf(a0), HashOf(a1));
}

TEST(Instance, copiesOfOneSiteAreRankedInOrder) {
  Instance a0(Info(0, 0)), a1(Info(0, 0)), a2(Info(0, 0));
  Instance b0(Info(1, 0)), b1(Info(1, 0)), b2(Info(1, 0));
  // The order of first execution doesn't matter.
  EXPECT_EQ(HashOf(a2), HashOf(b2));
  EXPECT_EQ(HashOf(b0), HashOf(a0));
  EXPECT_EQ(HashOf(a1), HashOf(b1));
  EXPECT_EQ(std::set({HashOf(a0), HashOf(a1), HashOf(a2)}).size(), 3);
}

TEST(Instance, groupsAreApart) {
  Instance a(Info(0, 0));
  EXPECT_NE(HashOf(a, 0), HashOf(a, 1));
  EXPECT_EQ(a.SiteOf(1), a.SiteOf(1));
}

TEST(Instance, anyDifferenceOfTheProgramsChangesEverySite) {
  const auto hash_with = [](auto change) {
    static int64_t ordinal = 0;
    SiteInfo first = Info(++ordinal, 0), second = Info(ordinal, 1);
    change(second);
    Instance a(first), b(second);
    return HashOf(a);
  };
  std::set<uint64_t> hashes{hash_with([](SiteInfo&) {})};
  EXPECT_TRUE(hashes.insert(hash_with([](SiteInfo& info) { info.site = 2; })).second);
  EXPECT_TRUE(hashes.insert(hash_with([](SiteInfo& info) { info.site_name += " "; })).second);
  EXPECT_TRUE(hashes.insert(hash_with([](SiteInfo& info) { info.dtype = DType::kInt32; })).second);
  EXPECT_TRUE(hashes.insert(hash_with([](SiteInfo& info) { info.leaf_elements = {4, 4}; })).second);
  EXPECT_TRUE(hashes.insert(hash_with([](SiteInfo& info) { info.leaf_elements = {9}; })).second);
  EXPECT_TRUE(hashes.insert(hash_with([](SiteInfo& info) { info.member_count = 5; })).second);
  EXPECT_FALSE(hashes.insert(hash_with([](SiteInfo&) {})).second);
  // What differs between hosts of one job does not.
  EXPECT_FALSE(hashes.insert(hash_with([](SiteInfo& info) { info.local_member_count = 1; })).second);
  EXPECT_FALSE(hashes.insert(hash_with([](SiteInfo& info) { info.replica_count = 2; })).second);
}

TEST(Instance, numberOfCopiesIsPartOfTheProgram) {
  Instance a0(Info(0, 0)), a1(Info(0, 0));
  Instance b0(Info(1, 0));
  EXPECT_NE(HashOf(a0), HashOf(b0));
}

TEST(Instance, instancesThatAreGoneBeforeExecutionDontCount) {
  auto gone = std::make_unique<Instance>(Info(0, 0));
  Instance a(Info(0, 0));
  gone.reset();
  Instance b(Info(1, 0));
  EXPECT_EQ(HashOf(a), HashOf(b));
}

TEST(Instance, instantiatedAfterExecutionIsAnotherExecutable) {
  Instance a(Info(0, 0));
  const uint64_t hash = HashOf(a);
  Instance b(Info(0, 0));
  EXPECT_EQ(HashOf(b), hash);  // the same program, compiled again
  EXPECT_NE(a.SiteOf(0)->executions, b.SiteOf(0)->executions);
  EXPECT_EQ(HashOf(a), hash);
}

TEST(Instance, twoExecutablesOfOneModuleBeforeEitherRuns) {
  Instance a0(Info(0, 0)), a1(Info(0, 0));
  EndCompilation();
  Instance b0(Info(0, 0)), b1(Info(0, 0));
  EndCompilation();
  EXPECT_EQ(HashOf(b1), HashOf(a1));
  EXPECT_EQ(HashOf(a0), HashOf(b0));
  EXPECT_NE(a0.SiteOf(0)->executions, b0.SiteOf(0)->executions);
  EXPECT_EQ(a0.SiteOf(0)->executions, a1.SiteOf(0)->executions);
}

TEST(Instance, endOfAnotherThreadsCompilationChangesNothing) {
  Instance a0(Info(0, 0));
  std::thread(EndCompilation).join();
  Instance a1(Info(0, 0));
  EXPECT_NE(HashOf(a0), HashOf(a1));
  EXPECT_EQ(a0.SiteOf(0)->executions, a1.SiteOf(0)->executions);
}

TEST(Instance, closedProgramOutlivesTheRegistrysNextOne) {
  auto a = std::make_unique<Instance>(Info(0, 0));
  EndCompilation();
  Instance b0(Info(0, 0));
  a.reset();  // was never executed; must not close the program that b0 opened
  Instance b1(Info(0, 0));
  EXPECT_EQ(b0.SiteOf(0)->executions, b1.SiteOf(0)->executions);
  EXPECT_NE(HashOf(b0), HashOf(b1));
}

}  // namespace
}  // namespace passing
