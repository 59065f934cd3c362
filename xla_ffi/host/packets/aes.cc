#include "host/packets/aes.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "wire/lanes.h"

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

namespace passing {
namespace {

constexpr uint8_t TimesTwo(uint8_t x) { return static_cast<uint8_t>(x << 1 ^ (x >> 7) * 0x1B); }

// p runs through all powers of 3, and q through their inverses.
constexpr std::array<uint8_t, 256> MakeSBox() {
  std::array<uint8_t, 256> box{};
  uint8_t p = 1, q = 1;
  do {
    p = static_cast<uint8_t>(p ^ TimesTwo(p));
    for (const int shift : {1, 2, 4}) q = static_cast<uint8_t>(q ^ q << shift);
    if ((q & 0x80) != 0) q ^= 0x09;
    box[p] = static_cast<uint8_t>(q ^ std::rotl(q, 1) ^ std::rotl(q, 2) ^ std::rotl(q, 3) ^ std::rotl(q, 4) ^ 0x63);
  } while (p != 1);
  box[0] = 0x63;
  return box;
}
constexpr std::array<uint8_t, 256> kSBox = MakeSBox();

using Block = std::array<uint8_t, Aes::kBlockBytes>;

void AddKey(const uint8_t* key, Block& block) {
  for (size_t i = 0; i < block.size(); ++i) block[i] ^= key[i];
}

// SubBytes and ShiftRows: byte `row` of column `column` comes from `row` columns further.
Block Shifted(const Block& block) {
  Block shifted;
  for (size_t i = 0; i < block.size(); ++i) shifted[i] = kSBox[block[(i + 4 * (i % 4)) % block.size()]];
  return shifted;
}

void MixColumns(Block& block) {
  for (size_t column = 0; column < block.size(); column += 4) {
    uint8_t* const x = &block[column];
    const auto all = static_cast<uint8_t>(x[0] ^ x[1] ^ x[2] ^ x[3]);
    const uint8_t first = x[0];
    for (size_t row = 0; row < 4; ++row) {
      const uint8_t next = row == 3 ? first : x[row + 1];
      x[row] ^= static_cast<uint8_t>(all ^ TimesTwo(x[row] ^ next));
    }
  }
}

// Looks bytes up in a table, so its time depends on the key: only for CPUs that have no instructions for it.
template <bool kAdds>
void ApplyPlain(const Aes::RoundKeys& keys, uint64_t high, uint64_t low, uint32_t count, const uint8_t* in,
                uint8_t* out) {
  for (uint32_t i = 0; i < count; ++i, in += Aes::kBlockBytes, out += Aes::kBlockBytes) {
    Block block;
    for (size_t byte = 0; byte < 8; ++byte) {
      block[byte] = static_cast<uint8_t>((low + i) >> 8 * byte);
      block[8 + byte] = static_cast<uint8_t>(high >> 8 * byte);
    }
    AddKey(keys.data(), block);
    for (uint32_t round = 1; round <= Aes::kRounds; ++round) {
      block = Shifted(block);
      if (round < Aes::kRounds) MixColumns(block);
      AddKey(&keys[Aes::kBlockBytes * round], block);
    }
    for (uint32_t lane = 0; lane < Aes::kLanesOfBlock; ++lane) {
      const uint32_t made = wire::LoadLane(block.data(), lane);
      wire::StoreLane(out, lane, wire::LoadLane(in, lane) + (kAdds ? made : -made));
    }
  }
}

#if defined(__x86_64__)

template <bool kAdds>
__attribute__((target("aes,ssse3"))) void ApplyByAesNi(const Aes::RoundKeys& keys, uint64_t high, uint64_t low,
                                                       uint32_t count, const uint8_t* in, uint8_t* out) {
  using Vector = __m128i;
  constexpr uint32_t kTogether = Aes::kStride / 2;
  const Vector network_order = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
  Vector key[Aes::kRounds + 1];
  for (uint32_t i = 0; i <= Aes::kRounds; ++i) {
    key[i] = _mm_loadu_si128(reinterpret_cast<const Vector*>(&keys[Aes::kBlockBytes * i]));
  }
  for (uint32_t first = 0; first < count; first += kTogether, low += kTogether) {
    Vector x[kTogether];
#pragma GCC unroll 9
    for (uint32_t i = 0; i < kTogether; ++i) {
      const Vector counter = _mm_set_epi64x(static_cast<int64_t>(high), static_cast<int64_t>(low + i));
      x[i] = _mm_xor_si128(counter, key[0]);
    }
#pragma GCC unroll 9
    for (uint32_t round = 1; round < Aes::kRounds; ++round) {
#pragma GCC unroll 9
      for (uint32_t i = 0; i < kTogether; ++i) x[i] = _mm_aesenc_si128(x[i], key[round]);
    }
#pragma GCC unroll 9
    for (uint32_t i = 0; i < kTogether; ++i, in += sizeof(Vector), out += sizeof(Vector)) {
      const Vector made = _mm_shuffle_epi8(_mm_aesenclast_si128(x[i], key[Aes::kRounds]), network_order);
      const Vector lanes = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const Vector*>(in)), network_order);
      const Vector sum = kAdds ? _mm_add_epi32(lanes, made) : _mm_sub_epi32(lanes, made);
      _mm_storeu_si128(reinterpret_cast<Vector*>(out), _mm_shuffle_epi8(sum, network_order));
    }
  }
}

// Clang 14 knows no such feature by name. That the system keeps the registers is what AVX2 says.
bool HasVaes() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __builtin_cpu_supports("avx2") && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & bit_VAES) != 0;
}

// Two blocks in each register.
template <bool kAdds>
__attribute__((target("vaes,avx2"))) void ApplyByVaes(const Aes::RoundKeys& keys, uint64_t high, uint64_t low,
                                                      uint32_t count, const uint8_t* in, uint8_t* out) {
  using Vector = __m256i;
  constexpr uint32_t kTogether = Aes::kStride / 2;
  const Vector network_order =
      _mm256_broadcastsi128_si256(_mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3));
  Vector key[Aes::kRounds + 1];
  for (uint32_t i = 0; i <= Aes::kRounds; ++i) {
    key[i] =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(&keys[Aes::kBlockBytes * i])));
  }
  const auto top = static_cast<int64_t>(high);
  Vector counter = _mm256_set_epi64x(top, static_cast<int64_t>(low + 1), top, static_cast<int64_t>(low));
  const Vector step = _mm256_set_epi64x(0, 2, 0, 2);
  for (uint32_t first = 0; first < count; first += Aes::kStride) {
    Vector x[kTogether];
#pragma GCC unroll 9
    for (uint32_t i = 0; i < kTogether; ++i) {
      x[i] = _mm256_xor_si256(counter, key[0]);
      counter = _mm256_add_epi64(counter, step);
    }
#pragma GCC unroll 9
    for (uint32_t round = 1; round < Aes::kRounds; ++round) {
#pragma GCC unroll 9
      for (uint32_t i = 0; i < kTogether; ++i) x[i] = _mm256_aesenc_epi128(x[i], key[round]);
    }
#pragma GCC unroll 9
    for (uint32_t i = 0; i < kTogether; ++i, in += sizeof(Vector), out += sizeof(Vector)) {
      const Vector made = _mm256_shuffle_epi8(_mm256_aesenclast_epi128(x[i], key[Aes::kRounds]), network_order);
      const Vector lanes = _mm256_shuffle_epi8(_mm256_loadu_si256(reinterpret_cast<const Vector*>(in)), network_order);
      const Vector sum = kAdds ? _mm256_add_epi32(lanes, made) : _mm256_sub_epi32(lanes, made);
      _mm256_storeu_si256(reinterpret_cast<Vector*>(out), _mm256_shuffle_epi8(sum, network_order));
    }
  }
}

#elif defined(__aarch64__) && defined(__linux__)

template <bool kAdds>
__attribute__((target(PASSING_HAS_AES))) void ApplyByNeon(const Aes::RoundKeys& keys, uint64_t high, uint64_t low,
                                                          uint32_t count, const uint8_t* in, uint8_t* out) {
  constexpr uint32_t kTogether = Aes::kStride / 2;
  static_assert(std::endian::native == std::endian::little);
  uint8x16_t key[Aes::kRounds + 1];
  for (uint32_t i = 0; i <= Aes::kRounds; ++i) key[i] = vld1q_u8(&keys[Aes::kBlockBytes * i]);
  for (uint32_t first = 0; first < count; first += kTogether, low += kTogether) {
    uint8x16_t x[kTogether];
    for (uint32_t i = 0; i < kTogether; ++i) {
      x[i] = vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(low + i), vcreate_u64(high)));
    }
    // An AESE adds a key before it does the rest of the round, whose key comes with the next one.
    for (uint32_t round = 0; round + 1 < Aes::kRounds; ++round) {
      for (uint32_t i = 0; i < kTogether; ++i) x[i] = vaesmcq_u8(vaeseq_u8(x[i], key[round]));
    }
    for (uint32_t i = 0; i < kTogether; ++i, in += sizeof x[i], out += sizeof x[i]) {
      const uint8x16_t block = veorq_u8(vaeseq_u8(x[i], key[Aes::kRounds - 1]), key[Aes::kRounds]);
      const uint32x4_t made = vreinterpretq_u32_u8(vrev32q_u8(block));
      const uint32x4_t lanes = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(in)));
      const uint32x4_t sum = kAdds ? vaddq_u32(lanes, made) : vsubq_u32(lanes, made);
      vst1q_u8(out, vrev32q_u8(vreinterpretq_u8_u32(sum)));
    }
  }
}

#endif

}  // namespace

Aes::Aes(std::span<const uint8_t, kKeyBytes> key) {
  std::copy(key.begin(), key.end(), keys_.begin());
  uint8_t constant = 1;
  for (size_t at = kKeyBytes; at < keys_.size(); at += 4) {
    std::array<uint8_t, 4> word;
    for (size_t i = 0; i < 4; ++i) word[i] = keys_[at - 4 + i];
    if (at % kKeyBytes == 0) {
      std::rotate(word.begin(), word.begin() + 1, word.end());
      for (uint8_t& byte : word) byte = kSBox[byte];
      word[0] ^= constant;
      constant = TimesTwo(constant);
    }
    for (size_t i = 0; i < 4; ++i) keys_[at + i] = keys_[at - kKeyBytes + i] ^ word[i];
  }
}

std::vector<Aes::Implementation> Aes::All() {
  std::vector<Implementation> all;
#if defined(__x86_64__)
  if (HasVaes()) {
    all.push_back({ApplyByVaes<true>, ApplyByVaes<false>});
  }
  if (__builtin_cpu_supports("aes")) all.push_back({ApplyByAesNi<true>, ApplyByAesNi<false>});
#elif defined(__aarch64__) && defined(__linux__)
  if ((getauxval(AT_HWCAP) & HWCAP_AES) != 0) all.push_back({ApplyByNeon<true>, ApplyByNeon<false>});
#endif
  all.push_back({ApplyPlain<true>, ApplyPlain<false>});
  return all;
}

const Aes::Implementation& Aes::Best() {
  static const Implementation best = All().front();
  return best;
}

void Aes::ApplyTo(Apply apply, uint64_t high, uint64_t low, uint32_t lanes, const uint8_t* in, uint8_t* out) const {
  constexpr uint32_t kLanesOfStride = kStride * kLanesOfBlock;
  const uint32_t whole = lanes / kLanesOfStride * kStride;
  apply(keys_, high, low, whole, in, out);
  const size_t rest = lanes % kLanesOfStride;
  if (rest == 0) return;
  const size_t done = size_t{whole} * kBlockBytes;
  if (out != in) std::copy_n(in + done, 4 * rest, out + done);
  apply(keys_, high, low + whole, kStride, out + done, out + done);
}

}  // namespace passing
