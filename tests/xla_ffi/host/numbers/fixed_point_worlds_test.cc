#include <gtest/gtest.h>

#include <random>

#include "../tests/xla_ffi/host/support/block_sums.h"
#include "../tests/xla_ffi/host/support/fixed_point_reference.h"
#include "host/numbers/fixed_point.h"
#include "wire/header.h"
#include "wire/lanes.h"

namespace passing {
namespace {

using reference::BitsAt;
using reference::kDTypes;
using reference::ValueOf;

// 113 bits. Only x86's compilers have the name, and only Arm's have it in long double.
#if __LDBL_MANT_DIG__ == 113
using Quad = long double;
#else
using Quad = __float128;
#endif

// Checks every element of a sum of finite elements against the reference, and against the bound of the error.
void ExpectFloatSum(DType dtype, const std::vector<std::vector<const void*>>& hosts, size_t count,
                    const Result& result) {
  const uint32_t headroom = HeadroomBits(static_cast<uint32_t>(hosts.size()));
  const int unit = reference::UnitExponent(dtype, result.exponent, headroom);
  for (size_t i = 0; i < count; ++i) {
    int64_t sum = 0;
    Quad exact = 0;  // off by less than 2^(E-100)
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
    const auto error = static_cast<long double>(exact - static_cast<Quad>(decoded));
    ASSERT_LE(std::fabs(error), bound + slack) << "element " << i;
    const uint64_t want = sum == 0 ? 0 : reference::Round(dtype, decoded);
    ASSERT_EQ(BitsAt(dtype, result.output.data(), i), want)
        << "element " << i << " exponent " << result.exponent << " decoded " << static_cast<double>(decoded);
  }
}

class EveryWorldSize : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(FixedPoint, EveryWorldSize, testing::ValuesIn(kWorldSizes));

// The world sizes in which two bfloat16 share a lane.
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

// The elements in the largest 8 - h binades of a block come out exactly, whatever its exponent: no single device is cut
// off.
TEST_P(PackedWorldSize, largeBFloat16AreExact) {
  const int h = static_cast<int>(HeadroomBits(GetParam()));
  for (const int exponent : {-110, 0, 1, 127, 128}) {
    Bytes elements;
    for (uint32_t bits = 0x7F7F; bits > 0 && elements.size() < 2 * kMaxBlockElements; --bits) {
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

}  // namespace
}  // namespace passing
