#include "ffi/naming/instance.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

namespace passing {
namespace {

// Modules of different tests must not meet: the registry is the process's.
ModuleId Module(int64_t ordinal) { return {testing::UnitTest::GetInstance()->current_test_info()->name(), ordinal}; }

SumSpec Spec(int64_t ordinal, int64_t site) {
  SumSpec spec;
  spec.program = Module(ordinal).first;
  spec.ordinal = ordinal;
  spec.site = site;
  spec.identity = "sum " + std::to_string(site);
  spec.site_name = "train.py:41 psum of float32[8]";
  spec.leaf_elements = {8};
  spec.member_count = 4;
  spec.local_member_count = 2;
  return spec;
}

uint64_t HashOf(Instance& instance, int64_t group = 0) { return instance.SiteOf(group)->hash; }

// A sum that XLA inlined: only its order of instantiation tells it from the others of this identity.
SumSpec LookAlike(int64_t ordinal, int64_t site = 0) {
  SumSpec spec = Spec(ordinal, site);
  spec.identity = "look-alike";
  spec.world_size = 2;
  return spec;
}

// As the session does when the compilation of a module ended.
std::vector<ModuleId> EndWith(const std::string& fingerprint, int64_t ordinal = 0) {
  const auto asked = EndCompilation({Module(ordinal)});
  for (const ModuleId& module : asked) SetFingerprint(module, fingerprint);
  return asked;
}

TEST(Instance, hostsAgree_whateverTheirOrdinalsSitesAndOtherModules) {
  Instance a0(Spec(0, 0)), a1(Spec(0, 1)), other(Spec(1, 5));
  SumSpec late = Spec(7, 1), early = Spec(7, 0);  // this host lowered its sums in the other order
  late.site = 0;
  early.site = 1;
  Instance b1(late), b0(early);
  EXPECT_EQ(HashOf(a0), HashOf(b0));
  EXPECT_EQ(HashOf(a1), HashOf(b1));
  EXPECT_NE(HashOf(a0), HashOf(a1));
  EXPECT_EQ(a0.SiteOf(0)->executable->program.identities, b0.SiteOf(0)->executable->program.identities);
}

TEST(Instance, executablesKnowTheirSums) {
  SumSpec visit;
  visit.program = Spec(0, 0).program;
  Instance before(visit), first(Spec(0, 0)), second(Spec(0, 1));
  const auto executable = before.executable();
  ASSERT_EQ(executable->sums.size(), 2);
  EXPECT_EQ(executable->sums[0].get(), &first.spec());
  EXPECT_EQ(executable->sums[1].get(), &second.spec());
}

TEST(Instance, lookAlikesAreNumberedBySiteThenByOrder) {
  Instance a2(LookAlike(0, 1)), a0(LookAlike(0)), a1(LookAlike(0));
  EndWith("f");
  Instance b0(LookAlike(1)), b1(LookAlike(1)), b2(LookAlike(1, 1));
  EndWith("f", 1);
  // The order of first execution doesn't matter.
  EXPECT_EQ(HashOf(a2), HashOf(b2));
  EXPECT_EQ(HashOf(b0), HashOf(a0));
  EXPECT_EQ(HashOf(a1), HashOf(b1));
  EXPECT_EQ(std::set({HashOf(a0), HashOf(a1), HashOf(a2)}).size(), 3);
}

TEST(Instance, aVisitBelongsToTheExecutableOfTheSumsAround) {
  SumSpec visit;
  visit.program = Spec(0, 0).program;
  Instance before(visit), sum(Spec(0, 0)), after(visit);
  EndWith("");
  EXPECT_EQ(before.executable(), sum.SiteOf(0)->executable);
  EXPECT_EQ(after.executable(), before.executable());
  EXPECT_TRUE(before.executable()->visits);
  EXPECT_EQ(before.executable()->program.identities, std::vector<std::string>{"sum 0"});

  Instance other(Spec(1, 0));
  EXPECT_NE(HashOf(other), HashOf(sum));  // one host's sums are conditional, the other's aren't

  visit.ordinal = 2;
  Instance alone(visit);
  EXPECT_EQ(alone.executable(), nullptr);
}

TEST(Instance, sumsInLoopsAndBranchesNeedAVisit) {
  SumSpec spec = Spec(0, 0);
  spec.conditional = true;
  spec.world_size = 2;
  Instance alone(spec);
  const auto& refused = alone.SiteOf(0)->executable->refused;
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->kind, "ProgramMismatchError");

  spec.ordinal = 1;
  SumSpec visit;
  visit.program = spec.program;
  visit.ordinal = 1;
  Instance visited(spec), beside(visit);
  EXPECT_FALSE(visited.SiteOf(0)->executable->refused);

  spec.ordinal = 2;
  spec.world_size = 1;
  Instance without_others(spec);
  EXPECT_FALSE(without_others.SiteOf(0)->executable->refused);

  spec.ordinal = 3;
  spec.world_size = kAnyWorldSize;
  Instance elastic(spec);
  EXPECT_TRUE(elastic.SiteOf(0)->executable->refused);
}

TEST(Instance, lookAlikesNeedAFingerprint) {
  Instance a0(LookAlike(0)), a1(LookAlike(0)), other(Spec(0, 7));
  const auto asked = EndCompilation({Module(0)});
  EXPECT_EQ(asked, std::vector<ModuleId>{Module(0)});
  EXPECT_EQ(EndCompilation({Module(0)}), std::vector<ModuleId>{});  // once
  for (Instance* each : {&a0, &a1, &other}) {
    const auto& refused = each->SiteOf(0)->executable->refused;
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->kind, "ProgramMismatchError");
    EXPECT_EQ(refused->message.find("2 sums (train.py:41 psum of float32[8]) of program lookAlikesNeedAFingerprint"), 0)
        << refused->message;
  }
  SetFingerprint(asked[0], "too late");
  EXPECT_EQ(a0.SiteOf(1)->executable->program.fingerprint, "");
}

TEST(Instance, withFingerprintLookAlikesAreSummed) {
  Instance a0(LookAlike(0)), a1(LookAlike(0));
  EXPECT_EQ(EndWith("f").size(), 1);
  EXPECT_FALSE(a0.SiteOf(0)->executable->refused);
  EXPECT_EQ(a0.SiteOf(0)->executable->program.fingerprint, "f");
  EXPECT_EQ(a0.SiteOf(0)->executable->program.identities, (std::vector<std::string>(2, "look-alike")));
  EXPECT_NE(HashOf(a0), HashOf(a1));
}

TEST(Instance, inAWorldOfOneLookAlikesNeedNoFingerprint) {
  SumSpec spec = LookAlike(0);
  spec.world_size = 1;
  Instance a0(spec), a1(spec);
  EXPECT_EQ(EndCompilation({Module(0)}).size(), 0);
  EXPECT_FALSE(a0.SiteOf(0)->executable->refused);
  EXPECT_NE(HashOf(a0), HashOf(a1));
}

TEST(Instance, fingerprintChangesEverySumOfItsProgram) {
  std::set<uint64_t> hashes;
  for (const auto* fingerprint : {"f", "g"}) {
    static int64_t ordinal = 0;
    Instance a0(LookAlike(++ordinal)), a1(LookAlike(ordinal)), other(Spec(ordinal, 7));
    EndWith(fingerprint, ordinal);
    for (Instance* each : {&a0, &a1, &other}) hashes.insert(HashOf(*each));
  }
  EXPECT_EQ(hashes.size(), 6);
}

TEST(Instance, fingerprintIsOfTheLastExecutableOfItsModule) {
  Instance a0(LookAlike(0)), a1(LookAlike(0));
  EXPECT_EQ(EndCompilation({Module(0)}).size(), 1);
  Instance b0(LookAlike(0)), b1(LookAlike(0));
  EXPECT_EQ(EndWith("of b").size(), 1);
  EXPECT_TRUE(a0.SiteOf(0)->executable->refused);
  EXPECT_EQ(b0.SiteOf(0)->executable->program.fingerprint, "of b");
}

TEST(Instance, fingerprintOfAProgramThatIsGone) {
  std::vector<ModuleId> asked;
  {
    Instance a0(LookAlike(0)), a1(LookAlike(0));
    asked = EndCompilation({Module(0)});
  }
  ASSERT_EQ(asked.size(), 1);
  SetFingerprint(asked[0], "f");
  SetFingerprint({"never seen", 0}, "f");
  Instance b0(LookAlike(0)), b1(LookAlike(0));
  EXPECT_TRUE(b0.SiteOf(0)->executable->refused);  // it wasn't meant for this one
}

TEST(Instance, groupsAreApart) {
  Instance a(Spec(0, 0));
  EXPECT_NE(HashOf(a, 0), HashOf(a, 1));
  EXPECT_EQ(a.SiteOf(1), a.SiteOf(1));
}

TEST(Instance, anyDifferenceOfTheProgramsChangesEverySite) {
  const auto hash_with = [](auto change) {
    static int64_t ordinal = 0;
    SumSpec first = Spec(++ordinal, 0), second = Spec(ordinal, 1);
    change(second);
    Instance a(first), b(second);
    return HashOf(a);
  };
  std::set<uint64_t> hashes{hash_with([](SumSpec&) {})};
  EXPECT_TRUE(hashes.insert(hash_with([](SumSpec& spec) { spec.identity += " "; })).second);
  EXPECT_TRUE(hashes.insert(hash_with([](SumSpec& spec) { spec.op = Op::kMax; })).second);
  EXPECT_TRUE(hashes.insert(hash_with([](SumSpec& spec) { spec.devices = "TPU 0"; })).second);
  EXPECT_TRUE(hashes.insert(hash_with([](SumSpec& spec) { spec.dtype = DType::kInt32; })).second);
  EXPECT_TRUE(hashes.insert(hash_with([](SumSpec& spec) { spec.leaf_elements = {4, 4}; })).second);
  EXPECT_TRUE(hashes.insert(hash_with([](SumSpec& spec) { spec.leaf_elements = {9}; })).second);
  EXPECT_TRUE(hashes.insert(hash_with([](SumSpec& spec) { spec.member_count = 5; })).second);
  EXPECT_FALSE(hashes.insert(hash_with([](SumSpec&) {})).second);
  // Values that may differ between hosts of one job don't change the hash.
  EXPECT_FALSE(hashes.insert(hash_with([](SumSpec& spec) { spec.site = 2; })).second);
  EXPECT_FALSE(hashes.insert(hash_with([](SumSpec& spec) { spec.site_name += " "; })).second);
  EXPECT_FALSE(hashes.insert(hash_with([](SumSpec& spec) { spec.local_member_count = 1; })).second);
  EXPECT_FALSE(hashes.insert(hash_with([](SumSpec& spec) { spec.replica_count = 2; })).second);
}

TEST(Instance, numberOfCopiesIsPartOfTheProgram) {
  Instance a0(Spec(0, 0)), a1(Spec(0, 0));
  Instance b0(Spec(1, 0));
  EXPECT_NE(HashOf(a0), HashOf(b0));
}

TEST(Instance, instancesThatAreGoneBeforeExecutionDontCount) {
  auto gone = std::make_unique<Instance>(Spec(0, 0));
  Instance a(Spec(0, 0));
  gone.reset();
  Instance b(Spec(1, 0));
  EXPECT_EQ(HashOf(a), HashOf(b));
}

TEST(Instance, instantiatedAfterExecutionIsAnotherExecutable) {
  Instance a(Spec(0, 0));
  const uint64_t hash = HashOf(a);
  Instance b(Spec(0, 0));
  EXPECT_EQ(HashOf(b), hash);  // the same program, compiled again
  EXPECT_NE(a.SiteOf(0)->executable, b.SiteOf(0)->executable);
  EXPECT_EQ(HashOf(a), hash);
}

TEST(Instance, twoExecutablesOfOneModuleBeforeEitherRuns) {
  Instance a0(Spec(0, 0)), a1(Spec(0, 0));
  EndCompilation({Module(0)});
  Instance b0(Spec(0, 0)), b1(Spec(0, 0));
  EndCompilation({Module(0)});
  EXPECT_EQ(HashOf(b1), HashOf(a1));
  EXPECT_EQ(HashOf(a0), HashOf(b0));
  EXPECT_NE(a0.SiteOf(0)->executable, b0.SiteOf(0)->executable);
  EXPECT_EQ(a0.SiteOf(0)->executable, a1.SiteOf(0)->executable);
}

TEST(Instance, endOfAnotherModulesCompilationChangesNothing) {
  Instance a0(Spec(0, 0));
  EndCompilation({Module(1), {"another", 0}});
  Instance a1(Spec(0, 0));
  EXPECT_NE(HashOf(a0), HashOf(a1));
  EXPECT_EQ(a0.SiteOf(0)->executable, a1.SiteOf(0)->executable);
}

TEST(Instance, closedProgramOutlivesTheRegistrysNextOne) {
  auto a = std::make_unique<Instance>(Spec(0, 0));
  EndCompilation({Module(0)});
  Instance b0(Spec(0, 0));
  a.reset();  // was never executed; must not close the program that b0 opened
  Instance b1(Spec(0, 0));
  EXPECT_EQ(b0.SiteOf(0)->executable, b1.SiteOf(0)->executable);
  EXPECT_NE(HashOf(b0), HashOf(b1));
}

}  // namespace
}  // namespace passing
