#include "host/numbers/narrow_float.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "../tests/xla_ffi/host/support/fixed_point_reference.h"

namespace passing {
namespace {

TEST(NarrowFloat, wideningKeepsTheValue) {
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      const auto half = static_cast<uint16_t>(bits);
      const float wide = dtype == DType::kFloat16 ? WidenFloat16(half) : WidenBFloat16(half);
      const long double value = reference::ValueOf(dtype, bits);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(wide)) << bits;
      } else {
        ASSERT_EQ(wide, value) << bits;
        ASSERT_EQ(std::signbit(wide), std::signbit(value)) << bits;
      }
    }
  }
}

// Tries, for each value of the format, half a step above it (a tie), and the floats beside that.
TEST(NarrowFloat, narrowingRoundsToTheNearest) {
  const auto expect = [](float x) {
    ASSERT_EQ(NarrowFloat16(x), reference::Round(DType::kFloat16, x)) << x;
    ASSERT_EQ(NarrowBFloat16(x), reference::Round(DType::kBFloat16, x)) << x;
  };
  for (uint32_t bits = 0; bits < 0x7C00; ++bits) {
    const float value = WidenFloat16(static_cast<uint16_t>(bits));
    const float next = bits + 1 < 0x7C00 ? WidenFloat16(static_cast<uint16_t>(bits + 1)) : 65536.0f;
    const float tie = value + (next - value) / 2;
    for (const float x : {value, std::nextafter(tie, 0.0f), tie, std::nextafter(tie, next)}) expect(x), expect(-x);
  }
  for (uint32_t bits = 0; bits < 0x7F80; ++bits) {
    const uint32_t tie = bits << 16 | 0x8000;
    for (const uint32_t x : {tie - 1, tie, tie + 1}) expect(std::bit_cast<float>(x)), expect(-std::bit_cast<float>(x));
  }
  EXPECT_EQ(NarrowFloat16(std::bit_cast<float>(0xFF800001)) & 0x7FFF, 0x7E00);  // one quiet NaN
  EXPECT_EQ(NarrowBFloat16(std::bit_cast<float>(0xFF800001)) & 0x7FFF, 0x7FC0);
}

}  // namespace
}  // namespace passing
