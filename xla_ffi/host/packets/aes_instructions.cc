#include "host/packets/aes_instructions.h"

#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_neon.h>
#include <sys/auxv.h>
#ifdef __clang__
#define PASSING_HAS_AES "aes"
#else
#define PASSING_HAS_AES "+crypto"  // which is what GCC 12 has those functions for
#endif
#endif

#define PASSING_INLINE(FEATURES) __attribute__((target(FEATURES), always_inline)) inline

// Each implementation has a function for some vectors of lanes at once, as the rounds of their blocks overlap. It makes
// blocks of `first`, which is the first one of each stream after the first round, and of the changes from that one. The
// functions aren't made of one template, as compilers inline none that is for other instructions than its caller.
namespace passing {
namespace {

constexpr uint32_t kRounds = Aes::kRounds;

constexpr uint32_t VectorsAtOnce(bool adds, bool subtracts) { return adds && subtracts ? 4 : 8; }

#if defined(__x86_64__)

// ---------------------------------------------------------------- a block in each register

PASSING_INLINE("aes,ssse3") __m128i Load(const uint8_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

PASSING_INLINE("aes,ssse3") __m128i Swapped(__m128i bytes) {
  return _mm_shuffle_epi8(bytes, _mm_set_epi32(0x0C0D0E0F, 0x08090A0B, 0x04050607, 0x00010203));
}

PASSING_INLINE("aes,ssse3") __m128i AfterOneRound(const Aes::Schedule& schedule, uint64_t high, uint64_t low) {
  const __m128i block = _mm_set_epi64x(static_cast<int64_t>(high), static_cast<int64_t>(low));
  const __m128i begun = _mm_xor_si128(block, Load(schedule.keys.data()));
  return _mm_aesenc_si128(begun, Load(&schedule.keys[Aes::kBlockBytes]));
}

template <bool kAdds, bool kSubtracts, uint32_t kVectors>
PASSING_INLINE("aes,ssse3")
void ApplyVectors(const __m128i* key, const __m128i* first, const uint8_t* changes, const uint8_t* in, uint8_t* out) {
  using Vector = __m128i;
  constexpr uint32_t kBlocks = (kAdds + kSubtracts) * kVectors;  // of the one stream, then of the other
  Vector x[kBlocks];
#pragma GCC unroll 8
  for (uint32_t i = 0; i < kBlocks; ++i) {
    const Vector change = Load(changes + sizeof(Vector) * (i % kVectors));
    x[i] = _mm_xor_si128(first[kAdds && i < kVectors ? 0 : 1], change);
  }
#pragma GCC unroll 8
  for (uint32_t round = 2; round < kRounds; ++round) {
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kBlocks; ++i) x[i] = _mm_aesenc_si128(x[i], key[round]);
  }
#pragma GCC unroll 8
  for (uint32_t i = 0; i < kVectors; ++i, in += sizeof(Vector), out += sizeof(Vector)) {
    const Vector &added = x[i], &subtracted = x[kBlocks - kVectors + i];
    Vector lanes = Swapped(Load(in));
    if (kAdds) lanes = _mm_add_epi32(lanes, Swapped(_mm_aesenclast_si128(added, key[kRounds])));
    if (kSubtracts) lanes = _mm_sub_epi32(lanes, Swapped(_mm_aesenclast_si128(subtracted, key[kRounds])));
    _mm_storeu_si128(reinterpret_cast<Vector*>(out), Swapped(lanes));
  }
}

template <bool kAdds, bool kSubtracts>
__attribute__((target("aes,ssse3"))) void ApplyByAesNi(const Aes::Schedule& schedule, const Aes::Counters& counters,
                                                       uint32_t lanes, const uint8_t* in, uint8_t* out) {
  constexpr uint32_t kAtOnce = VectorsAtOnce(kAdds, kSubtracts);
  constexpr size_t kBytes = sizeof(__m128i);
  __m128i key[kRounds + 1];
  for (uint32_t i = 2; i <= kRounds; ++i) key[i] = Load(&schedule.keys[Aes::kBlockBytes * i]);
  const __m128i first[2] = {AfterOneRound(schedule, counters.high, counters.added),
                            AfterOneRound(schedule, counters.high, counters.subtracted)};
  const uint8_t* const changes = schedule.changes.data();
  const size_t bytes = size_t{4} * lanes;
  size_t at = 0;
  for (; at + kAtOnce * kBytes <= bytes; at += kAtOnce * kBytes) {
    ApplyVectors<kAdds, kSubtracts, kAtOnce>(key, first, changes + at, in + at, out + at);
  }
  for (; at + kBytes <= bytes; at += kBytes) {
    ApplyVectors<kAdds, kSubtracts, 1>(key, first, changes + at, in + at, out + at);
  }
  if (at == bytes) return;
  uint8_t last[kBytes] = {};
  std::memcpy(last, in + at, bytes - at);
  ApplyVectors<kAdds, kSubtracts, 1>(key, first, changes + at, last, last);
  std::memcpy(out + at, last, bytes - at);
}

// ---------------------------------------------------------------- two blocks in each register

PASSING_INLINE("aes,vaes,avx2") __m256i LoadTwo(const uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

PASSING_INLINE("aes,vaes,avx2") __m256i Swapped(__m256i bytes) {
  const __m128i order = _mm_set_epi32(0x0C0D0E0F, 0x08090A0B, 0x04050607, 0x00010203);
  return _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(order));
}

template <bool kAdds, bool kSubtracts, uint32_t kVectors>
PASSING_INLINE("aes,vaes,avx2")
void ApplyVectors(const __m256i* key, const __m256i* first, const uint8_t* changes, const uint8_t* in, uint8_t* out) {
  using Vector = __m256i;
  constexpr uint32_t kBlocks = (kAdds + kSubtracts) * kVectors;
  Vector x[kBlocks];
#pragma GCC unroll 8
  for (uint32_t i = 0; i < kBlocks; ++i) {
    const Vector change = LoadTwo(changes + sizeof(Vector) * (i % kVectors));
    x[i] = _mm256_xor_si256(first[kAdds && i < kVectors ? 0 : 1], change);
  }
#pragma GCC unroll 8
  for (uint32_t round = 2; round < kRounds; ++round) {
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kBlocks; ++i) x[i] = _mm256_aesenc_epi128(x[i], key[round]);
  }
#pragma GCC unroll 8
  for (uint32_t i = 0; i < kVectors; ++i, in += sizeof(Vector), out += sizeof(Vector)) {
    const Vector &added = x[i], &subtracted = x[kBlocks - kVectors + i];
    Vector lanes = Swapped(LoadTwo(in));
    if (kAdds) lanes = _mm256_add_epi32(lanes, Swapped(_mm256_aesenclast_epi128(added, key[kRounds])));
    if (kSubtracts) lanes = _mm256_sub_epi32(lanes, Swapped(_mm256_aesenclast_epi128(subtracted, key[kRounds])));
    _mm256_storeu_si256(reinterpret_cast<Vector*>(out), Swapped(lanes));
  }
}

template <bool kAdds, bool kSubtracts>
__attribute__((target("aes,vaes,avx2"))) void ApplyByVaes(const Aes::Schedule& schedule, const Aes::Counters& counters,
                                                          uint32_t lanes, const uint8_t* in, uint8_t* out) {
  constexpr uint32_t kAtOnce = VectorsAtOnce(kAdds, kSubtracts);
  constexpr size_t kBytes = sizeof(__m256i);
  __m256i key[kRounds + 1];
  for (uint32_t i = 2; i <= kRounds; ++i) {
    key[i] = _mm256_broadcastsi128_si256(Load(&schedule.keys[Aes::kBlockBytes * i]));
  }
  const __m256i first[2] = {_mm256_broadcastsi128_si256(AfterOneRound(schedule, counters.high, counters.added)),
                            _mm256_broadcastsi128_si256(AfterOneRound(schedule, counters.high, counters.subtracted))};
  const uint8_t* const changes = schedule.changes.data();
  const size_t bytes = size_t{4} * lanes;
  size_t at = 0;
  for (; at + kAtOnce * kBytes <= bytes; at += kAtOnce * kBytes) {
    ApplyVectors<kAdds, kSubtracts, kAtOnce>(key, first, changes + at, in + at, out + at);
  }
  for (; at + kBytes <= bytes; at += kBytes) {
    ApplyVectors<kAdds, kSubtracts, 1>(key, first, changes + at, in + at, out + at);
  }
  if (at == bytes) return;
  uint8_t last[kBytes] = {};
  std::memcpy(last, in + at, bytes - at);
  ApplyVectors<kAdds, kSubtracts, 1>(key, first, changes + at, last, last);
  std::memcpy(out + at, last, bytes - at);
}

// ---------------------------------------------------------------- four blocks in each register

// There are registers for all keys, and masks for a part of a vector. (Some masks of all lanes are there because g++ 12
// warns of its own header's functions without one.)
#define PASSING_WIDE "aes,vaes,avx512f,avx512bw"

PASSING_INLINE(PASSING_WIDE) __m512i Swapped(__m512i bytes) {
  return _mm512_shuffle_epi8(bytes, _mm512_set4_epi32(0x0C0D0E0F, 0x08090A0B, 0x04050607, 0x00010203));
}

PASSING_INLINE(PASSING_WIDE) __m512i FourTimes(__m128i block) { return _mm512_maskz_broadcast_i32x4(0xFFFF, block); }

template <bool kAdds, bool kSubtracts, uint32_t kVectors>
PASSING_INLINE(PASSING_WIDE)
void ApplyVectors(const __m512i* key, const __m512i* first, const uint8_t* changes, __mmask16 mask_of_last,
                  const uint8_t* in, uint8_t* out) {
  using Vector = __m512i;
  constexpr uint32_t kBlocks = (kAdds + kSubtracts) * kVectors;
  Vector x[kBlocks];
#pragma GCC unroll 8
  for (uint32_t i = 0; i < kBlocks; ++i) {
    const Vector change = _mm512_loadu_si512(changes + sizeof(Vector) * (i % kVectors));
    x[i] = _mm512_xor_si512(first[kAdds && i < kVectors ? 0 : 1], change);
  }
#pragma GCC unroll 8
  for (uint32_t round = 2; round < kRounds; ++round) {
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kBlocks; ++i) x[i] = _mm512_aesenc_epi128(x[i], key[round]);
  }
#pragma GCC unroll 8
  for (uint32_t i = 0; i < kVectors; ++i, in += sizeof(Vector), out += sizeof(Vector)) {
    const Vector &added = x[i], &subtracted = x[kBlocks - kVectors + i];
    const __mmask16 mask = i + 1 == kVectors ? mask_of_last : 0xFFFF;
    Vector lanes = Swapped(_mm512_maskz_loadu_epi32(mask, in));
    if (kAdds) lanes = _mm512_add_epi32(lanes, Swapped(_mm512_aesenclast_epi128(added, key[kRounds])));
    if (kSubtracts) lanes = _mm512_sub_epi32(lanes, Swapped(_mm512_aesenclast_epi128(subtracted, key[kRounds])));
    _mm512_mask_storeu_epi32(out, mask, Swapped(lanes));
  }
}

template <bool kAdds, bool kSubtracts>
__attribute__((target(PASSING_WIDE))) void ApplyByWideVaes(const Aes::Schedule& schedule, const Aes::Counters& counters,
                                                           uint32_t lanes, const uint8_t* in, uint8_t* out) {
  constexpr uint32_t kAtOnce = VectorsAtOnce(kAdds, kSubtracts);
  constexpr size_t kBytes = sizeof(__m512i);
  __m512i key[kRounds + 1];
  for (uint32_t i = 2; i <= kRounds; ++i) key[i] = FourTimes(Load(&schedule.keys[Aes::kBlockBytes * i]));
  const __m512i first[2] = {FourTimes(AfterOneRound(schedule, counters.high, counters.added)),
                            FourTimes(AfterOneRound(schedule, counters.high, counters.subtracted))};
  const uint8_t* const changes = schedule.changes.data();
  static_assert(sizeof schedule.changes % kBytes == 0);  // as whole vectors of them are read
  const size_t bytes = size_t{4} * lanes;
  size_t at = 0;
  for (; at + kAtOnce * kBytes <= bytes; at += kAtOnce * kBytes) {
    ApplyVectors<kAdds, kSubtracts, kAtOnce>(key, first, changes + at, 0xFFFF, in + at, out + at);
  }
  for (; at < bytes; at += kBytes) {
    const size_t left = (bytes - at) / 4;
    const auto mask = static_cast<__mmask16>(left < 16 ? (1U << left) - 1 : 0xFFFF);
    ApplyVectors<kAdds, kSubtracts, 1>(key, first, changes + at, mask, in + at, out + at);
  }
}

// Clang 14 knows no such feature by name. That the system keeps the registers is what AVX2 and AVX-512 say.
bool HasVaes() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __builtin_cpu_supports("aes") && __builtin_cpu_supports("avx2") &&
         __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & bit_VAES) != 0;
}

#elif defined(__aarch64__) && defined(__linux__)

static_assert(std::endian::native == std::endian::little);

// An AESE adds a key before it does the rest of the round, whose key comes with the next one.
PASSING_INLINE(PASSING_HAS_AES)
uint8x16_t AfterOneRound(const Aes::Schedule& schedule, uint64_t high, uint64_t low) {
  const uint8x16_t block = vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(low), vcreate_u64(high)));
  return vaesmcq_u8(vaeseq_u8(block, vld1q_u8(schedule.keys.data())));
}

template <bool kAdds, bool kSubtracts, uint32_t kVectors>
PASSING_INLINE(PASSING_HAS_AES)
void ApplyVectors(const uint8x16_t* key, const uint8x16_t* first, const uint8_t* changes, const uint8_t* in,
                  uint8_t* out) {
  constexpr uint32_t kBlocks = (kAdds + kSubtracts) * kVectors;  // of the one stream, then of the other
  uint8x16_t x[kBlocks];
  for (uint32_t i = 0; i < kBlocks; ++i) {
    const uint8x16_t change = vld1q_u8(changes + Aes::kBlockBytes * (i % kVectors));
    x[i] = veorq_u8(first[kAdds && i < kVectors ? 0 : 1], change);
  }
  for (uint32_t round = 1; round + 1 < kRounds; ++round) {
    for (uint32_t i = 0; i < kBlocks; ++i) x[i] = vaesmcq_u8(vaeseq_u8(x[i], key[round]));
  }
  for (uint8x16_t& block : x) block = veorq_u8(vaeseq_u8(block, key[kRounds - 1]), key[kRounds]);
  for (uint32_t i = 0; i < kVectors; ++i, in += Aes::kBlockBytes, out += Aes::kBlockBytes) {
    uint32x4_t lanes = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(in)));
    if (kAdds) lanes = vaddq_u32(lanes, vreinterpretq_u32_u8(vrev32q_u8(x[i])));
    if (kSubtracts) lanes = vsubq_u32(lanes, vreinterpretq_u32_u8(vrev32q_u8(x[kBlocks - kVectors + i])));
    vst1q_u8(out, vrev32q_u8(vreinterpretq_u8_u32(lanes)));
  }
}

template <bool kAdds, bool kSubtracts>
__attribute__((target(PASSING_HAS_AES))) void ApplyByNeon(const Aes::Schedule& schedule, const Aes::Counters& counters,
                                                          uint32_t lanes, const uint8_t* in, uint8_t* out) {
  constexpr uint32_t kAtOnce = VectorsAtOnce(kAdds, kSubtracts);
  constexpr size_t kBytes = Aes::kBlockBytes;
  uint8x16_t key[kRounds + 1];
  for (uint32_t i = 1; i <= kRounds; ++i) key[i] = vld1q_u8(&schedule.keys[kBytes * i]);
  const uint8x16_t first[2] = {AfterOneRound(schedule, counters.high, counters.added),
                               AfterOneRound(schedule, counters.high, counters.subtracted)};
  const uint8_t* const changes = schedule.changes.data();
  const size_t bytes = size_t{4} * lanes;
  size_t at = 0;
  for (; at + kAtOnce * kBytes <= bytes; at += kAtOnce * kBytes) {
    ApplyVectors<kAdds, kSubtracts, kAtOnce>(key, first, changes + at, in + at, out + at);
  }
  for (; at + kBytes <= bytes; at += kBytes) {
    ApplyVectors<kAdds, kSubtracts, 1>(key, first, changes + at, in + at, out + at);
  }
  if (at == bytes) return;
  uint8_t last[kBytes] = {};
  std::memcpy(last, in + at, bytes - at);
  ApplyVectors<kAdds, kSubtracts, 1>(key, first, changes + at, last, last);
  std::memcpy(out + at, last, bytes - at);
}

#endif

}  // namespace

std::vector<Aes::Implementation> AesByInstructions() {
  std::vector<Aes::Implementation> all;
#if defined(__x86_64__)
  if (HasVaes() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
    all.push_back({ApplyByWideVaes<true, false>, ApplyByWideVaes<false, true>, ApplyByWideVaes<true, true>});
  }
  if (HasVaes()) all.push_back({ApplyByVaes<true, false>, ApplyByVaes<false, true>, ApplyByVaes<true, true>});
  if (__builtin_cpu_supports("aes")) {
    all.push_back({ApplyByAesNi<true, false>, ApplyByAesNi<false, true>, ApplyByAesNi<true, true>});
  }
#elif defined(__aarch64__) && defined(__linux__)
  if ((getauxval(AT_HWCAP) & HWCAP_AES) != 0) {
    all.push_back({ApplyByNeon<true, false>, ApplyByNeon<false, true>, ApplyByNeon<true, true>});
  }
#endif
  return all;
}

}  // namespace passing
