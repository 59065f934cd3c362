#include "host/sum_check.h"

#include <bit>
#include <cassert>

#include "host/fixed_point.h"
#include "wire/lanes.h"
#include "wire/sip_hash.h"

namespace passing {
namespace {

constexpr uint32_t kPrime = 4'194'301;  // 2^22 - 3
constexpr uint32_t kMaxRanks = kMaxWorldSize;
static_assert(uint64_t{kMaxRanks} * kPrime < uint64_t{1} << 32);
constexpr uint32_t kMaxCheckedLanes = wire::kMaxLanes - SumCheck::kLanes + 1;  // the one that counts flags among them
static_assert(uint64_t{kMaxCheckedLanes} * kPrime < uint64_t{1} << 31);        // times an int32: below 2^62

// What is drawn from the key, so that no two draws are the same.
enum class Draw : uint64_t { kFactor, kRank, kChunk, kOfChunk, kExponent };

// Exponents of floats lie between -1,074 and 1,024 and a little beyond. The one of no element is the least.
constexpr int kExponentCodeBits = 20;
constexpr int32_t kMaxSealed = (1 << (31 - kExponentCodeBits)) - 1;

// Counts how many ranks set each flag; the sums of 1,024 fit: 1,025^3 < 2^31.
constexpr uint32_t kFlagBase = kMaxRanks + 1;
constexpr uint32_t kFlagFactors[] = {1, kFlagBase, kFlagBase* kFlagBase};

uint32_t FlagLane(uint8_t flags) {
  uint32_t lane = 0;
  for (int bit = 0; bit < 3; ++bit) lane += (flags >> bit & 1) * kFlagFactors[bit];
  return lane;
}

// Are these the flags that somebody set?
bool FlagsFit(uint8_t flags, uint32_t lane) {
  for (int bit = 0; bit < 3; ++bit) {
    if ((lane / kFlagFactors[bit] % kFlagBase != 0) != ((flags >> bit & 1) != 0)) return false;
  }
  return true;
}

PASSING_CLONES int64_t Product(const uint8_t* __restrict lanes, uint32_t count, const int32_t* __restrict factors) {
  int64_t sum = 0;
  for (uint32_t i = 0; i < count; ++i) {
    sum += int64_t{static_cast<int32_t>(wire::LoadLane(lanes, i))} * factors[i];
  }
  return sum;
}

uint32_t BelowPrime(int64_t value) {
  const int64_t rest = value % int64_t{kPrime};
  return static_cast<uint32_t>(rest < 0 ? rest + kPrime : rest);
}

}  // namespace

SumCheck::SumCheck(const Key& key, uint32_t rank, uint32_t world_size) {
  assert(rank < world_size && world_size <= kMaxRanks);
  for (size_t half = 0; half < 2; ++half) {
    key_[half] = 0;
    for (size_t i = 0; i < 8; ++i) key_[half] = key_[half] << 8 | key[8 * half + i];
  }
  const auto draw = [this](Draw what, uint64_t code, uint64_t index) {
    return wire::SipHash(key_, std::array{static_cast<uint64_t>(what), code, index});
  };
  for (uint32_t code = 0; code < kCodes; ++code) {
    Code& made = codes_[code];
    for (uint32_t i = 0; i < kMaxCheckedLanes; ++i) {
      made.k.push_back(static_cast<int32_t>(draw(Draw::kFactor, code, i) % kPrime));
    }
    made.w_all = made.w_all_below_prime = 0;
    for (uint32_t each = 0; each < world_size; ++each) {
      const auto w = static_cast<uint32_t>(draw(Draw::kRank, code, each));
      if (each == rank) made.w = w;
      made.w_all += w;
      made.w_all_below_prime = (made.w_all_below_prime + w % kPrime) % kPrime;
    }
  }
}

// c of the chunk whose data lanes, and the one that counts flags, these are.
uint32_t SumCheck::Right(uint32_t code, const Chunk& chunk, uint32_t w, uint32_t count, const uint8_t* lanes) const {
  std::array<uint64_t, 3> name{static_cast<uint64_t>(Draw::kChunk), chunk.position, 0};
  for (const int32_t exponent : chunk.exponents) {
    name[2] = wire::SipHash(key_, std::array{name[2], uint64_t{static_cast<uint32_t>(exponent)}});
  }
  const uint64_t of_chunk = wire::SipHash(key_, name);
  const uint64_t drawn =
      wire::SipHash(key_, std::array{static_cast<uint64_t>(Draw::kOfChunk), of_chunk, uint64_t{code}});
  const auto first = static_cast<uint32_t>(drawn), second = static_cast<uint32_t>(drawn >> 32);
  const int64_t product = Product(lanes, count, codes_[code].k.data());
  if (chunk.may_wrap) return (first | 1) * static_cast<uint32_t>(product) + second * w;
  const uint64_t u = 1 + first % (kPrime - 1), v = second % kPrime;
  return static_cast<uint32_t>((u * BelowPrime(product) + v * (w % kPrime)) % kPrime);
}

void SumCheck::Write(const Chunk& chunk, uint8_t flags, uint32_t count, uint8_t* lanes) const {
  assert(count + kLanes <= wire::kMaxLanes);
  wire::StoreLane(lanes, count, FlagLane(flags));
  for (uint32_t code = 0; code < kCodes; ++code) {
    wire::StoreLane(lanes, count + 1 + code, Right(code, chunk, codes_[code].w, count + 1, lanes));
  }
}

bool SumCheck::Holds(const Chunk& chunk, uint8_t flags, uint32_t count, const uint8_t* lanes) const {
  if (!FlagsFit(flags, wire::LoadLane(lanes, count))) return false;
  for (uint32_t code = 0; code < kCodes; ++code) {
    const Code& own = codes_[code];
    const uint32_t w = chunk.may_wrap ? own.w_all : own.w_all_below_prime;
    uint32_t summed = wire::LoadLane(lanes, count + 1 + code);
    if (!chunk.may_wrap) summed %= kPrime;
    if (summed != Right(code, chunk, w, count + 1, lanes)) return false;
  }
  return true;
}

uint32_t SumCheck::SealExponent(uint64_t position, uint32_t lane, int32_t exponent) const {
  const bool is_number = exponent != kNoExponent && exponent != -kNoExponent;
  assert(!is_number || (exponent > -kMaxSealed && exponent < kMaxSealed));
  const int32_t value = is_number ? exponent : exponent < 0 ? -kMaxSealed : kMaxSealed;
  const uint64_t code = wire::SipHash(key_, std::array{static_cast<uint64_t>(Draw::kExponent), position,
                                                       uint64_t{lane} << 32 | static_cast<uint32_t>(value)});
  return static_cast<uint32_t>(value) << kExponentCodeBits | static_cast<uint32_t>(code >> (64 - kExponentCodeBits));
}

std::optional<int32_t> SumCheck::OpenExponent(uint64_t position, uint32_t lane, uint32_t sealed) const {
  const int32_t value = static_cast<int32_t>(sealed) >> kExponentCodeBits;
  if (value < -kMaxSealed) return std::nullopt;
  const int32_t exponent = value == -kMaxSealed ? kNoExponent : value == kMaxSealed ? -kNoExponent : value;
  if (SealExponent(position, lane, exponent) != sealed) return std::nullopt;
  return exponent;
}

}  // namespace passing
