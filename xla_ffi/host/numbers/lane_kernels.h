// The loops of fixed_point.cc, as formats.h says. Only fixed_point.cc includes them.
#ifndef XLA_FFI_HOST_NUMBERS_LANE_KERNELS_H_
#define XLA_FFI_HOST_NUMBERS_LANE_KERNELS_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "host/numbers/formats.h"
#include "host/numbers/narrow_float.h"
#include "wire/lanes.h"

namespace passing::kernels {

static_assert(std::endian::native == std::endian::little);  // of two elements, or two lanes, in one word
using wire::LoadLane;
using wire::StoreLane;

// ---- floats

// The largest magnitude of a finite element, as bits.
template <typename Wide>
PASSING_CLONES typename Bits<Wide>::Int LargestMagnitude(const void* elements, size_t count) {
  using Int = typename Bits<Wide>::Int;
  Int largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto magnitude = static_cast<Int>(Load<Int>(elements, i) & Bits<Wide>::kMagnitude);
    largest = std::max(largest, magnitude < Bits<Wide>::kInfinity ? magnitude : Int{0});
  }
  return largest;
}

// 1.5 * 2^52: doubles from 2^52 to 2^53 are the integers, so y + kRounder is y rounded to an integer (ties to even),
// and the low bits of its mantissa are that integer in two's complement, if |y| < 2^51.
inline constexpr double kRounder = 0x1.8p52;
inline uint64_t RoundedBits(double y) { return std::bit_cast<uint64_t>(y + kRounder); }  // rounds

// The nearest integer, ties to even. GCC vectorises it, but lrint only to 64 bits.
inline int32_t RoundedInteger(float y) {
#if defined(__GNUC__) && !defined(__clang__)
  return __builtin_irintf(y);  // rounds
#else
  return static_cast<int32_t>(__builtin_lrintf(y));  // rounds
#endif
}

// The scale comes as two factors since it may exceed a float. Returns whether all elements are finite; those that are
// not become 0.
static PASSING_CLONES bool EncodeFloat32(const void* elements, size_t count, float scale_a, float scale_b,
                                         uint8_t* __restrict lanes) {
  int32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    int32_t bits = Load<int32_t>(elements, i);
    const int32_t magnitude = bits & Bits<float>::kMagnitude;
    largest = std::max(largest, magnitude);
    bits = Select(magnitude < Bits<float>::kInfinity, bits, 0);
    StoreLane(lanes, i, static_cast<uint32_t>(RoundedInteger(std::bit_cast<float>(bits) * scale_a * scale_b)));
  }
  return largest < Bits<float>::kInfinity;
}

// A lane's sum as a float that rounds to any format of at most 15 bits as the sum itself would ("round to odd"): where
// float may not hold the sum, the last bit kept stands for all bits below it, so no tie appears or disappears.
inline float ToOddFloat(int32_t sum) {
  const auto bits = static_cast<uint32_t>(sum);
  const uint32_t sticky = (bits & ~0xFFu) | (((bits & 0xFF) + 0xFF) & 0x100);
  const bool exact = bits + (1u << 24) <= 1u << 25;  // |sum| <= 2^24
  return static_cast<float>(static_cast<int32_t>(Select(exact, bits, sticky)));
}

// The scale comes as two factors since it may be less than a normal float.
template <typename Format>
PASSING_CLONES void DecodeFloat32(const uint8_t* __restrict lanes, size_t count, float scale_a, float scale_b,
                                  void* __restrict out) {
  for (size_t i = 0; i < count; ++i) {
    const auto sum = static_cast<int32_t>(LoadLane(lanes, i));
    const float value = kNarrows<Format> ? ToOddFloat(sum) : static_cast<float>(sum);  // rounds
    Store(out, i, Format::Narrow(value * scale_a * scale_b));
  }
}

// 1.5 * 2^23: kRounder for float32. What it adds to the bits has no low half.
inline constexpr float kPairRounder = 0x1.8p23f;
inline constexpr uint32_t kPairRounderBits = 0x4B400000;
static_assert(std::bit_cast<float>(kPairRounderBits) == kPairRounder);

// Elements 2i and 2i + 1 as bits of float32. By words, since GCC vectorises no loads and stores of every second
// element.
template <typename Format>
std::pair<int32_t, int32_t> LoadPair(const void* elements, size_t i) {
  if constexpr (sizeof(typename Format::Stored) == 4) {
    const auto pair = Load<uint64_t>(elements, i);
    return {static_cast<int32_t>(pair), static_cast<int32_t>(pair >> 32)};
  } else {
    const auto pair = Load<uint32_t>(elements, i);  // a bfloat16 is the high half of a float32
    return {static_cast<int32_t>(pair << 16), static_cast<int32_t>(pair & 0xFFFF0000)};
  }
}

// Two elements a lane, see fixed_point.cc: the first one in the high half. Returns whether all elements are finite;
// those that are not become 0.
template <typename Format>
PASSING_CLONES bool EncodePairs(const void* elements, size_t count, float scale, float limit,
                                uint8_t* __restrict lanes) {
  int32_t largest = 0;
  // The quantised value, plus kPairRounderBits.
  const auto quantise = [&](int32_t bits) {
    const int32_t magnitude = bits & Bits<float>::kMagnitude;
    largest = std::max(largest, magnitude);
    bits = Select(magnitude < Bits<float>::kInfinity, bits, 0);
    const float scaled = std::bit_cast<float>(bits) * scale;
    return std::bit_cast<uint32_t>(std::max(std::min(scaled, limit), -limit) + kPairRounder);  // rounds
  };
  const auto lane = [&](int32_t first, int32_t second) {
    return (quantise(first) << 16) + (quantise(second) - kPairRounderBits);
  };
  for (size_t i = 0; i < count / 2; ++i) {
    const auto [first, second] = LoadPair<Format>(elements, i);
    StoreLane(lanes, i, lane(first, second));
  }
  if (count % 2) {
    const float last = Format::Widen(Load<typename Format::Stored>(elements, count - 1));
    StoreLane(lanes, count / 2, lane(std::bit_cast<int32_t>(last), 0));
  }
  return largest < Bits<float>::kInfinity;
}

// The sums of a pair. A negative low half borrowed from the high one.
inline int32_t LowSum(uint32_t lane) { return static_cast<int32_t>(lane << 16) >> 16; }
inline int32_t HighSum(uint32_t lane) { return static_cast<int32_t>(lane - static_cast<uint32_t>(LowSum(lane))) >> 16; }

template <typename Format>
PASSING_CLONES void DecodePairs(const uint8_t* __restrict lanes, size_t count, float scale, void* __restrict out) {
  // Where the result is a bfloat16, it comes in the high half; never NaN, so that magnitudes round with their sign.
  const auto value = [&](int32_t sum) {
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(sum) * scale);
    return kNarrows<Format> ? RoundMagnitude<16>(bits) : bits;  // rounds
  };
  constexpr int kUnused = kNarrows<Format> ? 16 : 0;
  for (size_t i = 0; i < count / 2; ++i) {
    const uint32_t lane = LoadLane(lanes, i);
    const uint32_t first = value(HighSum(lane)) >> kUnused, second = value(LowSum(lane));
    if constexpr (sizeof(typename Format::Stored) == 2) {
      Store(out, i, first | (second & 0xFFFF0000));
    } else {
      Store(out, i, first | uint64_t{second >> kUnused} << 32);
    }
  }
  if (count % 2) {
    const uint32_t last = value(HighSum(LoadLane(lanes, count / 2))) >> kUnused;
    Store(out, count - 1,
          static_cast<std::conditional_t<sizeof(typename Format::Stored) == 2, uint16_t, uint32_t>>(last));
  }
}

// Two lanes an element, see fixed_point.cc. The scale may lie outside double's range, so it comes as two factors.
static PASSING_CLONES bool EncodeFloat64(const void* elements, size_t count, double scale_a, double scale_b,
                                         double low_scale, uint8_t* __restrict lanes) {
  int64_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    int64_t bits = Load<int64_t>(elements, i);
    const int64_t magnitude = bits & Bits<double>::kMagnitude;
    largest = std::max(largest, magnitude);
    bits = Select(magnitude < Bits<double>::kInfinity, bits, int64_t{0});
    const double scaled = std::bit_cast<double>(bits) * scale_a * scale_b;
    const double high = scaled + kRounder;  // rounds
    const double rest = (scaled - (high - kRounder)) * low_scale;
    const uint64_t low = std::bit_cast<uint64_t>(rest + kRounder);  // rounds
    Store(lanes, i, __builtin_bswap64(std::bit_cast<uint64_t>(high) << 32 | static_cast<uint32_t>(low)));
  }
  return largest < Bits<double>::kInfinity;
}

static PASSING_CLONES void DecodeFloat64(const uint8_t* __restrict lanes, size_t count, double scale_a, double scale_b,
                                         double high_scale, void* __restrict out) {
  for (size_t i = 0; i < count; ++i) {
    const uint64_t pair = __builtin_bswap64(Load<uint64_t>(lanes, i));
    const double high = static_cast<int32_t>(static_cast<uint32_t>(pair >> 32));
    const double low = static_cast<int32_t>(static_cast<uint32_t>(pair));
    Store(out, i, (high * high_scale + low) * scale_a * scale_b);  // the sum rounds
  }
}

// ---- integers

static PASSING_CLONES void EncodeInteger32(const void* elements, size_t count, uint8_t* __restrict lanes) {
  for (size_t i = 0; i < count; ++i) StoreLane(lanes, i, Load<uint32_t>(elements, i));
}

template <typename Format>
PASSING_CLONES void DecodeInteger32(const uint8_t* __restrict lanes, size_t count, void* __restrict out) {
  for (size_t i = 0; i < count; ++i) Store(out, i, Format::Narrow(LoadLane(lanes, i)));
}

// Three lanes an element: 22, 21 and 21 bits from the lowest up. A sum over kMaxWorldSize ranks still fits a lane.
inline constexpr uint32_t kInteger64Mask = 0x3FFFFF;  // of the widest
static PASSING_CLONES void EncodeInteger64(const void* elements, size_t count, uint8_t* __restrict lanes) {
  for (size_t i = 0; i < count; ++i) {
    const auto value = Load<uint64_t>(elements, i);
    StoreLane(lanes, 3 * i, static_cast<uint32_t>(value) & kInteger64Mask);
    StoreLane(lanes, 3 * i + 1, static_cast<uint32_t>(value >> 22) & 0x1FFFFF);
    StoreLane(lanes, 3 * i + 2, static_cast<uint32_t>(value >> 43));
  }
}

// Modulo 2^64, as the sum of the elements.
static PASSING_CLONES void DecodeInteger64(const uint8_t* __restrict lanes, size_t count, void* __restrict out) {
  for (size_t i = 0; i < count; ++i) {
    Store(out, i,
          uint64_t{LoadLane(lanes, 3 * i)} + (uint64_t{LoadLane(lanes, 3 * i + 1)} << 22) +
              (uint64_t{LoadLane(lanes, 3 * i + 2)} << 43));
  }
}

}  // namespace passing::kernels

#endif  // XLA_FFI_HOST_NUMBERS_LANE_KERNELS_H_
