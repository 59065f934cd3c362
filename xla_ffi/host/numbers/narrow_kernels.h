// The loops of fixed_point.cc for narrow wires (narrow_lanes.h) and for integers of 8 and 16 bits, as formats.h says.
#ifndef XLA_FFI_HOST_NUMBERS_NARROW_KERNELS_H_
#define XLA_FFI_HOST_NUMBERS_NARROW_KERNELS_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "host/numbers/formats.h"
#include "host/numbers/lane_kernels.h"

namespace passing::kernels {

// ---- narrow wires
//
// An element's integer q lies from -b + 1 to b - 1, b = 2^(bits-1), and so does its sum over the ranks. With b added
// each is `bits` unsigned bits that stand side by side, so a lane is such a word minus the word of all b's, whatever
// borrows from what.
template <uint32_t kBits>
inline constexpr uint32_t kBias = 1u << (kBits - 1);
template <uint32_t kBits>
inline constexpr uint32_t kBiases = static_cast<uint32_t>(0xFFFFFFFF / ((uint64_t{1} << kBits) - 1)) * kBias<kBits>;
static_assert(kBiases<16> == 0x80008000 && kBiases<8> == 0x80808080 && kBiases<4> == 0x88888888);

// Where q + b is kept between the loops: two halves, four bytes, or a byte for each half of a byte.
template <uint32_t kBits>
using Biased = std::conditional_t<kBits == 16, uint16_t, uint8_t>;

// Writes q + b for float32 `elements`. q is x * scale / 2^16, rounded up or down by `random`. Returns whether all
// elements are finite; those that are not become 0. `Real` is
// float where that is exact enough (kMaxFloatQuantised), as it takes half the time; else double.
template <uint32_t kBits, typename Real>
PASSING_CLONES bool Quantise(const void* elements, size_t count, Real scale, const void* random,
                             Biased<kBits>* __restrict biased) {
  int32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    int32_t bits = Load<int32_t>(elements, i);
    const int32_t magnitude = bits & Bits<float>::kMagnitude;
    largest = std::max(largest, magnitude);
    bits = Select(magnitude < Bits<float>::kInfinity, bits, 0);
    const Real product = std::bit_cast<float>(bits) * scale;  // rounds
    uint32_t z;
    if constexpr (std::is_same_v<Real, float>) {
      z = static_cast<uint32_t>(RoundedInteger(product));
    } else {
      z = static_cast<uint32_t>(RoundedBits(product));
    }
    const int32_t q = static_cast<int32_t>(z + Load<uint16_t>(random, i)) >> 16;
    biased[i] = static_cast<Biased<kBits>>(static_cast<uint32_t>(q) + kBias<kBits>);
  }
  return largest < Bits<float>::kInfinity;
}

// The loops over lanes take bytes of two 4-bit elements, the first one in the low half.
static PASSING_CLONES void PackNibbles(const uint8_t* __restrict biased, size_t byte_count, uint8_t* __restrict bytes) {
  for (size_t i = 0; i < byte_count; ++i) {
    const uint32_t pair = Load<uint16_t>(biased, i);
    bytes[i] = static_cast<uint8_t>(pair | pair >> 4);
  }
}

static PASSING_CLONES void UnpackNibbles(const uint8_t* __restrict bytes, size_t byte_count,
                                         uint8_t* __restrict biased) {
  for (size_t i = 0; i < byte_count; ++i) {
    const uint32_t pair = bytes[i];
    Store(biased, i, static_cast<uint16_t>((pair | pair << 4) & 0x0F0F));
  }
}

template <uint32_t kBits>
PASSING_CLONES void PackLanes(const void* __restrict biased, size_t lane_count, uint8_t* __restrict lanes) {
  for (size_t i = 0; i < lane_count; ++i) StoreLane(lanes, i, Load<uint32_t>(biased, i) - kBiases<kBits>);
}

template <uint32_t kBits>
PASSING_CLONES void UnpackLanes(const uint8_t* __restrict lanes, size_t lane_count, void* __restrict biased) {
  for (size_t i = 0; i < lane_count; ++i) Store(biased, i, LoadLane(lanes, i) + kBiases<kBits>);
}

// `unit` is the worth of 1 in a sum: a double, or two floats that add up to it, of which the first times the sum is
// exact.
template <typename Format, uint32_t kBits, typename... Real>
PASSING_CLONES void ScaleSums(const Biased<kBits>* __restrict biased, size_t count, void* __restrict out,
                              Real... unit) {
  for (size_t i = 0; i < count; ++i) {
    const auto sum = static_cast<int32_t>(biased[i]) - static_cast<int32_t>(kBias<kBits>);
    Store(out, i, Format::Narrow(static_cast<float>((... + (static_cast<Real>(sum) * unit)))));  // rounds
  }
}

// ---- integers of 8 and 16 bits, as uint32 that hold them modulo 2^bits

// Several elements a lane, 32 / kElements bits or 12 apart.
template <uint32_t kElements>
inline constexpr uint32_t kApart = kElements == 3 ? 12 : 16;

template <uint32_t kElements>
PASSING_CLONES void EncodeBytes(const void* elements, size_t count, uint8_t* __restrict lanes) {
  const auto element = [&](size_t i) { return Load<uint32_t>(elements, i) & 0xFF; };
  const size_t whole = count / kElements;
  for (size_t i = 0; i < whole; ++i) {
    uint32_t lane = 0;
    for (uint32_t j = 0; j < kElements; ++j) lane |= element(kElements * i + j) << (kApart<kElements> * j);
    StoreLane(lanes, i, lane);
  }
  if (whole * kElements == count) return;
  uint32_t last = 0;
  for (size_t i = whole * kElements; i < count; ++i) {
    last |= element(i) << (kApart<kElements> * (i - whole * kElements));
  }
  StoreLane(lanes, whole, last);
}

template <uint32_t kElements>
PASSING_CLONES void DecodeBytes(const uint8_t* __restrict lanes, size_t count, void* __restrict out) {
  const size_t whole = count / kElements;
  for (size_t i = 0; i < whole; ++i) {
    const uint32_t lane = LoadLane(lanes, i);
    for (uint32_t j = 0; j < kElements; ++j) {
      Store(out, kElements * i + j, static_cast<uint8_t>(lane >> (kApart<kElements> * j)));
    }
  }
  for (size_t i = whole * kElements; i < count; ++i) {
    Store(out, i, static_cast<uint8_t>(LoadLane(lanes, whole) >> (kApart<kElements> * (i - whole * kElements))));
  }
}

// Three elements in two lanes: the first in the upper half of lane 0, the second in that of lane 1; the third one's low
// byte below the first, its high byte below the second.
static PASSING_CLONES void EncodeHalves(const void* elements, size_t count, uint8_t* __restrict lanes) {
  const auto store = [&](size_t i, uint32_t first, uint32_t second, uint32_t third) {
    StoreLane(lanes, 2 * i, first << 16 | (third & 0xFF));
    StoreLane(lanes, 2 * i + 1, second << 16 | (third >> 8 & 0xFF));
  };
  const auto element = [&](size_t i) { return Load<uint32_t>(elements, i); };
  const size_t whole = count / 3;
  for (size_t i = 0; i < whole; ++i) store(i, element(3 * i), element(3 * i + 1), element(3 * i + 2));
  if (count % 3) store(whole, element(3 * whole), count % 3 == 2 ? element(3 * whole + 1) : 0, 0);
}

static PASSING_CLONES void DecodeHalves(const uint8_t* __restrict lanes, size_t count, void* __restrict out) {
  const size_t whole = count / 3;
  for (size_t i = 0; i < whole; ++i) {
    const uint32_t a = LoadLane(lanes, 2 * i), b = LoadLane(lanes, 2 * i + 1);
    Store(out, 3 * i, static_cast<uint16_t>(a >> 16));
    Store(out, 3 * i + 1, static_cast<uint16_t>(b >> 16));
    Store(out, 3 * i + 2, static_cast<uint16_t>(a + (b << 8)));
  }
  for (size_t i = 3 * whole; i < count; ++i) {
    Store(out, i, static_cast<uint16_t>(LoadLane(lanes, 2 * whole + i - 3 * whole) >> 16));
  }
}

}  // namespace passing::kernels

#endif  // XLA_FFI_HOST_NUMBERS_NARROW_KERNELS_H_
