#include "host/packets/sum_check.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <iterator>
#include <numeric>

#include "host/numbers/fixed_point.h"
#include "wire/lanes.h"

namespace passing {
namespace {

constexpr uint32_t kMaxRanks = kMaxWorldSize;

constexpr int kPrimeBits = 44, kCodeBits = kPrimeBits / 2;  // of a lane
constexpr int64_t kPrimeBelow = 17, kPrime = (int64_t{1} << kPrimeBits) - kPrimeBelow;
static_assert(uint64_t{kMaxRanks} << kCodeBits <= uint64_t{1} << 32);

// The purposes of draws from the key, so that no two draws are the same.
enum class Draw : uint64_t { kFactor, kPads, kSegment, kExponents, kNumber };

constexpr int kNumberCodeBits = 32 - SumCheck::kNumberBits;  // in each lane

// Counts how many ranks set each flag; the sums of 1,024 fit: 1,025^3 < 2^31.
constexpr uint32_t kFlagBase = kMaxRanks + 1;
constexpr uint32_t kFlagFactors[] = {1, kFlagBase, kFlagBase* kFlagBase};

PASSING_CLONES uint32_t WrappingProduct(const uint8_t* __restrict lanes, uint32_t count,
                                        const uint32_t* __restrict factors) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < count; ++i) sum += wire::LoadLane(lanes, i) * factors[i];
  return sum;
}

// Something that is `value` modulo the prime, but hardly longer than it: 2^44 is 17.
template <typename Int>
constexpr int64_t Folded(Int value) {
  constexpr Int kMask = (Int{1} << kPrimeBits) - 1;
  return static_cast<int64_t>((value >> kPrimeBits) * Int{kPrimeBelow} + (value & kMask));
}
constexpr int kFoldedBits = kPrimeBits + 1;
static_assert(Folded(UINT64_MAX) < int64_t{1} << kFoldedBits && Folded(INT64_MIN) > -(int64_t{1} << kFoldedBits));

// `value` modulo the prime.
uint64_t BelowPrime(int64_t value) {
  int64_t rest = Folded(value);
  rest -= rest >= kPrime ? kPrime : 0;
  return static_cast<uint64_t>(rest + (rest < 0 ? kPrime : 0));
}

// What is added up: the parts of all products, each folded, and two pads.
int64_t TotalOf(const PartialProducts& parts) {
  int64_t total = 0;
  for (const int64_t part : parts) total += Folded(part);
  return total;
}
static_assert((wire::kMaxLanes / kMaxProductLanes + 1) * std::tuple_size_v<PartialProducts> + 2 <
              uint64_t{1} << (63 - kFoldedBits));

}  // namespace

uint32_t FlagLane(uint8_t flags) {
  uint32_t lane = 0;
  for (int bit = 0; bit < 3; ++bit) lane += (flags >> bit & 1) * kFlagFactors[bit];
  return lane;
}

uint8_t FlagsOfLane(uint32_t flag_lane) {
  if (flag_lane == 0) return 0;  // as nearly always: spares the divisions
  uint8_t flags = 0;
  for (int bit = 0; bit < 3; ++bit) flags |= (flag_lane / kFlagFactors[bit] % kFlagBase != 0) << bit;
  return flags;
}

SumCheck::SumCheck(const Key& key, uint32_t rank, uint32_t world_size)
    : world_size_(world_size), own_{.rank = rank}, next_{.rank = rank + 1}, first_{.rank = 0} {
  assert(rank < world_size && world_size <= kMaxRanks);
  for (size_t half = 0; half < 2; ++half) {
    key_[half] = 0;
    for (size_t i = 0; i < 8; ++i) key_[half] = key_[half] << 8 | key[8 * half + i];
  }
  for (uint32_t i = 0; i < wire::kMaxLanes; ++i) {
    const auto draw = [&](uint64_t purpose) {
      return wire::SipHash(key_, std::array{static_cast<uint64_t>(Draw::kFactor), purpose, uint64_t{i}});
    };
    factors_[i] = static_cast<int32_t>(draw(0)) >> (32 - kFactorBits);
    const uint64_t wrapping = draw(1);
    wrapping_factors_[0][i] = static_cast<uint32_t>(wrapping);
    wrapping_factors_[1][i] = static_cast<uint32_t>(wrapping >> 32);
  }
}

uint64_t SumCheck::DigestOf(const SegmentId& id, uint64_t first_position) const {
  return wire::SipHash(
      key_, std::array{static_cast<uint64_t>(Draw::kSegment), id.site, uint64_t{id.execution} << 32 | id.step,
                       uint64_t{id.segment} << 32 | id.pass, first_position});
}

// A segment has some 90 exponents: a hash for each of them took twice as long as all else that a host does.
uint64_t SumCheck::DigestOf(uint64_t segment, std::span<const int32_t> exponents) const {
  if (exponents.empty()) return segment;
  std::array<uint64_t, 64> words;
  size_t used = 0;
  words[used++] = static_cast<uint64_t>(Draw::kExponents);
  words[used++] = exponents.size();
  words[used++] = segment;
  for (size_t i = 0; i < exponents.size(); i += 2) {
    if (used == words.size()) {
      words[0] = wire::SipHash(key_, words);
      used = 1;
    }
    const uint64_t low = static_cast<uint32_t>(exponents[i]);
    const uint64_t high = i + 1 < exponents.size() ? static_cast<uint32_t>(exponents[i + 1]) : 0;
    words[used++] = high << 32 | low;
  }
  return wire::SipHash(key_, std::span(words).first(used));
}

uint64_t SumCheck::PadOf(const Chunk& chunk, Pads& pads) const {
  if (pads.rank == world_size_) return 0;
  const auto index = [&] { return chunk.position - pads.first_position; };
  if (!pads.made || pads.digest != chunk.digest || index() >= wire::kSipHashesAtOnce) {
    pads.made = true;
    pads.first_position = chunk.position;
    pads.digest = chunk.digest;
    std::array<wire::WordOfEach, 3> words;
    words[0].fill(static_cast<uint64_t>(Draw::kPads) << 32 | pads.rank);
    std::iota(words[1].begin(), words[1].end(), chunk.position);
    words[2].fill(chunk.digest);
    pads.values = wire::SipHashes(key_, words);
  }
  return pads.values[index()];
}

// c of the data lanes and the one that counts flags.
SumCheck::Codes SumCheck::CodesOf(const Chunk& chunk, uint32_t count, const uint8_t* lanes, uint64_t pad,
                                  uint64_t next_pad) const {
  if (chunk.may_wrap) {
    Codes codes;
    for (size_t i = 0; i < codes.size(); ++i, pad >>= 32, next_pad >>= 32) {
      codes[i] = WrappingProduct(lanes, count, wrapping_factors_[i].data()) + static_cast<uint32_t>(pad) -
                 static_cast<uint32_t>(next_pad);
    }
    return codes;
  }
  static const LaneProduct product = AllLaneProducts().front();
  int64_t total = Folded(pad) - Folded(next_pad);
  for (uint32_t first = 0; first < count; first += kMaxProductLanes) {
    const uint32_t some = std::min(kMaxProductLanes, count - first);
    total += TotalOf(product(lanes + 4 * size_t{first}, some, &factors_[first]));
  }
  const uint64_t code = BelowPrime(total);
  return {static_cast<uint32_t>(code >> kCodeBits), static_cast<uint32_t>(code) & ((1 << kCodeBits) - 1)};
}

void SumCheck::Write(const Chunk& chunk, uint8_t flags, uint32_t count, uint8_t* lanes) const {
  assert(count + kLanes <= wire::kMaxLanes);
  wire::StoreLane(lanes, count, FlagLane(flags));
  const Codes codes = CodesOf(chunk, count + 1, lanes, PadOf(chunk, own_), PadOf(chunk, next_));
  for (uint32_t i = 0; i < codes.size(); ++i) wire::StoreLane(lanes, count + 1 + i, codes[i]);
}

bool SumCheck::Holds(const Chunk& chunk, uint8_t flags, uint32_t count, const uint8_t* lanes) const {
  if (flags != FlagsOfLane(wire::LoadLane(lanes, count))) return false;
  const Codes right = CodesOf(chunk, count + 1, lanes, PadOf(chunk, first_), 0);
  const Codes summed = {wire::LoadLane(lanes, count + 1), wire::LoadLane(lanes, count + 2)};
  if (chunk.may_wrap) return summed == right;
  const auto whole = [](const Codes& codes) { return BelowPrime((int64_t{codes[0]} << kCodeBits) + codes[1]); };
  return whole(summed) == whole(right);
}

void SumCheck::SealNumber(const Chunk& chunk, uint32_t index, int32_t number, uint8_t* lanes) const {
  assert(number >= -(1 << (kNumberBits - 1)) && number < 1 << (kNumberBits - 1));
  uint64_t code = wire::SipHash(key_, std::array{static_cast<uint64_t>(Draw::kNumber), chunk.position, chunk.digest,
                                                 uint64_t{index} << 32 | static_cast<uint32_t>(number)});
  for (uint32_t lane = 0; lane < kNumberLanes; ++lane, code <<= kNumberCodeBits) {
    wire::StoreLane(
        lanes, lane,
        static_cast<uint32_t>(number) << kNumberCodeBits | static_cast<uint32_t>(code >> (64 - kNumberCodeBits)));
  }
}

std::optional<int32_t> SumCheck::OpenNumber(const Chunk& chunk, uint32_t index, const uint8_t* lanes) const {
  const int32_t number = static_cast<int32_t>(wire::LoadLane(lanes, 0)) >> kNumberCodeBits;
  uint8_t sealed[4 * kNumberLanes];
  SealNumber(chunk, index, number, sealed);
  if (!std::equal(std::begin(sealed), std::end(sealed), lanes)) return std::nullopt;
  return number;
}

}  // namespace passing
