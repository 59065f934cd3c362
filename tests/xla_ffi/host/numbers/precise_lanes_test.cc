#include "host/numbers/precise_lanes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "../tests/xla_ffi/host/support/block_sums.h"
#include "../tests/xla_ffi/host/support/fixed_point_reference.h"
#include "host/numbers/fixed_point.h"
#include "wire/header.h"
#include "wire/lanes.h"

namespace passing {
namespace {

constexpr DType kFloats[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};

class PreciseWorldSize : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(PreciseLanes, PreciseWorldSize, testing::ValuesIn(kWorldSizes));

__extension__ typedef __int128 Int128;

int UnitOf(DType dtype, int32_t exponent, uint32_t headroom_bits) {
  const int h = static_cast<int>(headroom_bits);
  return dtype == DType::kFloat64 ? std::max(exponent - (92 - 3 * h), -1074) : std::max(exponent - (61 - 2 * h), -149);
}

// Each element has an exponent of its own, as in sums of few elements, and is compared with an integer sum that is
// computed without digits.
TEST_P(PreciseWorldSize, sumsAreRoundedOnceWithinTheirBound) {
  const uint32_t ranks = GetParam(), h = HeadroomBits(ranks);
  for (DType dtype : kFloats) {
    const ElementFormat format{.dtype = dtype, .world_size = ranks, .precise = true};
    for (Kind kind : kKinds) {
      std::mt19937_64 random(ranks);
      for (int trial = 0; trial < (ranks > 64 ? 10 : 100); ++trial) {
        std::vector<Bytes> elements;
        int32_t exponent = kNoExponent;
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          elements.push_back(RandomElements(dtype, kind, 1, random));
          const void* input = elements.back().data();
          exponent = std::max(exponent, BlockExponent(format, {&input, 1}, 1));
        }
        const int unit = UnitOf(dtype, exponent, h);
        const size_t lane_count = LaneCount(format, 1);
        std::vector<int64_t> sums(lane_count);
        Int128 sum = 0;
        for (const Bytes& element : elements) {
          const void* input = element.data();
          Bytes lanes(4 * lane_count);
          const long double x = reference::ValueOf(dtype, reference::BitsAt(dtype, input, 0));
          const uint8_t flags = EncodeLanes(format, {&input, 1}, 1, exponent, lanes.data());
          ASSERT_EQ(flags != 0, !std::isfinite(x));  // huge is infinite in float16
          for (size_t i = 0; i < lane_count; ++i) {
            sums[i] += static_cast<int32_t>(wire::LoadLane(lanes.data(), i));
            ASSERT_LE(std::abs(sums[i]), int64_t{1} << 30);
          }
          // The reference: below one half 0, else x in units, rounded by a long double of 64 bits where it has so many.
          const long double units = flags != 0 ? 0 : std::ldexp(x, -unit);
          const Int128 whole = static_cast<Int128>(units);
          const long double rest = units - static_cast<long double>(whole);
          const int away = std::fabs(rest) > 0.5L || (std::fabs(rest) == 0.5L && whole % 2 != 0) ? (x < 0 ? -1 : 1) : 0;
          sum += whole + away;
        }
        Bytes summed(4 * lane_count), out(SizeOf(dtype));
        for (size_t i = 0; i < lane_count; ++i) wire::StoreLane(summed.data(), i, static_cast<uint32_t>(sums[i]));
        void* output = out.data();
        DecodeLanes(format, summed.data(), 1, exponent, {&output, 1});
        // Rounds to odd at 64 bits, so that the reference rounds once.
        Int128 magnitude = sum < 0 ? -sum : sum;
        int dropped = 0;
        bool sticky = false;
        for (; magnitude >> 63 != 0; ++dropped, magnitude >>= 1) sticky = sticky || (magnitude & 1) != 0;
        const auto kept = static_cast<long double>(static_cast<uint64_t>(magnitude) | uint64_t{sticky});
        const uint64_t want =
            sum == 0 ? 0 : reference::Round(dtype, std::ldexp(sum < 0 ? -kept : kept, dropped + unit));
        ASSERT_EQ(reference::BitsAt(dtype, output, 0), want)
            << "dtype " << int(dtype) << " kind " << int(kind) << " E " << exponent;
      }
    }
  }
}

// A small sum may have numbers beside each other that have nothing to do with each other.
TEST(PreciseLanes, aNumberIsNotLostBesideItsNeighbours) {
  const std::vector<float> elements{1e12f, 1e-4f, 3, 3e38f, -1e-40f};
  for (const uint32_t ranks : {2u, 64u, kMaxWorldSize}) {
    const ElementFormat format{.dtype = DType::kFloat32, .world_size = ranks, .precise = true};
    for (const float x : elements) {
      const void* input = &x;
      const int32_t exponent = BlockExponent(format, {&input, 1}, 1);
      uint8_t lanes[8];
      EncodeLanes(format, {&input, 1}, 1, exponent, lanes);
      for (size_t i = 0; i < 2; ++i) wire::StoreLane(lanes, i, wire::LoadLane(lanes, i) * ranks);
      float sum;
      void* output = &sum;
      DecodeLanes(format, lanes, 1, exponent, {&output, 1});
      EXPECT_EQ(sum, static_cast<float>(double{x} * ranks)) << x << " of " << ranks;
    }
  }
}

// At a guess that is exact for all ranks a sum has the bits that it has at the true exponent.
bool AreExact(DType dtype, uint32_t ranks, const void* element, int32_t exponent) {
  std::vector<double> elements;
  AppendHostElements(dtype, {&element, 1}, 1, elements);
  return ArePreciselyExact(dtype, HeadroomBits(ranks), elements, exponent);
}

TEST(PreciseLanes, exactGuessesGiveTheSameBits) {
  std::mt19937_64 random(5);
  for (DType dtype : kFloats) {
    for (const uint32_t ranks : {1u, 3u, 64u}) {
      const ElementFormat format{.dtype = dtype, .world_size = ranks, .precise = true};
      int exact = 0, inexact = 0;
      for (int trial = 0; trial < 3000; ++trial) {
        std::vector<Bytes> elements;
        int32_t exponent = kNoExponent;
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          const double x = std::ldexp(std::normal_distribution<>()(random), static_cast<int>(random() % 10));
          elements.emplace_back(SizeOf(dtype));
          SetBits(dtype, elements.back().data(), 0, reference::Round(dtype, x));
          const void* input = elements.back().data();
          exponent = std::max(exponent, BlockExponent(format, {&input, 1}, 1));
        }
        const int32_t guess = exponent - 2 + static_cast<int32_t>(random() % 60);
        const auto result = [&](int32_t at) {
          std::vector<uint32_t> sums(LaneCount(format, 1));
          Bytes lanes(4 * sums.size()), out(SizeOf(dtype));
          for (const Bytes& element : elements) {
            const void* input = element.data();
            EncodeLanes(format, {&input, 1}, 1, at, lanes.data());
            for (size_t i = 0; i < sums.size(); ++i) sums[i] += wire::LoadLane(lanes.data(), i);
          }
          for (size_t i = 0; i < sums.size(); ++i) wire::StoreLane(lanes.data(), i, sums[i]);
          void* output = out.data();
          DecodeLanes(format, lanes.data(), 1, at, {&output, 1});
          return out;
        };
        bool all = true;
        for (const Bytes& element : elements) {
          all = all && AreExact(dtype, ranks, element.data(), guess);
        }
        (all ? exact : inexact) += 1;
        if (!all) continue;
        ASSERT_EQ(result(guess), result(exponent)) << "E " << exponent << " guessed " << guess;
      }
      EXPECT_GT(exact, 100) << int(dtype) << ' ' << ranks;
      EXPECT_GT(inexact, 100) << int(dtype) << ' ' << ranks;
    }
  }
}

TEST(PreciseLanes, whatAnIntegerDoesNotKeepIsNotExact) {
  const auto exact = [](float x, int32_t exponent) { return AreExact(DType::kFloat32, 2, &x, exponent); };
  EXPECT_TRUE(exact(0.0f, 3));
  EXPECT_FALSE(exact(-0.0f, 3));  // its sign
  EXPECT_FALSE(exact(NAN, 3));
  EXPECT_FALSE(exact(HUGE_VALF, 3));
  EXPECT_TRUE(exact(7.5f, 3));
  EXPECT_FALSE(exact(8.0f, 3));     // not below 2^3
  EXPECT_TRUE(exact(0x1p-56f, 3));  // the last of 59 bits below 2^3
  EXPECT_FALSE(exact(0x1p-57f, 3));
  EXPECT_FALSE(exact(1.0f, kNoExponent));
}

TEST(PreciseLanes, notFiniteElementsAreFlaggedZeros) {
  const std::vector<double> elements{NAN, HUGE_VAL, -HUGE_VAL, 1};
  const void* input = elements.data();
  uint8_t lanes[4 * 12];
  EXPECT_EQ(EncodeLanes({.dtype = DType::kFloat64, .world_size = 2, .precise = true}, {&input, 1}, 4, 1, lanes),
            wire::kFlagNaN | wire::kFlagPosInf | wire::kFlagNegInf);
  for (size_t i = 0; i < 9; ++i) EXPECT_EQ(wire::LoadLane(lanes, i), 0u) << i;
}

// Whatever a broken or hostile network delivers, decoding stays defined.
TEST(PreciseLanes, anyExponentAndLanesDecode) {
  std::mt19937_64 random(11);
  for (DType dtype : kFloats) {
    const ElementFormat format{.dtype = dtype, .world_size = 64, .precise = true};
    for (const int32_t exponent : {INT32_MIN, kNoExponent, kMinExponent, 0, kMaxExponent, kMovedBits, INT32_MAX}) {
      Bytes lanes(4 * LaneCount(format, 50)), out(50 * SizeOf(dtype));
      for (uint8_t& byte : lanes) byte = static_cast<uint8_t>(random());
      void* output = out.data();
      DecodeLanes(format, lanes.data(), 50, exponent, {&output, 1});
      const void* input = out.data();
      EncodeLanes(format, {&input, 1}, 50, exponent, lanes.data());
      AreExact(dtype, 64, input, exponent);
    }
  }
}

}  // namespace
}  // namespace passing
