// Floats of a sum of few elements: several lanes each, so that nothing that a double would keep is lost. Only
// fixed_point.cc includes this; formats.h says how floats are described.
//
// The bounds. H, h and E are those of fixed_point.cc, n is the number of lanes of an element: 3 of a float64, else 2.
//   x is sent as q = x * 2^s rounded to an integer, s = min(30-h-E + (n-1)(31-h), cap), where cap is 1074 for float64,
//   else 149, as every element is a multiple of 2^-cap. q is cut into n digits of 31-h bits, of which all but the
//   highest are balanced, in [-2^(30-h), 2^(30-h)]; the highest one is at most 2^(30-h) as well, as |q| <= 2^(30-h +
//   (n-1)(31-h)). So the sum of a digit over the ranks is at most 2^30.
//   Error. Each rank is off by half a unit at most, the sum by H * 2^(-s-1): for two lanes H * 2^(E-62+2h), for three
//   H * 2^(E-93+3h). E is that of a block, and blocks of such sums are few elements. 0 where s = cap.
//   Decoding: the digits' sums give the sum of q exactly, an integer of at most 93 bits. It is rounded once to the
//   dtype's bits; the product with 2^-s is exact, or infinite, since no bit is below 2^-cap.
//   Exact. A finite x of p bits is sent without error if its lowest bit is at 2^-s or above: if |x| >= 2^(p-s).
#ifndef XLA_FFI_HOST_NUMBERS_PRECISE_LANES_H_
#define XLA_FFI_HOST_NUMBERS_PRECISE_LANES_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "host/numbers/formats.h"
#include "wire/lanes.h"

namespace passing {

__extension__ typedef __int128 Int128;

template <typename Wide>
inline constexpr uint32_t kPreciseLanes = std::is_same_v<Wide, double> ? 3 : 2;

// The digits' bits, 31-h.
inline int DigitBits(uint32_t headroom_bits) { return 31 - static_cast<int>(headroom_bits); }

// The s of the bounds. The agreed exponent comes from the network: whatever it says, the arithmetic stays defined.
template <typename Wide>
int PreciseShift(int32_t exponent, uint32_t headroom_bits) {
  constexpr bool kDouble = std::is_same_v<Wide, double>;
  const int agreed = std::clamp(exponent, kDouble ? -1074 : -149, kDouble ? 1024 : 128);
  const int digits = DigitBits(headroom_bits);
  return std::min(digits - 1 - agreed + static_cast<int>(kPreciseLanes<Wide> - 1) * digits, kDouble ? 1074 : 149);
}

// A finite number as mantissa * 2^exponent.
struct Binary {
  int64_t mantissa;
  int exponent;
};
inline Binary BinaryOf(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  const auto field = static_cast<int>(bits >> 52 & 0x7FF);
  const auto fraction = static_cast<int64_t>(bits & ((uint64_t{1} << 52) - 1));
  const int64_t magnitude = field == 0 ? fraction : fraction | int64_t{1} << 52;
  return {static_cast<int64_t>(bits) < 0 ? -magnitude : magnitude, std::max(field, 1) - 1075};
}

// x * 2^shift, rounded to nearest, ties to even. What no rank could send, where |x| is too large, is anything.
inline Int128 Quantised(double x, int shift) {
  const auto [mantissa, exponent] = BinaryOf(x);
  const int places = exponent + shift;
  if (places >= 0) return Int128{mantissa} * (Int128{1} << std::min(places, 64));
  if (places < -60) return 0;  // less than half of the last bit
  const int64_t floor = mantissa >> -places;
  const int64_t rest = mantissa - floor * (int64_t{1} << -places), half = int64_t{1} << (-places - 1);
  return floor + (rest > half || (rest == half && floor % 2 != 0));
}

// Is x * 2^shift an integer, and |x| < 2^exponent? Not for -0, whose sign an integer doesn't keep.
inline bool IsExact(double x, int32_t exponent, int shift) {
  const auto bits = std::bit_cast<uint64_t>(x);
  if (bits == 0) return true;
  if (!std::isfinite(x) || x == 0 || std::abs(x) >= std::ldexp(1.0, exponent)) return false;
  const Binary binary = BinaryOf(x);
  return std::countr_zero(static_cast<uint64_t>(binary.mantissa)) + binary.exponent + shift >= 0;
}

// Returns whether all elements are finite; those that are not become 0.
template <typename Wide>
bool EncodePrecise(const void* elements, size_t count, int32_t exponent, uint32_t headroom_bits, uint8_t* lanes) {
  constexpr uint32_t kLanes = kPreciseLanes<Wide>;
  const int shift = PreciseShift<Wide>(exponent, headroom_bits), digit_bits = DigitBits(headroom_bits);
  const int64_t half = int64_t{1} << (digit_bits - 1);
  bool finite = true;
  for (size_t i = 0; i < count; ++i) {
    const double x = kernels::Load<Wide>(elements, i);
    finite = finite && std::isfinite(x);
    Int128 q = std::isfinite(x) ? Quantised(x, shift) : Int128{0};
    for (uint32_t digit = kLanes - 1; digit > 0; --digit) {
      const Int128 carried = (q + half) >> digit_bits;
      wire::StoreLane(lanes, kLanes * i + digit, static_cast<uint32_t>(q - carried * (Int128{1} << digit_bits)));
      q = carried;
    }
    wire::StoreLane(lanes, kLanes * i, static_cast<uint32_t>(q));
  }
  return finite;
}

// An integer as a float that rounds to any format of at most 15 bits as the integer itself would, as ToOddFloat.
inline float ToOddFloat(Int128 sum) {
  const Int128 magnitude = sum < 0 ? -sum : sum;
  const auto high = static_cast<uint64_t>(magnitude >> 64);
  const int width = high != 0 ? 64 + std::bit_width(high) : std::bit_width(static_cast<uint64_t>(magnitude));
  const int dropped = std::max(width - 24, 0);
  const Int128 below = magnitude & ((Int128{1} << dropped) - 1);
  const auto kept = static_cast<int32_t>(magnitude >> dropped) | static_cast<int32_t>(below != 0);
  return static_cast<float>(std::ldexp(static_cast<double>(sum < 0 ? -kept : kept), dropped));
}

template <typename Format>
void DecodePrecise(const uint8_t* lanes, size_t count, int32_t exponent, uint32_t headroom_bits, void* out) {
  using Wide = typename Format::Wide;
  constexpr uint32_t kLanes = kPreciseLanes<Wide>;
  const int shift = PreciseShift<Wide>(exponent, headroom_bits), digit_bits = DigitBits(headroom_bits);
  for (size_t i = 0; i < count; ++i) {
    Int128 sum = 0;
    for (uint32_t digit = 0; digit < kLanes; ++digit) {
      sum = sum * (Int128{1} << digit_bits) + static_cast<int32_t>(wire::LoadLane(lanes, kLanes * i + digit));
    }
    if constexpr (kernels::kNarrows<Format>) {
      const double value = std::ldexp(double{ToOddFloat(sum)}, -shift);
      kernels::Store(out, i, Format::Narrow(static_cast<float>(value)));  // rounds
    } else {
      // The conversion rounds; of a float32 the rest is exact in double, and of a float64 in any case.
      kernels::Store(out, i, static_cast<Wide>(std::ldexp(double{static_cast<Wide>(sum)}, -shift)));
    }
  }
}

}  // namespace passing

#endif  // XLA_FFI_HOST_NUMBERS_PRECISE_LANES_H_
