// A narrow wire of b = 16, 8 or 4 bits, of float32, float16 and bfloat16 (host elements are float32): 32/b elements a
// lane, as sum of q_j * 2^(b*j) modulo 2^32, j from 0 on. With Q = floor((2^(b-1) - 1) / H) and M >= |x| the number
// that the ranks agreed on, q is y = x * Q / M rounded up or down at random, up with the probability of what is above
// the floor.
//   Range. |y| <= Q, an integer, so |q| <= Q, and |sum of q| <= H * Q < 2^(b-1). So the sum of the lanes modulo 2^32 is
//   that of the sums S_j * 2^(b*j) with |S_j| < 2^(b-1), which determines S_0, then S_1 and so on; or all at once after
//   2^(b-1) is added to each (narrow_kernels.h).
//   Rounding. y * 2^16 is rounded to the integer z; where |y| = Q z is Q * 2^16. q = floor((z + r) / 2^16), r from 0 to
//   2^16 - 1: an integer y is q, and 0 is 0. With r uniform q is z / 2^16 on average: unbiased but for z's error. In
//   double the product is off by a factor of 1 +- 2^-52, so z is off by 1/2 and next to nothing. In float, where scale
//   and product are rounded, by a factor of 1 +- 2^-23 and next to nothing: up to 63/128 if Q <= 63, so an integer y
//   still has its z, and z is off by less than 1. So |q - y| < 1 + 2^-16.
//   Scale. Q * 2^16 / M lies between 2^-112 and 2^160: M is from 2^-129 to 2^128, since the code's last bit is worth
//   2^-129 for denormals. No cap is needed. A scale beyond float's range is multiplied in double.
//   Error. In units of M / Q each rank is off by less than 1 + 2^-16, with variance f (1 - f) <= 1/4, f = y - floor(y);
//   ranks and elements have independent r. So the sum is off by less than H (1 + 2^-16) M / Q, and by 0.5 sqrt(H) M / Q
//   root mean square.
//   Decoding. M / Q and its product with the sum of q in double are off by 2^-52 of it. In float M / Q is u + v. u has
//   16 bits, so its product with a sum of 8 is exact; that with v is off by 2^-23 of 2^-15, so by 2^-38 of the whole.
//   The sum times M has 11 bits and Q has 7, so the quotient is at least 2^-32 of itself from any middle of two floats.
//   So the bits are those of double. Either is rounded to float32, and where the dtype is narrower once more: half a
//   step of the dtype, and 2^-24 of it for the double rounding.
//   M has 4 significant bits, as it is up to 1/8 above the largest |x| then, on average 1.06 times; with one bit it
//   would be up to twice it, on average 1.44 times: half a bit of 4 or 8.
//   To nearest. A sum whose caller takes the residuals adds them to what it sends next, so no error is lost, and need
//   not be 0 on average; but what is kept back must not grow. There r is 2^15, so |q - y| <= 1/2 + 2^-16, and a
//   residual is at most M / 2Q. With c M the largest number of 4 bits for what is sent next, c = 9/8, and elements up
//   to G, M' <= c (G + M / 2Q): so M stays below 18/7 G even where Q is 1. With random bits a residual would be up to
//   M / Q, and where Q is 1 (int4, from 4 ranks on) M would grow by G with each sum.
#ifndef XLA_FFI_HOST_NUMBERS_NARROW_LANES_H_
#define XLA_FFI_HOST_NUMBERS_NARROW_LANES_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "host/numbers/fixed_point.h"
#include "host/numbers/formats.h"
#include "host/numbers/narrow_kernels.h"
#include "host/numbers/random_bits.h"

namespace passing {

inline constexpr int kCodeDropped = 20;  // bits of a float32

// M's code, from the bits of the largest |x|.
inline int32_t CodeOf(int32_t bits) {
  return bits == 0 ? kNoExponent : (bits + ((1 << kCodeDropped) - 1)) >> kCodeDropped;
}

// M. The code comes from the network: whatever it says, the arithmetic stays defined.
inline double NumberOf(int32_t code) {
  constexpr int32_t kInfinity = kernels::Bits<float>::kInfinity >> kCodeDropped;
  if (code >= kInfinity) return 0x1p128;
  return std::bit_cast<float>(std::max(code, 1) << kCodeDropped);
}

// Q.
inline double LargestQuantised(uint32_t bits, uint32_t world_size) {
  const uint32_t largest = ((1u << (bits - 1)) - 1) / world_size;
  assert(largest > 0);
  return largest;
}

// The largest Q for which z may be computed in float (Rounding, above).
inline constexpr double kMaxFloatQuantised = 63;

template <typename F>
decltype(auto) WithBits(WireDtype wire_dtype, F&& f) {
  switch (wire_dtype) {
    case WireDtype::kInt16:
      return f(std::integral_constant<uint32_t, 16>{});
    case WireDtype::kInt8:
      return f(std::integral_constant<uint32_t, 8>{});
    default:
      return f(std::integral_constant<uint32_t, 4>{});
  }
}

template <uint32_t kBits>
inline constexpr uint32_t kLaneElements = 32 / kBits;
template <uint32_t kBits>
constexpr size_t LaneCountOf(size_t count) {
  return (count + kLaneElements<kBits> - 1) / kLaneElements<kBits>;
}

// Room for a block and for what is left of its last lane.
template <uint32_t kBits>
using BiasedBlock = std::array<kernels::Biased<kBits>, kMaxBlockElements + 7>;

template <uint32_t kBits>
bool EncodeNarrow(const void* elements, size_t count, int32_t exponent, uint32_t world_size, const Rounding& rounding,
                  uint8_t* lanes) {
  constexpr uint32_t kStep = kernels::kStepElements;
  assert(rounding.first + count <= kMaxBlockElements);
  const uint32_t first_step = rounding.first / kStep, in_first_step = rounding.first % kStep;
  const auto steps = static_cast<uint32_t>((in_first_step + count + kStep - 1) / kStep);
  std::array<uint32_t, (kMaxBlockElements / kStep + 1) * kernels::kGenerators> random;
  if (rounding.to_nearest) {
    random.fill(0x80008000);  // half a unit for each of two elements
  } else {
    kernels::RandomSteps(rounding.key, rounding.block, first_step, steps, random.data());
  }
  const double scale = exponent == kNoExponent ? 0 : LargestQuantised(kBits, world_size) * 0x1p16 / NumberOf(exponent);
  BiasedBlock<kBits> biased;
  const auto quantise = [&](auto real) {
    return kernels::Quantise<kBits>(elements, count, real,
                                    reinterpret_cast<const uint16_t*>(random.data()) + in_first_step, biased.data());
  };
  const bool fits_float = LargestQuantised(kBits, world_size) <= kMaxFloatQuantised && scale < 0x1p127;
  const bool finite = fits_float ? quantise(static_cast<float>(scale)) : quantise(scale);
  const size_t lane_count = LaneCountOf<kBits>(count);
  std::fill(biased.begin() + count, biased.begin() + lane_count * kLaneElements<kBits>, kernels::kBias<kBits>);
  if constexpr (kBits == 4) {
    std::array<uint8_t, sizeof(biased) / 2> bytes;
    kernels::PackNibbles(biased.data(), lane_count * 4, bytes.data());
    kernels::PackLanes<kBits>(bytes.data(), lane_count, lanes);
  } else {
    kernels::PackLanes<kBits>(biased.data(), lane_count, lanes);
  }
  return finite;
}

template <typename Format, uint32_t kBits>
void DecodeNarrow(const uint8_t* lanes, size_t count, int32_t exponent, uint32_t world_size, void* out) {
  BiasedBlock<kBits> biased;
  const size_t lane_count = LaneCountOf<kBits>(count);
  if constexpr (kBits == 4) {
    std::array<uint8_t, sizeof(biased) / 2> bytes;
    kernels::UnpackLanes<kBits>(lanes, lane_count, bytes.data());
    kernels::UnpackNibbles(bytes.data(), lane_count * 4, biased.data());
  } else {
    kernels::UnpackLanes<kBits>(lanes, lane_count, biased.data());
  }
  const double unit = exponent == kNoExponent ? 0 : NumberOf(exponent) / LargestQuantised(kBits, world_size);
  if constexpr (kBits <= 8) {
    if (0x1p-64 < unit && unit < 0x1p64) {       // far from denormals and infinity, also the parts and the products
      constexpr uint32_t kUpper16 = 0xFFFFFF00;  // sign, exponent and 16 significant bits
      const auto upper = std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(unit)) & kUpper16);
      kernels::ScaleSums<Format, kBits>(biased.data(), count, out, upper, static_cast<float>(unit - upper));
      return;
    }
  }
  kernels::ScaleSums<Format, kBits>(biased.data(), count, out, unit);
}

}  // namespace passing

#endif  // XLA_FFI_HOST_NUMBERS_NARROW_LANES_H_
