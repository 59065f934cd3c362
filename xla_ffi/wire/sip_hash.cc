#include "wire/sip_hash.h"

#include <bit>

namespace passing::wire {
namespace {

struct State {
  uint64_t v0, v1, v2, v3;

  void Round() {
    v0 += v1;
    v2 += v3;
    v1 = std::rotl(v1, 13) ^ v0;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 = std::rotl(v0, 32);
    v2 += v1;
    v0 += v3;
    v1 = std::rotl(v1, 17) ^ v2;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 = std::rotl(v2, 32);
  }
  void Absorb(uint64_t word) {
    v3 ^= word;
    Round();
    Round();
    v0 ^= word;
  }
};

}  // namespace

uint64_t SipHash(const std::array<uint64_t, 2>& key, std::span<const uint64_t> words) {
  State state{.v0 = key[0] ^ 0x736f6d6570736575,
              .v1 = key[1] ^ 0x646f72616e646f6d,
              .v2 = key[0] ^ 0x6c7967656e657261,
              .v3 = key[1] ^ 0x7465646279746573};
  for (const uint64_t word : words) state.Absorb(word);
  state.Absorb(uint64_t{8 * words.size()} << 56);
  state.v2 ^= 0xff;
  for (int i = 0; i < 4; ++i) state.Round();
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

}  // namespace passing::wire
