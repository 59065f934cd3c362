// A sum's description as Python writes it. The test of sum_spec.py reads this file, too: each field has a value of its
// own, so that neither side can take one for another.
#ifndef TESTS_XLA_FFI_HOST_SUMS_SUM_SPEC_EXAMPLE_H_
#define TESTS_XLA_FFI_HOST_SUMS_SUM_SPEC_EXAMPLE_H_

inline constexpr char kSumSpecExample[] = R"(ordinal=3
program=jit_step on 4 devices
site=5
identity={"place":["train.py:41:9 in step"],"stream":"a=b"}
site_name=train.py:41:9 in step psum of bfloat16[3,4] over d
dtype=bfloat16
leaf_elements=12,70000000000
member_count=8
local_member_count=4
replica_count=2
op=sum
wire_dtype=int8
residuals=1
world_size=9
flat=0
conditional=1
moves=scatter
rows_inside=6
rows_alone=1
early=1
root=7
devices=0,1,2048,2049
)";

#endif  // TESTS_XLA_FFI_HOST_SUMS_SUM_SPEC_EXAMPLE_H_
