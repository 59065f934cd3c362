// float16 and bfloat16 by bit operations: no special compiler flag, and loops over them vectorise. Branch-free.
#ifndef XLA_FFI_CLIENT_NARROW_FLOAT_H_
#define XLA_FFI_CLIENT_NARROW_FLOAT_H_

#include <bit>
#include <cstdint>

namespace passing {

// Rounds to the nearest value (ties to even) of a binary format with `kPrecision` significant bits and normal
// exponents kMin to kMax; what overflows it comes out at 2^(kMax + 1) or above. NaN stays NaN.
//
// With 2^e <= |x| < 2^(e+1), e at least kMin, the format's step at x is 2^(e+1-kPrecision). Adding
// c = 1.5 * 2^(e+53-kPrecision) puts the sum in a binade of double whose step is just that, as |x| < c / 3; so the
// addition rounds x, once, and the subtraction is exact.
template <int kPrecision, int kMin, int kMax>
inline double RoundTo(double x) {
  constexpr auto kPowerOfTwo = [](int exponent) {
    return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
  };
  constexpr double kLow = kPowerOfTwo(kMin);
  constexpr double kHigh = kPowerOfTwo(kMax + 1);
  double magnitude = x < 0 ? -x : x;
  magnitude = magnitude > kLow ? magnitude : kLow;  // of NaN: kLow
  magnitude = magnitude < kHigh ? magnitude : kHigh;
  const auto binade = std::bit_cast<double>(std::bit_cast<uint64_t>(magnitude) & 0x7FF0000000000000);
  const double c = binade * (1.5 * kPowerOfTwo(53 - kPrecision));
  return (x + c) - c;
}

inline uint32_t SignBit16(double x) { return static_cast<uint32_t>(std::bit_cast<uint64_t>(x) >> 48) & 0x8000; }

inline float WidenFloat16(uint16_t half) {
  const uint32_t magnitude = half & 0x7FFF;
  const uint32_t normal = (magnitude << 13) + (112u << 23);  // exponent bias 15 to 127
  const uint32_t not_finite = (magnitude << 13) | 0x7F800000;
  const auto denormal = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  uint32_t bits = magnitude < 0x400 ? denormal : normal;
  bits = magnitude >= 0x7C00 ? not_finite : bits;
  return std::bit_cast<float>(bits | uint32_t{half & 0x8000u} << 16);
}

// Rounds once.
inline uint16_t NarrowFloat16(double x) {
  // Exact: RoundTo leaves at most 11 bits, and no multiple of less than 2^-24.
  const auto rounded = static_cast<float>(RoundTo<11, -14, 15>(x));
  const uint32_t magnitude = std::bit_cast<uint32_t>(rounded) & 0x7FFFFFFF;
  const uint32_t normal = (magnitude >> 13) - (112u << 10);
  // Below 2^-14 the value is k * 2^-24, and 2^-24 is the step of float from 0.5 on.
  const uint32_t denormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000;
  uint32_t bits = magnitude < (113u << 23) ? denormal : normal;
  bits = magnitude >= (143u << 23) ? 0x7C00 : bits;
  bits = magnitude > 0x7F800000 ? 0x7E00 : bits;
  return static_cast<uint16_t>(bits | SignBit16(x));
}

inline float WidenBFloat16(uint16_t half) { return std::bit_cast<float>(uint32_t{half} << 16); }

// Rounds once.
inline uint16_t NarrowBFloat16(double x) {
  const auto rounded = static_cast<float>(RoundTo<8, -126, 127>(x));  // exact, or infinite
  const uint32_t magnitude = std::bit_cast<uint32_t>(rounded) & 0x7FFFFFFF;
  const uint32_t bits = magnitude > 0x7F800000 ? 0x7FC0 : magnitude >> 16;
  return static_cast<uint16_t>(bits | SignBit16(x));
}

}  // namespace passing

#endif  // XLA_FFI_CLIENT_NARROW_FLOAT_H_
