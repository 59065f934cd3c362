#include "host/numbers/fixed_point.h"

#include <gtest/gtest.h>

#include <random>

#include "../tests/xla_ffi/host/support/block_sums.h"
#include "../tests/xla_ffi/host/support/fixed_point_reference.h"
#include "wire/header.h"
#include "wire/lanes.h"

namespace passing {
namespace {

using reference::BitsAt;
using reference::kDTypes;
using reference::ValueOf;

TEST(FixedPoint, HeadroomBits) {
  EXPECT_EQ(HeadroomBits(1), 0u);
  EXPECT_EQ(HeadroomBits(2), 1u);
  EXPECT_EQ(HeadroomBits(3), 2u);
  EXPECT_EQ(HeadroomBits(8), 3u);
  EXPECT_EQ(HeadroomBits(63), 6u);
  EXPECT_EQ(HeadroomBits(64), 6u);
  EXPECT_EQ(HeadroomBits(kMaxWorldSize), 10u);
}

TEST(FixedPoint, LaneCount) {
  for (DType dtype : kDTypes) {
    const size_t size = SizeOf(dtype);
    const bool pairs = dtype == DType::kBFloat16, halves = size == 2 && !IsFloat(dtype);
    const size_t each = size < 8 ? 1 : dtype == DType::kFloat64 ? 2 : 3;
    const auto lanes = [&](size_t count, uint32_t world_size) {
      return LaneCount({.dtype = dtype, .world_size = world_size}, count);
    };
    EXPECT_EQ(lanes(0, 1), 0u);
    EXPECT_EQ(lanes(7, 16), pairs ? 4 : size == 1 ? 3 : halves ? 6 : 7 * each);
    EXPECT_EQ(lanes(7, 17), pairs || size == 1 ? 4 : halves ? 6 : 7 * each);
    EXPECT_EQ(lanes(8, 128), pairs || size == 1 ? 4 : halves ? 6 : 8 * each);
    EXPECT_EQ(lanes(7, 129), size == 1 ? 4 : halves ? 6 : 7 * each);
    EXPECT_EQ(lanes(7, 257), size == 1 ? 4 : halves ? 6 : 7 * each);
    EXPECT_EQ(lanes(7, 258), 7 * each);
    for (WireDtype wire_dtype : {WireDtype::kInt16, WireDtype::kInt8, WireDtype::kInt4}) {
      const size_t together = 32 / BitsOf(wire_dtype);
      const ElementFormat format{.dtype = dtype, .wire_dtype = wire_dtype, .world_size = 7};
      EXPECT_EQ(LaneCount(format, 17), MayBeNarrow(dtype) ? 16 / together + 1 : lanes(17, 7));
    }
  }
}

// Exponents cost a packet, or 1 %.
TEST(FixedPoint, BlockElements) {
  const ElementFormat floats{.dtype = DType::kFloat32, .world_size = 2};
  const std::pair<uint64_t, uint32_t> blocks[] = {{1, 1},        {120, 1},      {121, 2},      {480, 4},
                                                  {481, 8},      {3840, 32},    {15'360, 128}, {15'361, 256},
                                                  {61'440, 256}, {1 << 30, 256}};
  for (const auto& [leaf, elements] : blocks) {
    EXPECT_EQ(BlockElements(floats, leaf), elements) << leaf;
    EXPECT_LE(2 * ((leaf + elements - 1) / elements), std::max<uint64_t>(240, leaf / 120)) << leaf;
  }
  EXPECT_EQ(BlockElements({.dtype = DType::kBFloat16, .world_size = 2}, 1), 2u);  // these share a lane
  EXPECT_EQ(BlockElements({.dtype = DType::kFloat32, .wire_dtype = WireDtype::kInt8, .world_size = 2}, 1),
            kMaxBlockElements);
}

TEST(BlockExponent, IsTheSmallestPowerOfTwoAbove) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    const uint64_t infinity = reference::Round(dtype, std::numeric_limits<long double>::infinity());
    std::mt19937_64 random(1);
    for (int i = 0; i < 4000; ++i) {
      // Every bit pattern next to a power of two is among them for the narrow dtypes.
      const int shift = reference::FormatOf(dtype).precision - 1;
      uint64_t bits = i < 2000 ? random() % infinity : ((random() % (infinity >> shift)) << shift) + i % 3 - 1;
      bits = std::min(bits % infinity, infinity - 1);
      int expected = kMinExponent;  // where nothing is finite but zeros
      if (bits != 0) std::frexp(ValueOf(dtype, bits), &expected);
      Bytes buffer(3 * SizeOf(dtype));
      SetBits(dtype, buffer.data(), 1, bits | (i & 1 ? uint64_t{1} << (8 * SizeOf(dtype) - 1) : 0));
      SetBits(dtype, buffer.data(), 2, i & 2 ? infinity : infinity + 1);  // infinities and NaN don't count
      const void* input = buffer.data();
      ASSERT_EQ(BlockExponent({.dtype = dtype}, {&input, 1}, 3), expected) << "bits " << bits;
    }
  }
}

TEST(BlockExponent, IsOfTheSumOverDevices) {
  const std::vector<Bytes> buffers = {BytesOf<float>({3, 1, 1e-40f}), BytesOf<float>({-3, 1, 1e-40f})};
  EXPECT_EQ(BlockExponent({.dtype = DType::kFloat32}, Pointers(buffers), 3), 2);
  EXPECT_EQ(BlockExponent({.dtype = DType::kFloat32}, Pointers(buffers), 1), kNoExponent);
}

TEST(FixedPoint, sumsBeyondTheLargestFloatAreInfinite) {
  const float max = std::numeric_limits<float>::max();
  const Bytes host = BytesOf<float>({max, -max, max / 2});
  const Result result = SumOverRanks(DType::kFloat32, {2, {host.data()}}, 3);
  EXPECT_EQ(result.flags, 0);
  EXPECT_EQ(result.output, BytesOf<float>({HUGE_VALF, -HUGE_VALF, max}));
  // Over the devices of one host the infinity arises before the lanes, and is flagged.
  const Result local = SumOverRanks(DType::kFloat32, {{host.data(), host.data()}, {host.data(), host.data()}}, 3);
  EXPECT_EQ(local.flags, wire::kFlagPosInf | wire::kFlagNegInf);
  EXPECT_EQ(local.output, BytesOf<float>({HUGE_VALF, -HUGE_VALF, HUGE_VALF}));
}

TEST(FixedPoint, zerosAndNoExponent) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    Bytes zeros(5 * SizeOf(dtype));
    SetBits(dtype, zeros.data(), 3, uint64_t{1} << (8 * SizeOf(dtype) - 1));  // -0 becomes +0
    const Result result = SumOverRanks(dtype, {2, {zeros.data()}}, 5);
    EXPECT_EQ(result.exponent, kMinExponent);
    const void* input = zeros.data();
    EXPECT_EQ(BlockExponent({.dtype = dtype, .world_size = 2}, {&input, 1}, 3), kNoExponent);
    EXPECT_EQ(result.lanes, std::vector<uint32_t>(LaneCount({.dtype = dtype, .world_size = 2}, 5)));
    EXPECT_EQ(result.output, Bytes(5 * SizeOf(dtype)));
  }
}

// Every count from 0 to a block, at odd addresses, with nothing written beyond the end.
TEST(FixedPoint, anyCountAndAlignment) {
  std::mt19937_64 random(7);
  for (DType dtype : kDTypes) {
    const size_t size = SizeOf(dtype);
    const ElementFormat format{.dtype = dtype, .world_size = 4};
    const LaneGroup group = LaneGroupOf(format);
    const Bytes all = RandomElements(dtype, Kind::kUniform, kMaxBlockElements, random);
    const void* input = all.data();
    const int32_t exponent = BlockExponent({.dtype = dtype}, {&input, 1}, kMaxBlockElements);
    Bytes all_lanes(4 * LaneCount(format, kMaxBlockElements));
    EncodeLanes(format, {&input, 1}, kMaxBlockElements, exponent, all_lanes.data());
    Bytes all_out(all.size());
    void* output = all_out.data();
    DecodeLanes(format, all_lanes.data(), kMaxBlockElements, exponent, {&output, 1});
    for (size_t count = 0; count <= kMaxBlockElements; count += count < 70 || count > 1430 ? 1 : 29) {
      const size_t offset = 1 + count % 7;
      Bytes in(offset + count * size), lanes(offset + 4 * LaneCount(format, count) + 1, 0xA5);
      std::memcpy(&in[offset], all.data(), count * size);
      input = &in[offset];
      EncodeLanes(format, {&input, 1}, count, exponent, &lanes[offset]);
      const size_t whole = count / group.elements;  // the last group has zeros for the elements beyond
      ASSERT_EQ(std::memcmp(&lanes[offset], all_lanes.data(), 4 * whole * group.lanes), 0);
      if (const size_t rest = count % group.elements) {
        Bytes padded(group.elements * size), expected(4 * group.lanes);
        std::memcpy(padded.data(), &in[offset + whole * group.elements * size], rest * size);
        const void* last = padded.data();
        EncodeLanes(format, {&last, 1}, group.elements, exponent, expected.data());
        ASSERT_EQ(std::memcmp(&lanes[offset + 4 * whole * group.lanes], expected.data(), expected.size()), 0);
      }
      ASSERT_EQ(lanes.back(), 0xA5);
      Bytes out(offset + count * size + 1, 0x5A);
      output = &out[offset];
      DecodeLanes(format, &lanes[offset], count, exponent, {&output, 1});
      ASSERT_EQ(std::memcmp(&out[offset], all_out.data(), count * size), 0);
      ASSERT_EQ(out.back(), 0x5A);
    }
  }
}

// Sums at ties of the result, and one unit beside them: a first rounding to float would hide on which side.
TEST(FixedPoint, decodingRoundsOnce) {
  std::mt19937_64 random(8);
  for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    const int precision = reference::FormatOf(dtype).precision;
    const int sum_bits = dtype == DType::kFloat64 ? 60 : dtype == DType::kBFloat16 ? 15 : 30;
    const bool two_lanes = dtype == DType::kFloat64;
    for (int i = 0; i < 30000; ++i) {
      const auto exponent = static_cast<int32_t>(random() % (two_lanes ? 2098 : 277)) - (two_lanes ? 1073 : 148);
      const int dropped = 1 + static_cast<int>(random() % (sum_bits - precision));
      const auto kept = static_cast<int64_t>(random() >> (64 - precision));
      int64_t sum = (kept << dropped) + (int64_t{1} << (dropped - 1)) + static_cast<int64_t>(random() % 3) - 1;
      if (random() & 1) sum = -sum;
      constexpr uint32_t kHeadroom = 1;
      uint8_t lanes[8];
      wire::StoreLane(lanes, 0,
                      static_cast<uint32_t>(two_lanes                   ? sum >> 30
                                            : dtype == DType::kBFloat16 ? sum << 16
                                                                        : sum));
      wire::StoreLane(lanes, 1, static_cast<uint32_t>(sum & 0x3FFFFFFF));
      uint64_t out = 0;
      void* output = &out;
      DecodeLanes({.dtype = dtype, .world_size = 2}, lanes, 1, exponent, {&output, 1});
      const long double value =
          std::ldexp(static_cast<long double>(sum), reference::UnitExponent(dtype, exponent, kHeadroom));
      ASSERT_EQ(out, reference::Round(dtype, value)) << "dtype " << int(dtype) << " sum " << sum << " E " << exponent;
    }
  }
}

// Whatever a broken or hostile network delivers as exponent or lanes, decoding stays defined.
TEST(FixedPoint, anyExponentAndLanesDecode) {
  std::mt19937_64 random(11);
  const auto decode_any = [&](const ElementFormat& format) {
    for (int32_t exponent : {INT32_MIN, kNoExponent - 1, kNoExponent, -1074, 0, 1, 1025, 0x7F8, INT32_MAX}) {
      Bytes lanes(4 * LaneCount(format, 50)), out(50 * SizeOf(format.dtype));
      for (uint8_t& byte : lanes) byte = static_cast<uint8_t>(random());
      void* output = out.data();
      DecodeLanes(format, lanes.data(), 50, exponent, {&output, 1});
      const void* input = out.data();
      EncodeLanes(format, {&input, 1}, 50, exponent, lanes.data());
    }
  };
  for (DType dtype : kDTypes) {
    decode_any({.dtype = dtype, .world_size = 64});
    for (WireDtype wire_dtype : {WireDtype::kInt16, WireDtype::kInt8, WireDtype::kInt4}) {
      decode_any({.dtype = dtype, .wire_dtype = wire_dtype, .world_size = 7});
    }
  }
}

// The bits of a fixed run, alike on every machine, compiler and instruction set.
TEST(FixedPoint, goldenBits) {
  std::mt19937_64 random(13);
  uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
  for (DType dtype : kDTypes) {
    for (Kind kind : kKinds) {
      const Bytes a = RandomElements(dtype, kind, kMaxBlockElements, random);
      const Bytes b = RandomElements(dtype, kind, kMaxBlockElements, random);
      const Result result = SumOverRanks(dtype, {{a.data(), b.data()}, {b.data()}, {a.data()}}, kMaxBlockElements);
      for (uint32_t lane : result.lanes) hash = (hash ^ lane) * 0x100000001B3;
      for (uint8_t byte : result.output) hash = (hash ^ byte) * 0x100000001B3;
    }
  }
  EXPECT_EQ(hash, 15584338622496407251u);
}

}  // namespace
}  // namespace passing
