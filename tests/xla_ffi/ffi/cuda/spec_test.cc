#include "ffi/cuda/spec.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "../tests/xla_ffi/host/sums/sum_spec_example.h"

namespace passing {
namespace {

// As gpu_spec.py writes it, whose test has the same text.
const std::string kGpu = "overlap_group=6\nslice_elements=7\ngpus=-1,2049\ngroups=10,11\nmembers=13,14\nslices=15,16\n";

TEST(CudaSpec, bothTextsAreRead) {
  const CudaSpec spec = ParseCudaSpec(kSumSpecExample, kGpu);
  EXPECT_EQ(spec.site, 5);
  EXPECT_EQ(spec.overlap_group, 6);
  EXPECT_EQ(spec.slice_elements, 7);
  EXPECT_EQ(spec.gpus, (std::vector<int64_t>{-1, 2049}));
  EXPECT_EQ(spec.groups, (std::vector<int64_t>{10, 11}));
  EXPECT_EQ(spec.members, (std::vector<int64_t>{13, 14}));
  EXPECT_EQ(spec.slices, (std::vector<int64_t>{15, 16}));
}

TEST(CudaSpec, slicesAreAddedUpAlready) {
  CudaSpec spec;
  spec.dtype = DType::kBFloat16;
  EXPECT_EQ(spec.dtype_brought(), DType::kBFloat16);
  spec.slice_elements = 4;
  EXPECT_EQ(spec.dtype_brought(), DType::kWideBFloat16);
}

TEST(CudaSpec, anythingElseIsRefused) {
  for (const std::string& gpu : {std::string(), kGpu + "more=1\n", kGpu.substr(0, kGpu.size() - 4) + "\n"}) {
    EXPECT_THROW(ParseCudaSpec(kSumSpecExample, gpu), std::invalid_argument) << gpu;
  }
  EXPECT_THROW(ParseCudaSpec("", kGpu), std::invalid_argument);
}

}  // namespace
}  // namespace passing
