// Floats of a sum of few elements: several lanes each, so that nothing that a double would keep is lost. A sum that
// waits for nothing but wake-ups must not wait for calls by the block, which may be one element: so its host elements
// are kept as doubles, and all here are short loops over these, in the scope of the caller's DefaultFloatMode.
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

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "host/numbers/dtype.h"

namespace passing {

// The lanes of an element.
inline uint32_t PreciseLanesOf(DType dtype) { return dtype == DType::kFloat64 ? 3 : 2; }

// As BlockExponent, SumPass::IsExactAt and EncodeLanes say. `elements`: host elements, finite or not.
int32_t PreciseExponent(std::span<const double> elements);
bool ArePreciselyExact(DType dtype, uint32_t headroom_bits, std::span<const double> elements, int32_t exponent);
uint8_t EncodePrecise(DType dtype, uint32_t headroom_bits, std::span<const double> elements, int32_t exponent,
                      uint8_t* lanes);
// Writes `count` sums, in the dtype, to `out`.
void DecodePrecise(DType dtype, uint32_t headroom_bits, const uint8_t* lanes, size_t count, int32_t exponent,
                   void* out);

// Appends the host elements of up to kMaxBlockElements of a leaf.
void AppendHostElements(DType dtype, std::span<const void* const> inputs, size_t count, std::vector<double>& elements);

}  // namespace passing

#endif  // XLA_FFI_HOST_NUMBERS_PRECISE_LANES_H_
