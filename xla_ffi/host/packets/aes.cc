#include "host/packets/aes.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_neon.h>
#include <sys/auxv.h>
#ifndef HWCAP_AES
#define HWCAP_AES (1 << 3)
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
void EncryptPlain(const Aes::RoundKeys& keys, uint64_t high, uint64_t low, uint32_t count, uint8_t* out) {
  for (uint32_t i = 0; i < count; ++i, out += Aes::kBlockBytes) {
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
    std::copy(block.begin(), block.end(), out);
  }
}

#if defined(__x86_64__)

__attribute__((target("aes,sse2"))) void EncryptByAesNi(const Aes::RoundKeys& keys, uint64_t high, uint64_t low,
                                                        uint32_t count, uint8_t* out) {
  constexpr uint32_t kTogether = 8;
  static_assert(Aes::kStride % kTogether == 0);
  __m128i key[Aes::kRounds + 1];
  for (uint32_t i = 0; i <= Aes::kRounds; ++i) {
    key[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(&keys[Aes::kBlockBytes * i]));
  }
  for (uint32_t first = 0; first < count; first += kTogether, low += kTogether) {
    __m128i x[kTogether];
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kTogether; ++i) {
      const __m128i counter = _mm_set_epi64x(static_cast<int64_t>(high), static_cast<int64_t>(low + i));
      x[i] = _mm_xor_si128(counter, key[0]);
    }
#pragma GCC unroll 9
    for (uint32_t round = 1; round < Aes::kRounds; ++round) {
#pragma GCC unroll 8
      for (uint32_t i = 0; i < kTogether; ++i) x[i] = _mm_aesenc_si128(x[i], key[round]);
    }
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kTogether; ++i, out += sizeof x[i]) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_aesenclast_si128(x[i], key[Aes::kRounds]));
    }
  }
}

// Two blocks in each register.
__attribute__((target("vaes,avx2"))) void EncryptByVaes(const Aes::RoundKeys& keys, uint64_t high, uint64_t low,
                                                        uint32_t count, uint8_t* out) {
  constexpr uint32_t kTogether = Aes::kStride / 2;
  __m256i key[Aes::kRounds + 1];
  for (uint32_t i = 0; i <= Aes::kRounds; ++i) {
    key[i] =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(&keys[Aes::kBlockBytes * i])));
  }
  const auto top = static_cast<int64_t>(high);
  __m256i counter = _mm256_set_epi64x(top, static_cast<int64_t>(low + 1), top, static_cast<int64_t>(low));
  const __m256i step = _mm256_set_epi64x(0, 2, 0, 2);
  for (uint32_t first = 0; first < count; first += Aes::kStride) {
    __m256i x[kTogether];
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kTogether; ++i) {
      x[i] = _mm256_xor_si256(counter, key[0]);
      counter = _mm256_add_epi64(counter, step);
    }
#pragma GCC unroll 9
    for (uint32_t round = 1; round < Aes::kRounds; ++round) {
#pragma GCC unroll 8
      for (uint32_t i = 0; i < kTogether; ++i) x[i] = _mm256_aesenc_epi128(x[i], key[round]);
    }
#pragma GCC unroll 8
    for (uint32_t i = 0; i < kTogether; ++i, out += sizeof x[i]) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_aesenclast_epi128(x[i], key[Aes::kRounds]));
    }
  }
}

#elif defined(__aarch64__) && defined(__linux__)

__attribute__((target("+aes"))) void EncryptByNeon(const Aes::RoundKeys& keys, uint64_t high, uint64_t low,
                                                   uint32_t count, uint8_t* out) {
  constexpr uint32_t kTogether = 8;
  static_assert(Aes::kStride % kTogether == 0 && std::endian::native == std::endian::little);
  uint8x16_t key[Aes::kRounds + 1];
  for (uint32_t i = 0; i <= Aes::kRounds; ++i) key[i] = vld1q_u8(&keys[Aes::kBlockBytes * i]);
  for (uint32_t first = 0; first < count; first += kTogether, low += kTogether) {
    uint8x16_t x[kTogether];
    for (uint32_t i = 0; i < kTogether; ++i) {
      x[i] = vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(low + i), vcreate_u64(high)));
    }
    // An AESE adds the key of the round before first.
    for (uint32_t round = 0; round + 1 < Aes::kRounds; ++round) {
      for (uint32_t i = 0; i < kTogether; ++i) x[i] = vaesmcq_u8(vaeseq_u8(x[i], key[round]));
    }
    for (uint32_t i = 0; i < kTogether; ++i, out += sizeof x[i]) {
      vst1q_u8(out, veorq_u8(vaeseq_u8(x[i], key[Aes::kRounds - 1]), key[Aes::kRounds]));
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

std::vector<Aes::Encryption> Aes::All() {
  std::vector<Encryption> all;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("vaes") && __builtin_cpu_supports("avx2")) all.push_back(EncryptByVaes);
  if (__builtin_cpu_supports("aes")) all.push_back(EncryptByAesNi);
#elif defined(__aarch64__) && defined(__linux__)
  if ((getauxval(AT_HWCAP) & HWCAP_AES) != 0) all.push_back(EncryptByNeon);
#endif
  all.push_back(EncryptPlain);
  return all;
}

Aes::Encryption Aes::Best() {
  static const Encryption best = All().front();
  return best;
}

}  // namespace passing
