#include "host/numbers/element_classes.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "../tests/xla_ffi/host/support/block_sums.h"
#include "../tests/xla_ffi/host/support/fixed_point_reference.h"
#include "wire/header.h"

namespace passing {
namespace {

using reference::BitsAt;
using reference::ValueOf;

// Each rank's class of an element, and what the sum must be.
TEST(ElementClasses, nonFiniteElementsComeOutWhereTheyMust) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    const uint64_t inf = reference::Round(dtype, std::numeric_limits<long double>::infinity());
    const uint64_t nan = reference::Round(dtype, std::numeric_limits<long double>::quiet_NaN());
    const uint64_t sign = uint64_t{1} << (8 * SizeOf(dtype) - 1);
    const uint64_t one = reference::Round(dtype, 1);
    const uint64_t two = reference::Round(dtype, 2);
    struct Row {
      uint64_t rank0, rank1, sum;
    };
    const Row rows[] = {{one, one, two},        {inf, one, inf},        {one, inf | sign, inf | sign},
                        {inf, inf | sign, nan}, {nan, one, nan},        {one, (inf + 1) | sign, nan},
                        {nan, inf, nan},        {inf | sign, nan, nan}, {0, 0, 0}};
    const size_t count = std::size(rows);
    std::array<Bytes, 2> ranks{Bytes(count * SizeOf(dtype)), Bytes(count * SizeOf(dtype))};
    for (size_t i = 0; i < count; ++i) {
      SetBits(dtype, ranks[0].data(), i, rows[i].rank0);
      SetBits(dtype, ranks[1].data(), i, rows[i].rank1);
    }
    const Result result = SumOverRanks(dtype, {{ranks[0].data()}, {ranks[1].data()}}, count, 2);
    EXPECT_EQ(result.flags, wire::kStickyFlags);
    EXPECT_EQ(result.exponent, 1);
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(BitsAt(dtype, result.output.data(), i), rows[i].sum) << "row " << i;
    // The same as two devices of one host.
    const Result local = SumOverRanks(dtype, {{ranks[0].data(), ranks[1].data()}}, count);
    EXPECT_EQ(local.output, result.output);
    constexpr uint32_t kNaN = 1 << 16 | 1;
    EXPECT_EQ(local.classes, (std::vector<uint32_t>{0, 1 << 16, 1, kNaN, kNaN, kNaN, kNaN, kNaN, 0}));
  }
}

TEST(ElementClasses, flagsSayWhichKindsThereAre) {
  const float values[] = {NAN, HUGE_VALF, -HUGE_VALF};
  const uint8_t flags[] = {wire::kFlagNaN, wire::kFlagPosInf, wire::kFlagNegInf};
  for (int kinds = 0; kinds < 8; ++kinds) {
    Bytes host = BytesOf<float>({1, 1, 1});
    uint8_t expected = 0;
    for (int kind = 0; kind < 3; ++kind) {
      if ((kinds >> kind & 1) == 0) continue;
      expected |= flags[kind];
      SetBits(DType::kFloat32, host.data(), kind, std::bit_cast<uint32_t>(values[kind]));
    }
    EXPECT_EQ(SumOverRanks(DType::kFloat32, {{host.data()}}, 3).flags, expected);
  }
}

// All ranks of a world, up to the largest, count up the same class.
TEST(ElementClasses, countersDoNotTouchEachOther) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const Bytes most = BytesOf<float>({kInf, -kInf, std::numeric_limits<float>::quiet_NaN(), kInf, -kInf, 1});
  const Bytes last = BytesOf<float>({kInf, -kInf, std::numeric_limits<float>::quiet_NaN(), -kInf, kInf, -kInf});
  for (const uint32_t world_size : kWorldSizes) {
    SCOPED_TRACE(world_size);
    std::vector<std::vector<const void*>> hosts(world_size, {most.data()});
    hosts.back() = {last.data()};
    const Result result = SumOverRanks(DType::kFloat32, hosts, 6);
    const bool mixed = world_size > 1;
    for (size_t i = 0; i < 6; ++i) {
      const auto sum = static_cast<float>(ValueOf(DType::kFloat32, BitsAt(DType::kFloat32, result.output.data(), i)));
      if (i == 2 || (mixed && (i == 3 || i == 4))) {
        EXPECT_TRUE(std::isnan(sum)) << i;
      } else {
        EXPECT_EQ(sum, i == 0 || i == 4 ? kInf : -kInf) << i;
      }
    }
  }
}

}  // namespace
}  // namespace passing
