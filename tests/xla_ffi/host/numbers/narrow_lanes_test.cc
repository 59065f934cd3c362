// Floats on narrow wires: their sums over the ranks against exact arithmetic, at every number of ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "../tests/xla_ffi/host/support/block_sums.h"
#include "../tests/xla_ffi/host/support/fixed_point_reference.h"
#include "host/numbers/fixed_point.h"
#include "host/sums/sum_passes.h"
#include "wire/header.h"
#include "wire/lanes.h"

namespace passing {
namespace {

constexpr WireDtype kWireDtypes[] = {WireDtype::kInt16, WireDtype::kInt8, WireDtype::kInt4};
constexpr DType kNarrow[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

Rounding RoundingOf(uint32_t rank) { return {.key = 0x9E3779B97F4A7C15 * (rank + 1), .block = 5}; }

// M, by the words of its definition.
long double Scale(int32_t code) {
  return code >= 0x7F8 ? 0x1p128L : static_cast<long double>(std::bit_cast<float>(code << 20));
}

// The integers in lanes, from the low field up.
std::vector<int64_t> Fields(const ElementFormat& format, const std::vector<uint32_t>& lanes, size_t count) {
  const uint32_t bits = BitsOf(format.wire_dtype), each = 32 / bits;
  std::vector<int64_t> fields;
  for (uint32_t lane : lanes) {
    for (uint32_t j = 0; j < each && fields.size() < count; ++j) {
      const int32_t field = static_cast<int32_t>(lane << (32 - bits)) >> (32 - bits);
      fields.push_back(field);
      lane = static_cast<uint32_t>(static_cast<int32_t>(lane - static_cast<uint32_t>(field)) >> bits);
    }
  }
  return fields;
}

std::vector<uint32_t> Lanes(const ElementFormat& format, const void* elements, size_t count, int32_t code,
                            const Rounding& rounding) {
  Bytes encoded(4 * LaneCount(format, count));
  EXPECT_EQ(EncodeLanes(format, {&elements, 1}, count, code, encoded.data(), rounding), 0);
  std::vector<uint32_t> lanes;
  for (size_t i = 0; i < encoded.size() / 4; ++i) lanes.push_back(wire::LoadLane(encoded.data(), i));
  return lanes;
}

TEST(NarrowLanes, anyElementsOfAnyNumberOfRanks) {
  std::mt19937_64 random(1);
  for (WireDtype wire_dtype : kWireDtypes) {
    for (DType dtype : kNarrow) {
      for (uint32_t ranks : {1u, 2u, 3u, 4u, 7u, 8u, 31u, 64u, 127u, 128u, 1024u}) {
        if (ranks > MaxRanksOf(wire_dtype)) continue;
        const ElementFormat format{.dtype = dtype, .wire_dtype = wire_dtype, .world_size = ranks};
        const int64_t largest = ((1 << (BitsOf(wire_dtype) - 1)) - 1) / ranks;
        const size_t count = 1 + random() % 200;
        Kind kind = kKinds[random() % std::size(kKinds)];
        if (dtype == DType::kFloat16 && kind == Kind::kHugeAndTiny)
          kind = Kind::kUniform;  // infinities are among these
        std::vector<Bytes> hosts;
        int32_t code = kNoExponent;
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          hosts.push_back(RandomElements(dtype, kind, count, random));
          const void* elements = hosts.back().data();
          code = std::max(code, BlockExponent(format, {&elements, 1}, count));
        }
        std::vector<uint32_t> sums(LaneCount(format, count));
        std::vector<int64_t> expected(count);
        const long double unit = code == kNoExponent ? 1 : Scale(code) / largest;
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          const std::vector<uint32_t> lanes = Lanes(format, hosts[rank].data(), count, code, RoundingOf(rank));
          const std::vector<int64_t> fields = Fields(format, lanes, count);
          for (size_t i = 0; i < sums.size(); ++i) sums[i] += lanes[i];
          for (size_t i = 0; i < count; ++i) {
            const long double x = reference::ValueOf(dtype, reference::BitsAt(dtype, hosts[rank].data(), i));
            ASSERT_LE(std::abs(x), Scale(code));
            ASSERT_LE(std::abs(fields[i]), largest);
            ASSERT_LT(std::abs(fields[i] - x / unit), 1 + 0x1p-16L);
            if (x == 0) {
              ASSERT_EQ(fields[i], 0);
            }
            expected[i] += fields[i];
          }
        }
        EXPECT_EQ(Fields(format, sums, count), expected);
        Bytes summed(4 * sums.size()), out(count * SizeOf(dtype));
        for (size_t i = 0; i < sums.size(); ++i) wire::StoreLane(summed.data(), i, sums[i]);
        void* output = out.data();
        DecodeLanes(format, summed.data(), count, code, {&output, 1});
        for (size_t i = 0; i < count; ++i) {
          const long double exact = expected[i] * unit;
          const long double got = reference::ValueOf(dtype, reference::BitsAt(dtype, out.data(), i));
          const auto as_float = static_cast<float>(static_cast<double>(exact));
          const long double rounded = reference::ValueOf(dtype, reference::Round(dtype, as_float));
          ASSERT_EQ(got, rounded) << int(dtype) << " of " << ranks;
        }
      }
    }
  }
}

// No carry crosses a field: all ranks at the extremes, neighbours at the opposite one, up to the limit of ranks.
TEST(NarrowLanes, extremesAtEveryNumberOfRanks) {
  for (WireDtype wire_dtype : kWireDtypes) {
    const uint32_t each = 32 / BitsOf(wire_dtype);
    std::vector<uint32_t> numbers;
    for (uint32_t ranks = 2; ranks <= std::min(MaxRanksOf(wire_dtype), kMaxWorldSize); ++ranks)
      numbers.push_back(ranks);
    for (uint32_t ranks : numbers) {
      const ElementFormat format{.dtype = DType::kFloat32, .wire_dtype = wire_dtype, .world_size = ranks};
      std::array<float, 32> elements;
      for (size_t i = 0; i < elements.size(); ++i) elements[i] = (i / each + i) % 2 ? -1.f : i % 5 == 4 ? 0.f : 1.f;
      const void* input = elements.data();
      const int32_t code = BlockExponent(format, {&input, 1}, elements.size());
      ASSERT_EQ(Scale(code), 1);
      std::vector<uint32_t> lanes = Lanes(format, input, elements.size(), code, RoundingOf(ranks));
      Bytes summed(4 * lanes.size());
      for (size_t i = 0; i < lanes.size(); ++i) wire::StoreLane(summed.data(), i, lanes[i] * ranks);
      std::array<float, 32> sums;
      void* output = sums.data();
      DecodeLanes(format, summed.data(), sums.size(), code, {&output, 1});
      for (size_t i = 0; i < sums.size(); ++i) ASSERT_EQ(sums[i], elements[i] * static_cast<float>(ranks)) << ranks;
    }
  }
}

TEST(NarrowLanes, scalesAreRoundedUp) {
  const ElementFormat format{.dtype = DType::kFloat32, .wire_dtype = WireDtype::kInt8, .world_size = 2};
  const auto code_of = [&](float largest) {
    const void* input = &largest;
    return BlockExponent(format, {&input, 1}, 1);
  };
  EXPECT_EQ(Scale(code_of(1.f)), 1);
  EXPECT_EQ(Scale(code_of(-1.0001f)), 1.125L);
  EXPECT_EQ(Scale(code_of(1.876f)), 2);
  EXPECT_EQ(Scale(code_of(std::numeric_limits<float>::max())), 0x1p128L);
  EXPECT_EQ(Scale(code_of(0x1p-149f)), 0x1p-129L);
  EXPECT_EQ(code_of(0.f), kNoExponent);
}

// A sum of n roundings of y has the mean n z / 2^16, z the rounded y 2^16, and a variance of n f (1 - f): a deviation
// of five times that is as rare as 1 in 10^6.
TEST(NarrowLanes, roundingIsUnbiased) {
  for (WireDtype wire_dtype : kWireDtypes) {
    const ElementFormat format{.dtype = DType::kFloat32, .wire_dtype = wire_dtype, .world_size = 2};
    const int32_t code = 0x3F8;  // M = 1
    const double largest = ((1 << (BitsOf(wire_dtype) - 1)) - 1) / 2;
    for (double y : {0.01, 0.25, 0.5, 0.77, -0.01, -0.5, -0.999}) {
      std::vector<float> elements(kMaxBlockElements, static_cast<float>(y / largest));
      int64_t sum = 0;
      constexpr int kBlocks = 100;
      for (uint64_t block = 0; block < kBlocks; ++block) {
        for (int64_t q :
             Fields(format, Lanes(format, elements.data(), kMaxBlockElements, code, {.key = 3, .block = block}),
                    kMaxBlockElements)) {
          ASSERT_TRUE(q == std::floor(y) || q == std::ceil(y));
          sum += q;
        }
      }
      const double n = double{kBlocks} * kMaxBlockElements, f = y - std::floor(y);
      EXPECT_NEAR(sum / n, y, 5 * std::sqrt(f * (1 - f) / n) + 0x1p-16) << y;
    }
  }
}

// Other ranks, blocks and elements are rounded by other bits: no two of these streams agree more often than chance.
// With error feedback what is kept back doesn't grow, even where a rank can send only 0 and one number of either sign.
TEST(NarrowLanes, residualsStayBounded) {
  constexpr Rounding kNearest = {.to_nearest = true, .block = 5};
  std::mt19937_64 random(3);
  for (const auto& [wire_dtype, ranks] :
       {std::pair{WireDtype::kInt4, 2u}, {WireDtype::kInt4, 7u}, {WireDtype::kInt8, 127u}}) {
    const ElementFormat format{.dtype = DType::kFloat32, .wire_dtype = wire_dtype, .world_size = ranks};
    const auto largest = static_cast<float>(((1 << (BitsOf(wire_dtype) - 1)) - 1) / ranks);
    std::vector<float> kept(200), sent(kept.size());
    for (int step = 0; step < 300; ++step) {
      for (size_t i = 0; i < kept.size(); ++i) {
        sent[i] = kept[i] + std::uniform_real_distribution<float>(-1, 1)(random);
      }
      const void* elements = sent.data();
      const int32_t code = BlockExponent(format, {&elements, 1}, sent.size());
      const auto scale = static_cast<float>(Scale(code));
      ASSERT_LE(scale, 18.0f / 7 * 1.01f) << "step " << step;
      const auto fields = Fields(format, Lanes(format, elements, sent.size(), code, kNearest), sent.size());
      for (size_t i = 0; i < kept.size(); ++i) {
        kept[i] = sent[i] - static_cast<float>(fields[i]) * scale / largest;
        ASSERT_LE(std::abs(kept[i]), scale / largest * 0.50001f);
      }
    }
  }
}

TEST(NarrowLanes, randomBitsAreIndependent) {
  const ElementFormat format{.dtype = DType::kFloat32, .wire_dtype = WireDtype::kInt8, .world_size = 2};
  const std::vector<float> halves(kMaxBlockElements, 0.5f / 63);
  const SumKey sum{.site = 1, .execution = 2, .step = 3};
  std::vector<std::vector<int64_t>> streams;
  const auto add = [&](const Rank& rank, const SumKey& key, uint64_t block) {
    const Rounding rounding{.key = RoundingKey(rank, key), .block = block};
    streams.push_back(Fields(format, Lanes(format, halves.data(), halves.size(), 0x3F8, rounding), halves.size()));
  };
  add({.rank = 0}, sum, 0);
  add({.rank = 1}, sum, 0);
  add({.rank = 0, .seed = 1}, sum, 0);
  add({.rank = 0}, {.site = 2, .execution = 2, .step = 3}, 0);
  add({.rank = 0}, {.site = 1, .execution = 3, .step = 3}, 0);
  add({.rank = 0}, {.site = 1, .execution = 2, .step = 4}, 0);
  add({.rank = 0}, sum, 1);
  add({.rank = 0}, sum, uint64_t{1} << 32);
  streams.push_back(streams[0]);
  std::rotate(streams.back().begin(), streams.back().begin() + 1, streams.back().end());
  for (size_t a = 0; a < streams.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      int same = 0;
      for (size_t i = 0; i < kMaxBlockElements; ++i) same += streams[a][i] == streams[b][i];
      EXPECT_NEAR(same, kMaxBlockElements / 2, 5 * std::sqrt(kMaxBlockElements) / 2) << a << " and " << b;
    }
  }
}

// A part of a block is rounded as it is in the whole one, at any offset.
TEST(NarrowLanes, partsOfABlock) {
  std::mt19937_64 random(4);
  for (WireDtype wire_dtype : kWireDtypes) {
    const ElementFormat format{.dtype = DType::kFloat32, .wire_dtype = wire_dtype, .world_size = 3};
    const uint32_t each = 32 / BitsOf(wire_dtype);
    const Bytes elements = RandomElements(DType::kFloat32, Kind::kUniform, kMaxBlockElements, random);
    const std::vector<uint32_t> all = Lanes(format, elements.data(), kMaxBlockElements, 0x3F8, {.key = 9, .block = 7});
    for (int round = 0; round < 300; ++round) {
      const auto first = static_cast<uint32_t>(random() % (kMaxBlockElements / each)) * each;
      const size_t count = std::min<size_t>(kMaxBlockElements - first, each * (1 + random() % 200));
      const std::vector<uint32_t> part =
          Lanes(format, &elements[4 * first], count, 0x3F8, {.key = 9, .block = 7, .first = first});
      ASSERT_TRUE(std::equal(part.begin(), part.end(), all.begin() + first / each));
    }
  }
}

TEST(NarrowLanes, notFiniteElementsAreFlaggedZeros) {
  const std::vector<float> elements = {1, NAN, HUGE_VALF, -HUGE_VALF, -1};
  const void* input = elements.data();
  for (WireDtype wire_dtype : kWireDtypes) {
    const ElementFormat format{.dtype = DType::kFloat32, .wire_dtype = wire_dtype, .world_size = 2};
    const int32_t code = BlockExponent(format, {&input, 1}, 5);
    EXPECT_EQ(Scale(code), 1);
    Bytes encoded(4 * LaneCount(format, 5));
    EXPECT_EQ(EncodeLanes(format, {&input, 1}, 5, code, encoded.data()),
              wire::kFlagNaN | wire::kFlagPosInf | wire::kFlagNegInf);
  }
}

// int8 and int16 are exact modulo 2^bits, whatever their lanes have.
TEST(NarrowLanes, smallIntegersAreExact) {
  std::mt19937_64 random(5);
  for (DType dtype : {DType::kInt8, DType::kUint8, DType::kInt16, DType::kUint16}) {
    for (uint32_t ranks : {1u, 2u, 3u, 16u, 17u, 257u, 258u, 1024u}) {
      const size_t count = 1 + random() % 20;
      const bool extreme = random() % 2;
      Bytes all_ones(count * SizeOf(dtype), 0xFF);
      std::vector<Bytes> buffers;
      std::vector<std::vector<const void*>> hosts;
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        buffers.push_back(extreme ? all_ones : RandomElements(dtype, Kind::kAnyBits, count, random));
        hosts.push_back({buffers.back().data(), all_ones.data()});
      }
      const Result result = SumOverRanks(dtype, hosts, count);
      for (size_t i = 0; i < count; ++i) {
        uint64_t sum = 0;
        for (const Bytes& buffer : buffers) {
          sum += reference::BitsAt(dtype, buffer.data(), i) + reference::BitsAt(dtype, all_ones.data(), i);
        }
        const uint64_t mask = (uint64_t{1} << (8 * SizeOf(dtype))) - 1;
        ASSERT_EQ(reference::BitsAt(dtype, result.output.data(), i), sum & mask) << ranks;
      }
    }
  }
}

// The bits of a fixed run, alike on every machine, compiler and instruction set.
TEST(NarrowLanes, goldenBits) {
  std::mt19937_64 random(13);
  uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
  for (WireDtype wire_dtype : kWireDtypes) {
    for (DType dtype : kNarrow) {
      const ElementFormat format{.dtype = dtype, .wire_dtype = wire_dtype, .world_size = 2};
      const Bytes elements = RandomElements(dtype, Kind::kUniform, kMaxBlockElements, random);
      const void* input = elements.data();
      const int32_t code = BlockExponent(format, {&input, 1}, kMaxBlockElements);
      Bytes lanes(4 * LaneCount(format, kMaxBlockElements)), out(elements.size());
      EncodeLanes(format, {&input, 1}, kMaxBlockElements, code, lanes.data(), {.key = 1, .block = 2});
      void* output = out.data();
      DecodeLanes(format, lanes.data(), kMaxBlockElements, code, {&output, 1});
      for (uint8_t byte : lanes) hash = (hash ^ byte) * 0x100000001B3;
      for (uint8_t byte : out) hash = (hash ^ byte) * 0x100000001B3;
    }
  }
  EXPECT_EQ(hash, 6087190954900670867u);
}

}  // namespace
}  // namespace passing
