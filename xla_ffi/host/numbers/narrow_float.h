// float16 and bfloat16 by bit operations: no special compiler flag, and loops over them vectorise. Branch-free.
#ifndef XLA_FFI_HOST_NUMBERS_NARROW_FLOAT_H_
#define XLA_FFI_HOST_NUMBERS_NARROW_FLOAT_H_

#include <bit>
#include <cstdint>

namespace passing {

// condition ? a : b. Spelled so, since with ?: GCC computes only the chosen one, behind a branch, and the loop no
// longer vectorises.
template <typename T>
inline T Select(bool condition, T a, T b) {
  const T mask = -static_cast<T>(condition);
  return (a & mask) | (b & ~mask);
}

// Rounds an IEEE magnitude (a float's bits without the sign) to `kDropped` bits less, to nearest, ties to even; the
// dropped bits are left undefined. A carry moves on into the exponent, as it must.
template <int kDropped>
inline uint32_t RoundMagnitude(uint32_t magnitude) {
  return magnitude + ((1u << (kDropped - 1)) - 1) + (magnitude >> kDropped & 1);
}

inline float WidenFloat16(uint16_t half) {
  const uint32_t magnitude = half & 0x7FFF;
  const uint32_t normal = (magnitude << 13) + (112u << 23);  // exponent bias 15 to 127
  const uint32_t not_finite = (magnitude << 13) | 0x7F800000;
  const auto denormal = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  uint32_t bits = Select(magnitude < 0x400, denormal, normal);
  bits = Select(magnitude >= 0x7C00, not_finite, bits);
  return std::bit_cast<float>(bits | uint32_t{half & 0x8000u} << 16);
}

// NaN keeps what its payload has in the upper bits; without any of these it would be an infinity.
inline uint32_t NaNOf(uint32_t infinity, uint32_t payload, uint32_t quiet) {
  return infinity | payload | Select(payload == 0, quiet, 0u);
}

// Rounds once.
inline uint16_t NarrowFloat16(float x) {
  const auto all = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = all & 0x7FFFFFFF;
  const uint32_t normal = (RoundMagnitude<13>(magnitude) >> 13) - (112u << 10);
  // Below 2^-14 the result is k * 2^-24, and 2^-24 is the step of float from 0.5 to 1: the addition rounds to it.
  const uint32_t denormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000;
  uint32_t bits = Select(magnitude < (113u << 23), denormal, normal);
  bits = Select(magnitude >= 0x477FF000, 0x7C00u, bits);  // from 65520 = 2^16 - 2^4 on: infinity
  bits = Select(magnitude > 0x7F800000, NaNOf(0x7C00, magnitude >> 13 & 0x3FF, 0x200), bits);
  return static_cast<uint16_t>(bits | (all >> 16 & 0x8000));
}

inline float WidenBFloat16(uint16_t half) { return std::bit_cast<float>(uint32_t{half} << 16); }

// Rounds once.
inline uint16_t NarrowBFloat16(float x) {
  const auto all = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = all & 0x7FFFFFFF;
  const uint32_t bits =
      Select(magnitude > 0x7F800000, NaNOf(0x7F80, magnitude >> 16 & 0x7F, 0x40), RoundMagnitude<16>(magnitude) >> 16);
  return static_cast<uint16_t>(bits | (all >> 16 & 0x8000));
}

}  // namespace passing

#endif  // XLA_FFI_HOST_NUMBERS_NARROW_FLOAT_H_
