#include "host/packets/lane_product.h"

#include <algorithm>
#include <cassert>

#include "wire/lanes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace passing {
namespace {

PartialProducts PlainProduct(const uint8_t* lanes, uint32_t count, const int32_t* factors) {
  assert(count <= kMaxProductLanes);
  constexpr uint32_t kParts = std::tuple_size_v<PartialProducts>;
  PartialProducts parts{};
  const auto add = [&](uint32_t i, uint32_t part) {
    parts[part] += int64_t{static_cast<int32_t>(wire::LoadLane(lanes, i))} * factors[i];
  };
  uint32_t i = 0;
  for (; i + kParts <= count; i += kParts) {
    for (uint32_t part = 0; part < kParts; ++part) add(i + part, part);
  }
  for (; i < count; ++i) add(i, i % kParts);
  return parts;
}

#if defined(__x86_64__)

using Vector = __m256i;

// Adds the products of the even ones of eight lanes to `even`, and those of the others to `odd`.
__attribute__((target("avx2"))) inline void AddProducts(const uint8_t* lanes, const int32_t* factors, Vector& even,
                                                        Vector& odd) {
  const Vector network_order =
      _mm256_broadcastsi128_si256(_mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3));
  const Vector of_even = _mm256_loadu_si256(reinterpret_cast<const Vector*>(factors));
  const Vector of_odd = _mm256_loadu_si256(reinterpret_cast<const Vector*>(factors + 1));
  const Vector x = _mm256_shuffle_epi8(_mm256_loadu_si256(reinterpret_cast<const Vector*>(lanes)), network_order);
  even = _mm256_add_epi64(even, _mm256_mul_epi32(x, of_even));
  odd = _mm256_add_epi64(odd, _mm256_mul_epi32(_mm256_srli_epi64(x, 32), of_odd));
}

__attribute__((target("avx2"))) PartialProducts ProductByAvx2(const uint8_t* lanes, uint32_t count,
                                                              const int32_t* factors) {
  assert(count <= kMaxProductLanes);
  constexpr uint32_t kLanes = sizeof(Vector) / 4;
  Vector even = _mm256_setzero_si256(), odd = _mm256_setzero_si256();
  uint32_t i = 0;
  for (; i + kLanes <= count; i += kLanes) AddProducts(lanes + 4 * size_t{i}, &factors[i], even, odd);
  if (i < count) {
    std::array<uint8_t, sizeof(Vector)> last{};
    std::copy_n(lanes + 4 * size_t{i}, 4 * size_t{count - i}, last.begin());
    AddProducts(last.data(), &factors[i], even, odd);
  }
  PartialProducts parts;
  _mm256_storeu_si256(reinterpret_cast<Vector*>(&parts[0]), even);
  _mm256_storeu_si256(reinterpret_cast<Vector*>(&parts[4]), odd);
  return parts;
}

// Sixteen lanes at a time, and the rest by a mask. A product takes the lower half of 64 bits, so one shuffle puts the
// even lanes there and another one the odd ones: shifts would wait for the port of the CPU that multiplies.
__attribute__((target("avx512f,avx512bw"))) inline void AddWideProducts(const uint8_t* lanes, __mmask16 mask,
                                                                        const int32_t* factors, __m512i& even,
                                                                        __m512i& odd) {
  const __m512i to_even = _mm512_set4_epi32(0x0C0D0E0F, 0x08090A0B, 0x04050607, 0x00010203);
  const __m512i to_odd = _mm512_set4_epi32(0x08090A0B, 0x0C0D0E0F, 0x00010203, 0x04050607);
  const __m512i x = _mm512_maskz_loadu_epi32(mask, lanes);
  // Masks of all lanes: without one, g++ 12 warns of its own header.
  even = _mm512_add_epi64(even,
                          _mm512_maskz_mul_epi32(0xFF, _mm512_shuffle_epi8(x, to_even), _mm512_loadu_si512(factors)));
  odd = _mm512_add_epi64(odd,
                         _mm512_maskz_mul_epi32(0xFF, _mm512_shuffle_epi8(x, to_odd), _mm512_loadu_si512(factors + 1)));
}

__attribute__((target("avx512f,avx512bw"))) PartialProducts ProductByAvx512(const uint8_t* lanes, uint32_t count,
                                                                            const int32_t* factors) {
  assert(count <= kMaxProductLanes);
  constexpr uint32_t kLanes = sizeof(__m512i) / 4;
  __m512i even = _mm512_setzero_si512(), odd = _mm512_setzero_si512();
  uint32_t i = 0;
  for (; i + kLanes <= count; i += kLanes) AddWideProducts(lanes + 4 * size_t{i}, 0xFFFF, &factors[i], even, odd);
  const auto rest = static_cast<__mmask16>((1U << (count - i)) - 1);
  if (i < count) AddWideProducts(lanes + 4 * size_t{i}, rest, &factors[i], even, odd);
  PartialProducts parts;
  _mm512_storeu_si512(parts.data(), _mm512_add_epi64(even, odd));
  return parts;
}

#endif

}  // namespace

std::vector<LaneProduct> AllLaneProducts() {
  std::vector<LaneProduct> all;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) all.push_back(ProductByAvx512);
  if (__builtin_cpu_supports("avx2")) all.push_back(ProductByAvx2);
#endif
  all.push_back(PlainProduct);
  return all;
}

}  // namespace passing
