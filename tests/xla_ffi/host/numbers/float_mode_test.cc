#include "host/numbers/float_mode.h"

#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <random>
#include <vector>

#include "../tests/xla_ffi/host/support/block_sums.h"
#include "host/numbers/host_elements.h"

namespace passing {
namespace {

#if defined(__x86_64__)
// XLA's threads flush denormals to zero; whatever the thread's mode, the bits are the same, and the mode is left alone.
TEST(FloatMode, modeOfTheThreadDoesNotMatter) {
  std::mt19937_64 random(12);
  for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    for (Kind kind : {Kind::kTiny, Kind::kHugeAndTiny}) {
      const std::vector<Bytes> buffers = {RandomElements(dtype, kind, 100, random),
                                          RandomElements(dtype, kind, 100, random)};
      const auto inputs = Pointers(buffers);
      const auto run = [&] {
        Result result = SumOverRanks(dtype, {inputs, inputs, {inputs[0]}}, 100);
        Bytes local(result.output.size());
        void* local_output = local.data();
        SumLocal(dtype, inputs, 100, {&local_output, 1});
        result.output.insert(result.output.end(), local.begin(), local.end());
        return result;
      };
      const Result want = run();
      const unsigned before = _mm_getcsr();
      _mm_setcsr(before | 0xE040);  // FTZ, DAZ, round toward zero
      const Result got = run();
      const unsigned after = _mm_getcsr();
      _mm_setcsr(before);
      EXPECT_EQ((after ^ before) & 0xE040, 0xE040u);
      EXPECT_EQ(got.exponent, want.exponent);
      EXPECT_EQ(got.lanes, want.lanes);
      EXPECT_EQ(got.output, want.output);
    }
  }
}
#endif

}  // namespace
}  // namespace passing
