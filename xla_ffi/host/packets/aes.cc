#include "host/packets/aes.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "host/packets/aes_instructions.h"
#include "wire/lanes.h"

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

Block Encrypted(const Aes::Schedule& schedule, uint64_t high, uint64_t low) {
  const auto& keys = schedule.keys;
  Block block;
  for (size_t byte = 0; byte < 8; ++byte) {
    block[byte] = static_cast<uint8_t>(low >> 8 * byte);
    block[8 + byte] = static_cast<uint8_t>(high >> 8 * byte);
  }
  AddKey(keys.data(), block);
  for (uint32_t round = 1; round <= Aes::kRounds; ++round) {
    block = Shifted(block);
    if (round < Aes::kRounds) MixColumns(block);
    AddKey(&keys[Aes::kBlockBytes * round], block);
  }
  return block;
}

// Looks bytes up in a table, so its time depends on the key: only for CPUs that have no instructions for it.
template <bool kAdds, bool kSubtracts>
void ApplyPlain(const Aes::Schedule& schedule, const Aes::Counters& counters, uint32_t lanes, const uint8_t* in,
                uint8_t* out) {
  for (uint32_t i = 0; i * Aes::kLanesOfBlock < lanes; ++i) {
    const Block added = kAdds ? Encrypted(schedule, counters.high, counters.added + i) : Block{};
    const Block subtracted = kSubtracts ? Encrypted(schedule, counters.high, counters.subtracted + i) : Block{};
    const uint32_t first = i * Aes::kLanesOfBlock;
    for (uint32_t lane = 0; lane < std::min(Aes::kLanesOfBlock, lanes - first); ++lane) {
      const uint32_t mask = wire::LoadLane(added.data(), lane) - wire::LoadLane(subtracted.data(), lane);
      wire::StoreLane(out, first + lane, wire::LoadLane(in, first + lane) + mask);
    }
  }
}

}  // namespace

Aes::Aes(std::span<const uint8_t, kKeyBytes> key) {
  auto& keys = schedule_.keys;
  std::copy(key.begin(), key.end(), keys.begin());
  uint8_t constant = 1;
  for (size_t at = kKeyBytes; at < keys.size(); at += 4) {
    std::array<uint8_t, 4> word;
    for (size_t i = 0; i < 4; ++i) word[i] = keys[at - 4 + i];
    if (at % kKeyBytes == 0) {
      std::rotate(word.begin(), word.begin() + 1, word.end());
      for (uint8_t& byte : word) byte = kSBox[byte];
      word[0] ^= constant;
      constant = TimesTwo(constant);
    }
    for (size_t i = 0; i < 4; ++i) keys[at + i] = keys[at - kKeyBytes + i] ^ word[i];
  }
  // Byte 0 alone differs. It stays where it is, and changes its column.
  schedule_.changes.fill(0);
  for (size_t i = 0; i < kMaxBlocks; ++i) {
    Block block{};
    block[0] = kSBox[i ^ keys[0]] ^ kSBox[keys[0]];
    MixColumns(block);
    std::ranges::copy(block, &schedule_.changes[kBlockBytes * i]);
  }
}

std::vector<Aes::Implementation> Aes::All() {
  std::vector<Implementation> all = AesByInstructions();
  all.push_back({ApplyPlain<true, false>, ApplyPlain<false, true>, ApplyPlain<true, true>});
  return all;
}

void Aes::ApplyBy(Apply Implementation::*what, const Counters& counters, uint32_t lanes, const uint8_t* in,
                  uint8_t* out) const {
  static const Implementation best = All().front();
  assert(lanes <= kMaxBlocks * kLanesOfBlock && counters.added % 256 == 0 && counters.subtracted % 256 == 0);
  (best.*what)(schedule_, counters, lanes, in, out);
}

}  // namespace passing
