#include "host/sums/sum_spec.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../tests/xla_ffi/host/sums/sum_spec_example.h"

namespace passing {
namespace {

TEST(SumSpec, everyFieldIsRead) {
  const SumSpec spec = ParseSumSpec(kSumSpecExample);
  EXPECT_EQ(spec.ordinal, 3);
  EXPECT_EQ(spec.program, "jit_step on 4 devices");
  EXPECT_EQ(spec.site, 5);
  EXPECT_EQ(spec.identity, R"({"place":["train.py:41:9 in step"],"stream":"a=b"})");
  EXPECT_EQ(spec.site_name, "train.py:41:9 in step psum of bfloat16[3,4] over d");
  EXPECT_EQ(spec.dtype, DType::kBFloat16);
  EXPECT_EQ(spec.op, Op::kSum);
  EXPECT_EQ(spec.wire_dtype, WireDtype::kInt8);
  EXPECT_EQ(spec.leaf_elements, (std::vector<uint64_t>{12, 70'000'000'000}));
  EXPECT_EQ(spec.member_count, 8);
  EXPECT_EQ(spec.local_member_count, 4);
  EXPECT_EQ(spec.replica_count, 2);
  EXPECT_EQ(spec.world_size, 9);
  EXPECT_FALSE(spec.flat);
  EXPECT_TRUE(spec.conditional);
  EXPECT_EQ(spec.moves, Moves::kScatter);
  EXPECT_EQ(spec.rows_inside, 6u);
  EXPECT_TRUE(spec.rows_alone);
  EXPECT_TRUE(spec.early);
  EXPECT_EQ(spec.root, 7u);
  EXPECT_EQ(spec.devices, "0,1,2048,2049");
  EXPECT_TRUE(spec.residuals);
  EXPECT_FALSE(spec.is_visit());
}

TEST(SumSpec, anythingElseIsRefusedByName) {
  const std::string right = kSumSpecExample;
  const std::pair<const char*, const char*> changes[] = {
      {"site=5\n", ""},                               // a line is missing
      {"site=5\n", "site=5\nsite=5\n"},               // one is there twice
      {"site=5\n", "site\n"},                         // one has no value
      {"site=5\n", "site=5 \n"},                      // more than a number
      {"site=5\n", "site=\n"},                        // no number
      {"world_size=9\n", "world_size=-9\n"},          // no number of this kind
      {"world_size=9\n", "world_size=4294967296\n"},  // one too large
      {"leaf_elements=12,70000000000\n", "leaf_elements=12,,7\n"},
      {"dtype=bfloat16\n", "dtype=float12\n"},
      {"op=sum\n", "op=min\n"},
      {"wire_dtype=int8\n", "wire_dtype=int9\n"},
      {"dtype=bfloat16\n", "dtype=float64\n"},               // which travels full
      {"op=sum\n", "op=max\n"},                              // maxima are of int32
      {"devices=0,1,2048,2049\n", "devices=0,1,2048,2049"},  // breaks off
      {"devices=0,1,2048,2049\n", "devices=0,1,2048,2049\nmore=1\n"},
  };
  for (const auto& [from, to] : changes) {
    SCOPED_TRACE(to);
    std::string wrong = right;
    ASSERT_NE(wrong.find(from), std::string::npos);
    wrong.replace(wrong.find(from), std::string(from).size(), to);
    EXPECT_THROW(ParseSumSpec(wrong), std::invalid_argument);
  }
  try {
    ParseSumSpec("ordinal=3\nsite=5\n");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("It expects program, not \"site=5\""), std::string::npos) << error.what();
  }
  EXPECT_THROW(ParseSumSpec(""), std::invalid_argument);
}

}  // namespace
}  // namespace passing
