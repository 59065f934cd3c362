// Computes what fixed_point.h must compute, one element at a time and in wider arithmetic.
#ifndef TESTS_XLA_FFI_HOST_SUPPORT_FIXED_POINT_REFERENCE_H_
#define TESTS_XLA_FFI_HOST_SUPPORT_FIXED_POINT_REFERENCE_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "host/numbers/fixed_point.h"

namespace passing::reference {

inline constexpr DType kDTypes[] = {DType::kInt8,    DType::kInt16,    DType::kInt32,   DType::kInt64,
                                    DType::kUint8,   DType::kUint16,   DType::kUint32,  DType::kUint64,
                                    DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};

struct FloatFormat {
  int precision;     // significant bits
  int max_exponent;  // of a finite value
  int last_bit;      // exponent of the smallest denormal
};
inline FloatFormat FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return {11, 15, -24};
    case DType::kBFloat16:
      return {8, 127, -133};
    case DType::kFloat32:
      return {24, 127, -149};
    default:
      return {53, 1023, -1074};
  }
}

// One element as the low bits of an integer.
inline uint64_t BitsAt(DType dtype, const void* base, size_t index) {
  uint64_t bits = 0;
  std::memcpy(&bits, static_cast<const uint8_t*>(base) + index * SizeOf(dtype), SizeOf(dtype));
  return bits;
}

// The value that a float's bits mean, from the definition of its fields.
inline long double ValueOf(DType dtype, uint64_t bits) {
  const FloatFormat format = FormatOf(dtype);
  const int width = static_cast<int>(8 * SizeOf(dtype));
  const int fraction_bits = format.precision - 1;
  const int field_ones = 2 * format.max_exponent + 1;
  const uint64_t fraction = bits & ((uint64_t{1} << fraction_bits) - 1);
  const int field = static_cast<int>(bits >> fraction_bits) & field_ones;
  long double value = field == 0 ? std::ldexp(static_cast<long double>(fraction), format.last_bit)
                                 : std::ldexp(static_cast<long double>(fraction | uint64_t{1} << fraction_bits),
                                              format.last_bit + field - 1);
  if (field == field_ones) {
    value = fraction ? std::numeric_limits<long double>::quiet_NaN() : std::numeric_limits<long double>::infinity();
  }
  return bits >> (width - 1) & 1 ? -value : value;
}

// Rounds to nearest, ties to even. NaN is the quiet one without a payload.
inline uint64_t Round(DType dtype, long double value) {
  const FloatFormat format = FormatOf(dtype);
  const int width = static_cast<int>(8 * SizeOf(dtype));
  const uint64_t infinity = (2 * uint64_t(format.max_exponent) + 1) << (format.precision - 1);
  if (std::isnan(value)) return infinity | uint64_t{1} << (format.precision - 2);
  const uint64_t sign = uint64_t{std::signbit(value)} << (width - 1);
  value = std::fabs(value);
  if (std::isinf(value)) return sign | infinity;
  if (value == 0) return sign;
  int exponent;
  std::frexp(value, &exponent);
  const int step = std::max(exponent - format.precision, format.last_bit);  // of the result's last bit
  const auto steps = static_cast<uint64_t>(std::nearbyint(std::ldexp(value, -step)));
  // Magnitudes count up through the binades, so a carry into the next one needs no care.
  const uint64_t first = step == format.last_bit ? 0 : uint64_t(step - format.last_bit) << (format.precision - 1);
  return sign | std::min(first + steps, infinity);
}

// The host element, as a float32 or float64 computation gives it.
inline long double HostElement(DType dtype, const std::vector<const void*>& inputs, size_t index) {
  if (dtype == DType::kFloat64) {
    double sum = 0;
    for (size_t k = 0; k < inputs.size(); ++k) {
      const auto x = std::bit_cast<double>(BitsAt(dtype, inputs[k], index));
      sum = k == 0 ? x : sum + x;
    }
    return sum;
  }
  float sum = 0;
  for (size_t k = 0; k < inputs.size(); ++k) {
    const auto x = static_cast<float>(ValueOf(dtype, BitsAt(dtype, inputs[k], index)));
    sum = k == 0 ? x : sum + x;
  }
  return sum;
}

inline bool IsPacked(DType dtype, uint32_t headroom_bits) { return dtype == DType::kBFloat16 && headroom_bits <= 7; }

// Bits of |q|, and log2 of its unit, from the bounds in fixed_point.cc.
inline int QuantisedBits(DType dtype, uint32_t headroom_bits) {
  const int h = static_cast<int>(headroom_bits);
  return dtype == DType::kFloat64 ? 61 - 2 * h : IsPacked(dtype, headroom_bits) ? 15 - h : 30 - h;
}
inline int UnitExponent(DType dtype, int32_t exponent, uint32_t headroom_bits) {
  const int last_bit = dtype == DType::kFloat64 ? -1074 : IsPacked(dtype, headroom_bits) ? -126 : -149;
  return std::max(exponent - QuantisedBits(dtype, headroom_bits), last_bit);
}

inline int64_t Quantise(DType dtype, long double host_element, int32_t exponent, uint32_t headroom_bits) {
  const int unit = UnitExponent(dtype, exponent, headroom_bits);
  const auto q = static_cast<int64_t>(std::nearbyint(std::ldexp(host_element, -unit)));
  const int64_t range = int64_t{1} << QuantisedBits(dtype, headroom_bits);
  const int64_t largest = IsPacked(dtype, headroom_bits) ? range - 1 : range;
  return std::clamp(q, -largest, largest);
}

}  // namespace passing::reference

#endif  // TESTS_XLA_FFI_HOST_SUPPORT_FIXED_POINT_REFERENCE_H_
