#include "host/packets/sum_check.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <iterator>

#include "host/numbers/fixed_point.h"
#include "wire/lanes.h"
#include "wire/sip_hash.h"

namespace passing {
namespace {

constexpr uint32_t kPrime = 4'194'301;  // 2^22 - 3
constexpr uint32_t kMaxRanks = kMaxWorldSize;
static_assert(uint64_t{kMaxRanks} * kPrime < uint64_t{1} << 32);
constexpr uint32_t kMaxCheckedLanes = wire::kMaxLanes - SumCheck::kLanes + 1;  // the one that counts flags among them
static_assert(uint64_t{kMaxCheckedLanes} * kPrime < uint64_t{1} << 31);        // times an int32: below 2^62

// The purposes of draws from the key, so that no two draws are the same.
enum class Draw : uint64_t { kFactor, kPads, kChunk, kNumber };

constexpr int kNumberCodeBits = 32 - SumCheck::kNumberBits;  // in each lane

// Counts how many ranks set each flag; the sums of 1,024 fit: 1,025^3 < 2^31.
constexpr uint32_t kFlagBase = kMaxRanks + 1;
constexpr uint32_t kFlagFactors[] = {1, kFlagBase, kFlagBase* kFlagBase};

PASSING_CLONES int64_t Product(const uint8_t* __restrict lanes, uint32_t count, const int32_t* __restrict factors) {
  int64_t sum = 0;
  for (uint32_t i = 0; i < count; ++i) {
    sum += int64_t{static_cast<int32_t>(wire::LoadLane(lanes, i))} * factors[i];
  }
  return sum;
}

PASSING_CLONES uint32_t WrappingProduct(const uint8_t* __restrict lanes, uint32_t count,
                                        const uint32_t* __restrict factors) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < count; ++i) sum += wire::LoadLane(lanes, i) * factors[i];
  return sum;
}

// Else it is modulo the prime.
bool IsModuloWord(uint32_t code, bool may_wrap) { return may_wrap || code == 1; }

uint32_t BelowPrime(int64_t value) {
  const int64_t rest = value % int64_t{kPrime};
  return static_cast<uint32_t>(rest < 0 ? rest + kPrime : rest);
}

}  // namespace

uint32_t FlagLane(uint8_t flags) {
  uint32_t lane = 0;
  for (int bit = 0; bit < 3; ++bit) lane += (flags >> bit & 1) * kFlagFactors[bit];
  return lane;
}

uint8_t FlagsOfLane(uint32_t flag_lane) {
  uint8_t flags = 0;
  for (int bit = 0; bit < 3; ++bit) flags |= (flag_lane / kFlagFactors[bit] % kFlagBase != 0) << bit;
  return flags;
}

SumCheck::SumCheck(const Key& key, uint32_t rank, uint32_t world_size) : rank_(rank), world_size_(world_size) {
  assert(rank < world_size && world_size <= kMaxRanks);
  for (size_t half = 0; half < 2; ++half) {
    key_[half] = 0;
    for (size_t i = 0; i < 8; ++i) key_[half] = key_[half] << 8 | key[8 * half + i];
  }
  for (uint32_t code = 0; code < kCodes; ++code) {
    for (uint32_t i = 0; i < kMaxCheckedLanes; ++i) {
      const uint64_t drawn =
          wire::SipHash(key_, std::array{static_cast<uint64_t>(Draw::kFactor), uint64_t{code}, uint64_t{i}});
      k_[code].push_back(static_cast<uint32_t>(drawn));
      if (code == 0) k_below_prime_.push_back(static_cast<int32_t>((drawn >> 32) % kPrime));
    }
  }
}

// A name for the chunk's position and exponents: no two chunks share one. A segment has some 90 exponents, so that a
// hash for each of them took twice as long as all else that a host does.
uint64_t SumCheck::NameOf(const Chunk& chunk) const {
  std::array<uint64_t, 64> words;
  size_t used = 0;
  for (const uint64_t word : {static_cast<uint64_t>(Draw::kChunk), chunk.position, chunk.exponents.size()}) {
    words[used++] = word;
  }
  for (size_t i = 0; i < chunk.exponents.size(); i += 2) {
    if (used == words.size()) {
      words[0] = wire::SipHash(key_, words);
      used = 1;
    }
    const uint64_t low = static_cast<uint32_t>(chunk.exponents[i]);
    const uint64_t high = i + 1 < chunk.exponents.size() ? static_cast<uint32_t>(chunk.exponents[i + 1]) : 0;
    words[used++] = high << 32 | low;
  }
  return wire::SipHash(key_, std::span(words).first(used));
}

// One drawing gives those of both codes.
void SumCheck::AddPads(uint64_t name, uint32_t rank, bool may_wrap, Pads& pads) const {
  const uint64_t drawn = wire::SipHash(key_, std::array{static_cast<uint64_t>(Draw::kPads), name, uint64_t{rank}});
  for (uint32_t code = 0; code < kCodes; ++code) {
    const auto pad = static_cast<uint32_t>(drawn >> 32 * code);
    pads[code] = IsModuloWord(code, may_wrap) ? pads[code] + pad : (pads[code] + pad % kPrime) % kPrime;
  }
}

// c for these pads, of the data lanes and the one that counts flags.
uint32_t SumCheck::Right(uint32_t code, bool may_wrap, uint32_t pad, uint32_t count, const uint8_t* lanes) const {
  if (IsModuloWord(code, may_wrap)) return WrappingProduct(lanes, count, k_[code].data()) + pad;
  return (BelowPrime(Product(lanes, count, k_below_prime_.data())) + pad) % kPrime;
}

void SumCheck::Write(const Chunk& chunk, uint8_t flags, uint32_t count, uint8_t* lanes) const {
  assert(count + kLanes <= wire::kMaxLanes);
  wire::StoreLane(lanes, count, FlagLane(flags));
  Pads pads{};
  AddPads(NameOf(chunk), rank_, chunk.may_wrap, pads);
  for (uint32_t code = 0; code < kCodes; ++code) {
    wire::StoreLane(lanes, count + 1 + code, Right(code, chunk.may_wrap, pads[code], count + 1, lanes));
  }
}

bool SumCheck::Holds(const Chunk& chunk, uint8_t flags, uint32_t count, const uint8_t* lanes) const {
  if (flags != FlagsOfLane(wire::LoadLane(lanes, count))) return false;
  Pads pads{};
  const uint64_t name = NameOf(chunk);
  for (uint32_t rank = 0; rank < world_size_; ++rank) AddPads(name, rank, chunk.may_wrap, pads);
  for (uint32_t code = 0; code < kCodes; ++code) {
    uint32_t summed = wire::LoadLane(lanes, count + 1 + code);
    if (!IsModuloWord(code, chunk.may_wrap)) summed %= kPrime;
    if (summed != Right(code, chunk.may_wrap, pads[code], count + 1, lanes)) return false;
  }
  return true;
}

void SumCheck::SealNumber(uint64_t position, uint32_t index, int32_t number, uint8_t* lanes) const {
  assert(number >= -(1 << (kNumberBits - 1)) && number < 1 << (kNumberBits - 1));
  uint64_t code = wire::SipHash(key_, std::array{static_cast<uint64_t>(Draw::kNumber), position,
                                                 uint64_t{index} << 32 | static_cast<uint32_t>(number)});
  for (uint32_t lane = 0; lane < kNumberLanes; ++lane, code <<= kNumberCodeBits) {
    wire::StoreLane(
        lanes, lane,
        static_cast<uint32_t>(number) << kNumberCodeBits | static_cast<uint32_t>(code >> (64 - kNumberCodeBits)));
  }
}

std::optional<int32_t> SumCheck::OpenNumber(uint64_t position, uint32_t index, const uint8_t* lanes) const {
  const int32_t number = static_cast<int32_t>(wire::LoadLane(lanes, 0)) >> kNumberCodeBits;
  uint8_t sealed[4 * kNumberLanes];
  SealNumber(position, index, number, sealed);
  if (!std::equal(std::begin(sealed), std::end(sealed), lanes)) return std::nullopt;
  return number;
}

}  // namespace passing
