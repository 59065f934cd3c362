#include "host/numbers/moved_bits.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "../tests/xla_ffi/host/support/block_sums.h"
#include "../tests/xla_ffi/host/support/fixed_point_reference.h"
#include "host/numbers/fixed_point.h"
#include "wire/lanes.h"

namespace passing {
namespace {

constexpr DType kFloats[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};

// Any bits: -0, denormals, infinities and NaN with every payload.
Bytes AnyBits(DType dtype, size_t count, std::mt19937_64& random) {
  Bytes bytes(count * SizeOf(dtype));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  for (size_t i = 0; i < count; i += 3) {  // what random bits seldom are
    const uint64_t sign = uint64_t{1} << (8 * SizeOf(dtype) - 1);
    const uint64_t infinity = reference::Round(dtype, HUGE_VALL);
    const uint64_t values[] = {0, sign, 1, sign | 1, infinity, sign | infinity, infinity | 1, infinity | 2};
    SetBits(dtype, bytes.data(), i, values[random() % std::size(values)]);
  }
  return bytes;
}

TEST(MovedBits, arriveAtEveryRank) {
  std::mt19937_64 random(1);
  for (DType dtype : kFloats) {
    for (const bool precise : {false, true}) {
      for (const uint32_t ranks : {1u, 2u, 128u, 129u, kMaxWorldSize}) {
        const ElementFormat format{.dtype = dtype, .world_size = ranks, .precise = precise};
        for (size_t count = 1; count < 40; ++count) {
          const Bytes elements = AnyBits(dtype, count, random);
          const Bytes zeros(elements.size());
          Bytes lanes(4 * LaneCount(format, count) + 1, 0xA5), none(lanes), out(elements.size() + 1, 0x5A);
          const void* input = elements.data();
          EXPECT_EQ(EncodeLanes(format, {&input, 1}, count, kMovedBits, lanes.data()), 0);
          EXPECT_EQ(lanes.back(), 0xA5);
          input = zeros.data();
          EncodeLanes(format, {&input, 1}, count, kMovedBits, none.data());
          none.pop_back();
          EXPECT_EQ(none, Bytes(none.size()));  // so the sum of lanes is the owner's
          void* output = out.data();
          DecodeLanes(format, lanes.data(), count, kMovedBits, {&output, 1});
          EXPECT_EQ(out.back(), 0x5A);
          out.pop_back();
          ASSERT_EQ(out, elements) << int(dtype) << ' ' << precise << ' ' << ranks << ' ' << count;
        }
      }
    }
  }
}

// The other devices of the owner have +0. Half precision is added up over the devices in float32, and comes back whole,
// NaN that signals among them.
TEST(MovedBits, ofOneDeviceAmongSeveral) {
  std::mt19937_64 random(2);
  for (DType dtype : kFloats) {
    const ElementFormat format{.dtype = dtype, .world_size = 2};
    const Bytes elements = AnyBits(dtype, 50, random), zeros(elements.size());
    const void *own = elements.data(), *none = zeros.data();
    for (const std::vector<const void*>& inputs : {std::vector{none, own, none}, std::vector{own, none}}) {
      EXPECT_NE(BlockExponent(format, inputs, 50), kNoExponent);
      Bytes lanes(4 * LaneCount(format, 50)), out(elements.size());
      EncodeLanes(format, inputs, 50, kMovedBits, lanes.data());
      void* output = out.data();
      DecodeLanes(format, lanes.data(), 50, kMovedBits, {&output, 1});
      EXPECT_EQ(out, elements) << int(dtype);
    }
  }
}

TEST(MovedBits, aBlockIsOnlyFreeIfAllOfItsBitsAreZero) {
  for (DType dtype : kFloats) {
    const ElementFormat format{.dtype = dtype, .world_size = 2};
    Bytes elements(3 * SizeOf(dtype));
    const void* input = elements.data();
    EXPECT_EQ(BlockExponent(format, {&input, 1}, 3), kNoExponent);
    for (const long double value : {-0.0L, HUGE_VALL, std::numeric_limits<long double>::quiet_NaN()}) {
      SetBits(dtype, elements.data(), 2, reference::Round(dtype, value));
      EXPECT_EQ(BlockExponent(format, {&input, 1}, 3), kMinExponent);
    }
  }
}

}  // namespace
}  // namespace passing
