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

// Checks every element of a sum of finite elements against the reference, and against the bound of the error.
void ExpectFloatSum(DType dtype, const std::vector<std::vector<const void*>>& hosts, size_t count,
                    const Result& result) {
  const uint32_t headroom = HeadroomBits(static_cast<uint32_t>(hosts.size()));
  const int unit = reference::UnitExponent(dtype, result.exponent, headroom);
  for (size_t i = 0; i < count; ++i) {
    int64_t sum = 0;
    __float128 exact = 0;  // 113 bits: off by less than 2^(E-100)
    bool finite = true;
    long double bound = 0;
    for (const auto& inputs : hosts) {
      const long double x = reference::HostElement(dtype, inputs, i);
      finite &= std::isfinite(x);
      if (!finite) break;
      const int64_t q = reference::Quantise(dtype, x, result.exponent, headroom);
      ASSERT_LE(std::abs(q), int64_t{1} << reference::QuantisedBits(dtype, headroom));
      // Half a unit, or a whole one where a sum over devices was cut off.
      const bool cut_off = inputs.size() > 1 && reference::IsPacked(dtype, headroom) &&
                           std::fabs(x) + std::ldexp(0.5L, unit) > std::ldexp(1.0L, result.exponent);
      bound += std::ldexp(cut_off ? 1.0L : 0.5L, unit);
      sum += q;
      exact += x;
    }
    if (!finite) continue;
    const long double decoded = std::ldexp(static_cast<long double>(sum), unit);  // exact: 64 bits
    const auto slack = std::ldexp(1.0L, result.exponent - 100);
    const auto error = static_cast<long double>(exact - static_cast<__float128>(decoded));
    ASSERT_LE(std::fabs(error), bound + slack) << "element " << i;
    const uint64_t want = sum == 0 ? 0 : reference::Round(dtype, decoded);
    ASSERT_EQ(BitsAt(dtype, result.output.data(), i), want)
        << "element " << i << " exponent " << result.exponent << " decoded " << static_cast<double>(decoded);
  }
}

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
    const size_t lanes = dtype == DType::kBFloat16 ? 4 : SizeOf(dtype) < 8 ? 7 : dtype == DType::kFloat64 ? 14 : 21;
    EXPECT_EQ(LaneCount(dtype, 7, 7), lanes);
    EXPECT_EQ(LaneCount(dtype, 8, 0), dtype == DType::kBFloat16 ? 4 : lanes / 7 * 8);
    EXPECT_EQ(LaneCount(dtype, 0, 0), 0u);
    EXPECT_EQ(LaneCount(dtype, 7, 8), dtype == DType::kBFloat16 ? 7 : lanes);
  }
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
      int expected = kNoExponent;
      if (bits != 0) std::frexp(ValueOf(dtype, bits), &expected);
      Bytes buffer(3 * SizeOf(dtype));
      SetBits(dtype, buffer.data(), 1, bits | (i & 1 ? uint64_t{1} << (8 * SizeOf(dtype) - 1) : 0));
      SetBits(dtype, buffer.data(), 2, i & 2 ? infinity : infinity + 1);  // infinities and NaN don't count
      const void* input = buffer.data();
      ASSERT_EQ(BlockExponent(dtype, {&input, 1}, 3), expected) << "bits " << bits;
    }
  }
}

TEST(BlockExponent, IsOfTheSumOverDevices) {
  const std::vector<Bytes> buffers = {BytesOf<float>({3, 1, 1e-40f}), BytesOf<float>({-3, 1, 1e-40f})};
  EXPECT_EQ(BlockExponent(DType::kFloat32, Pointers(buffers), 3), 2);
  EXPECT_EQ(BlockExponent(DType::kFloat32, Pointers(buffers), 1), kNoExponent);
}

class EveryWorldSize : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(FixedPoint, EveryWorldSize, testing::ValuesIn(kWorldSizes));

// Of those in which two bfloat16 share a lane.
class PackedWorldSize : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(FixedPoint, PackedWorldSize, testing::Values(1, 2, 3, 8, 63, 64, 127, 128));

TEST_P(EveryWorldSize, floatSumsKeepTheirBound) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    for (size_t devices = 1; devices <= 4; ++devices) {
      for (Kind kind : kKinds) {
        SCOPED_TRACE(testing::Message() << "dtype " << int(dtype) << " devices " << devices << " kind " << int(kind));
        std::mt19937_64 random(GetParam());
        const size_t count = GetParam() > 64 ? 19 : 203;
        std::vector<std::vector<Bytes>> buffers(GetParam());
        std::vector<std::vector<const void*>> hosts;
        for (auto& host : buffers) {
          for (size_t k = 0; k < devices; ++k) host.push_back(RandomElements(dtype, kind, count, random));
          hosts.push_back(Pointers(host));
        }
        const Result result = SumOverRanks(dtype, hosts, count, devices);
        ExpectFloatSum(dtype, hosts, count, result);
        std::shuffle(hosts.begin(), hosts.end(), random);
        EXPECT_EQ(SumOverRanks(dtype, hosts, count).output, result.output);
      }
    }
  }
}

// A host may have its devices add up in float32 before the elements come here, where others add them up.
TEST_P(EveryWorldSize, elementsThatWereAddedUpBefore_haveTheBitsOfThoseAddedUpHere) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (Kind kind : kKinds) {
      SCOPED_TRACE(testing::Message() << "dtype " << int(dtype) << " kind " << int(kind));
      std::mt19937_64 random(GetParam());
      const size_t count = GetParam() > 64 ? 19 : 203;
      std::vector<std::vector<Bytes>> buffers(GetParam());
      std::vector<Bytes> sums(GetParam());
      std::vector<std::vector<const void*>> here, before;
      for (size_t rank = 0; rank < GetParam(); ++rank) {
        for (size_t k = 0; k < 3; ++k) buffers[rank].push_back(RandomElements(dtype, kind, count, random));
        const long double special[] = {NAN, INFINITY, -INFINITY};
        SetBits(dtype, buffers[rank][random() % 3].data(), random() % count,
                reference::Round(dtype, special[random() % 3]));
        here.push_back(Pointers(buffers[rank]));
        for (size_t i = 0; i < count; ++i) {
          float sum = 0;
          for (const Bytes& buffer : buffers[rank]) {
            const auto x = static_cast<float>(ValueOf(dtype, BitsAt(dtype, buffer.data(), i)));
            sum = &buffer == buffers[rank].data() ? x : sum + x;
          }
          sums[rank].resize((i + 1) * sizeof(float));
          std::memcpy(&sums[rank][i * sizeof(float)], &sum, sizeof(float));
        }
        before.push_back({sums[rank].data()});
      }
      const Result want = SumOverRanks(dtype, here, count), got = SumOverRanks(Widened(dtype), before, count);
      EXPECT_NE(want.flags, 0);
      EXPECT_EQ(got.flags, want.flags);
      EXPECT_EQ(got.exponent, want.exponent);
      EXPECT_EQ(got.lanes, want.lanes);
      EXPECT_EQ(got.classes, want.classes);
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(BitsAt(Widened(dtype), got.output.data(), i), BitsAt(dtype, want.output.data(), i)) << i;
      }
    }
  }
}

TEST_P(EveryWorldSize, integerSumsAreExactAndWrap) {
  for (DType dtype : kDTypes) {
    if (IsFloat(dtype)) continue;
    for (size_t devices = 1; devices <= 4; ++devices) {
      for (bool all_ones : {false, true}) {
        std::mt19937_64 random(GetParam());
        const size_t count = GetParam() > 64 ? 10 : 100;
        std::vector<std::vector<Bytes>> buffers(GetParam());
        std::vector<std::vector<const void*>> hosts;
        std::vector<uint64_t> sums(count);
        for (auto& host : buffers) {
          for (size_t k = 0; k < devices; ++k) {
            host.push_back(all_ones ? Bytes(count * SizeOf(dtype), 0xFF)
                                    : RandomElements(dtype, Kind::kAnyBits, count, random));
            for (size_t i = 0; i < count; ++i) sums[i] += BitsAt(dtype, host.back().data(), i);
          }
          hosts.push_back(Pointers(host));
        }
        const Result result = SumOverRanks(dtype, hosts, count, devices);
        EXPECT_EQ(result.exponent, kNoExponent);
        EXPECT_EQ(result.flags, 0);
        Bytes want(count * SizeOf(dtype));
        for (size_t i = 0; i < count; ++i) SetBits(dtype, want.data(), i, sums[i]);
        EXPECT_EQ(result.output, want) << "dtype " << int(dtype) << " devices " << devices;
      }
    }
  }
}

// All ranks at the largest magnitude below a power of two: no lane overflows, and every sum is exact.
TEST_P(EveryWorldSize, noLaneOverflows) {
  for (const float sign : {1.0f, -1.0f}) {
    const Bytes wide = BytesOf<float>({sign * 0x1.fffffep9f, sign * 0x1p9f});
    const Bytes wide64 = BytesOf<double>({sign * 0x1.fffffffffffffp9, sign * 0x1p9, sign * 0x1.00000000001p-22});
    const Result result = SumOverRanks(DType::kFloat32, {GetParam(), {wide.data()}}, 2);
    for (uint32_t lane : result.lanes) EXPECT_LE(std::abs(int64_t{static_cast<int32_t>(lane)}), 1 << 30);
    const auto h = HeadroomBits(GetParam());
    EXPECT_NEAR(static_cast<int32_t>(result.lanes[0]), sign * 0x1.fffffep29 * GetParam() / (1 << h), GetParam() / 2.0);
    ExpectFloatSum(DType::kFloat32, {GetParam(), {wide.data()}}, 2, result);
    const Result result64 = SumOverRanks(DType::kFloat64, {GetParam(), {wide64.data()}}, 3);
    for (uint32_t lane : result64.lanes) EXPECT_LE(std::abs(int64_t{static_cast<int32_t>(lane)}), 1 << 30);
    ExpectFloatSum(DType::kFloat64, {GetParam(), {wide64.data()}}, 3, result64);
  }
}

// The bound H * 2^(E-31+h) is met: ties that every rank rounds down.
TEST_P(EveryWorldSize, theBoundIsTight) {
  const int h = static_cast<int>(HeadroomBits(GetParam()));
  const float half_unit = std::ldexp(1.0f, 1 - 31 + h);  // E = 1
  const Bytes host = BytesOf<float>({1.0f, half_unit, 3 * half_unit, std::nextafter(half_unit, 1.0f)});
  const Result result = SumOverRanks(DType::kFloat32, {GetParam(), {host.data()}}, 4);
  EXPECT_EQ(result.exponent, 1);
  EXPECT_EQ(result.lanes[1], 0u);              // error H/2 units
  EXPECT_EQ(result.lanes[2], 2 * GetParam());  // 1.5 rounds to 2
  EXPECT_EQ(result.lanes[3], GetParam());
}

// Lanes of two bfloat16 against the definition; the sums of both halves at their limits, and any bits between.
TEST_P(PackedWorldSize, pairsDoNotTouchEachOther) {
  std::mt19937_64 random(GetParam());
  const uint32_t h = HeadroomBits(GetParam());
  for (const size_t devices : {1, 2}) {
    for (int round = 0; round<100; round += GetParam()> 64 ? 5 : 1) {
      const size_t count = 1 + random() % 9;
      std::vector<std::vector<Bytes>> buffers(GetParam());
      std::vector<std::vector<const void*>> hosts;
      for (auto& host : buffers) {
        for (size_t device = 0; device < devices; ++device) {
          host.emplace_back(2 * count);
          for (size_t i = 0; i < count; ++i) {
            // 0x3F7F is the last below 1; half a unit beside it in another device carries beyond the limit.
            const uint64_t limits[] = {0x3F7F, 0xBF7F, 0x3F80, 0, 0x3F70 | random() % 16, 0xBA00 | random() % 1024};
            const uint64_t small[] = {0x3A80 | random() % 256, 0x3B00 | random() % 256, 0};
            SetBits(DType::kBFloat16, host.back().data(), i,
                    device > 0   ? small[random() % 3]
                    : round < 10 ? limits[round % 2]
                    : round < 20 ? limits[i % 2]
                                 : limits[random() % (round < 60 ? 2 : 6)]);
          }
        }
        hosts.push_back(Pointers(host));
      }
      const Result result = SumOverRanks(DType::kBFloat16, hosts, count);
      std::vector<int64_t> sums(count + count % 2);
      for (size_t i = 0; i < count; ++i) {
        for (const auto& inputs : hosts) {
          sums[i] += reference::Quantise(DType::kBFloat16, reference::HostElement(DType::kBFloat16, inputs, i),
                                         result.exponent, h);
        }
        ASSERT_LT(std::abs(sums[i]), 1 << 15);
      }
      for (size_t i = 0; i < sums.size(); i += 2) {
        ASSERT_EQ(result.lanes[i / 2], static_cast<uint32_t>(sums[i] * 65536 + sums[i + 1]));
      }
      ExpectFloatSum(DType::kBFloat16, hosts, count, result);
    }
  }
}

// Of a block of any exponent, the elements in the largest 8 - h binades come out exactly: no single device is cut off.
TEST_P(PackedWorldSize, largeBFloat16AreExact) {
  const int h = static_cast<int>(HeadroomBits(GetParam()));
  for (const int exponent : {-110, 0, 1, 127, 128}) {
    Bytes elements;
    for (uint32_t bits = 0x7F7F; bits > 0 && elements.size() < 2 * kBlockElements; --bits) {
      const auto x = static_cast<double>(ValueOf(DType::kBFloat16, bits));
      if (x >= std::ldexp(1.0, exponent) || x < std::ldexp(1.0, exponent - 8 + h)) continue;
      for (const uint32_t sign : {0u, 0x8000u}) {
        elements.resize(elements.size() + 2);
        SetBits(DType::kBFloat16, elements.data(), elements.size() / 2 - 1, bits | sign);
      }
    }
    const size_t count = elements.size() / 2;
    EXPECT_EQ(count, static_cast<size_t>(std::min(8 - h, 5)) * 256 + (h < 3 ? 160 : 0)) << "world size " << GetParam();
    const Result result = SumOverRanks(DType::kBFloat16, {GetParam(), {elements.data()}}, count);
    EXPECT_EQ(result.exponent, exponent);
    for (size_t i = 0; i < count; ++i) {
      const long double sum = GetParam() * ValueOf(DType::kBFloat16, BitsAt(DType::kBFloat16, elements.data(), i));
      ASSERT_EQ(BitsAt(DType::kBFloat16, result.output.data(), i), reference::Round(DType::kBFloat16, sum))
          << "element " << i;
    }
  }
}

TEST(FixedPoint, denormalsAreExact) {
  const Bytes host = BytesOf<float>({1e-45f, -1e-45f, 0x1p-127f, 0x1.8p-140f});
  const Result result = SumOverRanks(DType::kFloat32, {3, {host.data()}}, 4);
  for (size_t i = 0; i < 4; ++i) {
    const auto x = static_cast<float>(ValueOf(DType::kFloat32, BitsAt(DType::kFloat32, host.data(), i)));
    EXPECT_EQ(std::bit_cast<float>(static_cast<uint32_t>(BitsAt(DType::kFloat32, result.output.data(), i))), 3 * x);
  }
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
    EXPECT_EQ(result.exponent, kNoExponent);
    EXPECT_EQ(result.lanes, std::vector<uint32_t>(LaneCount(dtype, 5, 1)));
    EXPECT_EQ(result.output, Bytes(5 * SizeOf(dtype)));
  }
}

// Every count from 0 to a block, at odd addresses, with nothing written beyond the end.
TEST(FixedPoint, anyCountAndAlignment) {
  std::mt19937_64 random(7);
  for (DType dtype : kDTypes) {
    const size_t size = SizeOf(dtype);
    const Bytes all = RandomElements(dtype, Kind::kUniform, kBlockElements, random);
    const void* input = all.data();
    const int32_t exponent = BlockExponent(dtype, {&input, 1}, kBlockElements);
    Bytes all_lanes(4 * LaneCount(dtype, kBlockElements, 2));
    EncodeLanes(dtype, {&input, 1}, kBlockElements, exponent, 2, all_lanes.data());
    Bytes all_out(all.size());
    void* output = all_out.data();
    DecodeLanes(dtype, all_lanes.data(), kBlockElements, exponent, 2, {&output, 1});
    for (size_t count = 0; count <= kBlockElements; count += count < 70 || count > 1430 ? 1 : 29) {
      const size_t offset = 1 + count % 7;
      Bytes in(offset + count * size), lanes(offset + 4 * LaneCount(dtype, count, 2) + 1, 0xA5);
      std::memcpy(&in[offset], all.data(), count * size);
      input = &in[offset];
      EncodeLanes(dtype, {&input, 1}, count, exponent, 2, &lanes[offset]);
      const bool single = dtype == DType::kBFloat16 && count % 2;  // then the last lane's low half is 0
      const size_t same_bytes = 4 * LaneCount(dtype, count, 2) - (single ? 4 : 0);
      ASSERT_EQ(std::memcmp(&lanes[offset], all_lanes.data(), same_bytes), 0);
      if (single) {
        ASSERT_EQ(wire::LoadLane(&lanes[offset + same_bytes], 0) & 0xFFFF, 0u);
      }
      ASSERT_EQ(lanes.back(), 0xA5);
      Bytes out(offset + count * size + 1, 0x5A);
      output = &out[offset];
      DecodeLanes(dtype, &lanes[offset], count, exponent, 2, {&output, 1});
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
      DecodeLanes(dtype, lanes, 1, exponent, kHeadroom, {&output, 1});
      const long double value =
          std::ldexp(static_cast<long double>(sum), reference::UnitExponent(dtype, exponent, kHeadroom));
      ASSERT_EQ(out, reference::Round(dtype, value)) << "dtype " << int(dtype) << " sum " << sum << " E " << exponent;
    }
  }
}

// The maximum over the devices, as the lanes of a block that come back.
TEST(FixedPoint, maximaOfInt32) {
  std::mt19937_64 random(10);
  for (size_t devices = 1; devices <= 4; ++devices) {
    const RandomMaxima of(devices, kBlockElements, random);
    Bytes lanes(4 * kBlockElements);
    EncodeMaxima(of.inputs(), kBlockElements, lanes.data());
    std::vector<int32_t> decoded(kBlockElements);
    void* output = decoded.data();
    DecodeLanes(DType::kInt32, lanes.data(), kBlockElements, 0, 3, {&output, 1});
    EXPECT_EQ(decoded, of.maxima) << devices;
  }
}

// Whatever a broken or hostile network delivers as exponent or lanes, decoding stays defined.
TEST(FixedPoint, anyExponentAndLanesDecode) {
  std::mt19937_64 random(11);
  for (DType dtype : kDTypes) {
    for (int32_t exponent : {INT32_MIN, kNoExponent - 1, kNoExponent, -1074, 0, 1025, INT32_MAX}) {
      Bytes lanes(4 * LaneCount(dtype, 50, 6)), out(50 * SizeOf(dtype));
      for (uint8_t& byte : lanes) byte = static_cast<uint8_t>(random());
      void* output = out.data();
      DecodeLanes(dtype, lanes.data(), 50, exponent, 6, {&output, 1});
      const void* input = out.data();
      EncodeLanes(dtype, {&input, 1}, 50, exponent, 6, lanes.data());
    }
  }
}

// The bits of a fixed run, alike on every machine, compiler and instruction set.
TEST(FixedPoint, goldenBits) {
  std::mt19937_64 random(13);
  uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
  for (DType dtype : kDTypes) {
    for (Kind kind : kKinds) {
      const Bytes a = RandomElements(dtype, kind, kBlockElements, random);
      const Bytes b = RandomElements(dtype, kind, kBlockElements, random);
      const Result result = SumOverRanks(dtype, {{a.data(), b.data()}, {b.data()}, {a.data()}}, kBlockElements);
      for (uint32_t lane : result.lanes) hash = (hash ^ lane) * 0x100000001B3;
      for (uint8_t byte : result.output) hash = (hash ^ byte) * 0x100000001B3;
    }
  }
  EXPECT_EQ(hash, 16982345438180034415u);
}

}  // namespace
}  // namespace passing
