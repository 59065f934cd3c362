#include "wire/sip_hash.h"

#include <cstring>

#include "wire/lanes.h"

namespace passing::wire {
namespace {

// A word of each message: operators act on each of them.
typedef uint64_t Vector __attribute__((vector_size(sizeof(WordOfEach))));

// `Word`: uint64_t, or a Vector. All is inlined, so that it is compiled as its caller is.
template <class Word>
struct State {
  Word v0, v1, v2, v3;

  [[gnu::always_inline]] inline void Round() {
    v0 += v1;
    v2 += v3;
    v1 = (v1 << 13 | v1 >> 51) ^ v0;
    v3 = (v3 << 16 | v3 >> 48) ^ v2;
    v0 = v0 << 32 | v0 >> 32;
    v2 += v1;
    v0 += v3;
    v1 = (v1 << 17 | v1 >> 47) ^ v2;
    v3 = (v3 << 21 | v3 >> 43) ^ v0;
    v2 = v2 << 32 | v2 >> 32;
  }
  [[gnu::always_inline]] inline void Absorb(const Word& word) {
    v3 ^= word;
    Round();
    Round();
    v0 ^= word;
  }
};

template <class Word, class Words>
[[gnu::always_inline]] inline void Hash(const std::array<uint64_t, 2>& key, const Words& words, Word& hash) {
  const Word zero{};
  State<Word> state{.v0 = zero + (key[0] ^ 0x736f6d6570736575),
                    .v1 = zero + (key[1] ^ 0x646f72616e646f6d),
                    .v2 = zero + (key[0] ^ 0x6c7967656e657261),
                    .v3 = zero + (key[1] ^ 0x7465646279746573)};
  for (const auto& each : words) {
    Word word;
    std::memcpy(&word, &each, sizeof word);
    state.Absorb(word);
  }
  state.Absorb(zero + (uint64_t{8 * words.size()} << 56));
  state.v2 ^= zero + 0xff;
  for (int i = 0; i < 4; ++i) state.Round();
  hash = state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

PASSING_CLONES void HashEach(const std::array<uint64_t, 2>& key, std::span<const WordOfEach> words,
                             WordOfEach& hashes) {
  Vector made;
  Hash(key, words, made);
  std::memcpy(hashes.data(), &made, sizeof made);
}

}  // namespace

uint64_t SipHash(const std::array<uint64_t, 2>& key, std::span<const uint64_t> words) {
  uint64_t hash;
  Hash(key, words, hash);
  return hash;
}

WordOfEach SipHashes(const std::array<uint64_t, 2>& key, std::span<const WordOfEach> words) {
  WordOfEach hashes;
  HashEach(key, words, hashes);
  return hashes;
}

}  // namespace passing::wire
