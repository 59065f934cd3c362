#include "host/sums/segment_exponents.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "wire/lanes.h"

namespace passing {
namespace {

// A number's negative, as a lane. A packet may hold the one number that has none as an int32: so modulo 2^32.
uint32_t Negated(int32_t number) { return uint32_t{0} - static_cast<uint32_t>(number); }

constexpr int32_t kLeast = -(1 << (kNumberBits - 1)), kGreatest = -(kLeast + 1);
static_assert(kMaxExponent * int32_t{kMaxWorldSize} + int32_t{kMaxWorldSize} <= kGreatest);
static_assert(kMinExponent * int32_t{kMaxWorldSize} > kLeast && kMinExponent * -int32_t{kMaxWorldSize} <= kGreatest);
constexpr int32_t kMaxCode = 1 << 12;  // of a scale; exponents are less
constexpr uint32_t kNameMask = (1 << 20) - 1;

// Where ranks are apart, an exponent has 16 bits, and 0 means that there is none. The guess has a lane.
constexpr int kBitsOfRank = 32 / kRanksPerLane;
constexpr int32_t kApartBias = 1 << 12;
static_assert(kMinExponent + kApartBias > 0 && kMaxCode + kApartBias < 1 << kBitsOfRank);
constexpr uint32_t kNotExact = 0, kNothingKnown = 1, kIsNamed = uint32_t{1} << 31;
constexpr uint32_t kExecutionMask = (1 << 16) - 1, kStepMask = (1 << 15) - 1;

uint32_t Apart(int32_t exponent) {
  return exponent == kNoExponent ? 0 : static_cast<uint32_t>(std::clamp(exponent, kMinExponent, kMaxCode) + kApartBias);
}

// Names the sum that was guessed from. All ranks' guesses come from sums that are fewer executions and steps apart than
// fit into the window, so these bits of both tell them apart.
uint32_t NameOf(const Guess& guess) {
  if (guess.exponents.empty()) return kNotExact;
  if (guess.execution < 0) return kNothingKnown;
  return kIsNamed | (static_cast<uint32_t>(guess.execution) & kExecutionMask) << 15 |
         (static_cast<uint32_t>(guess.step) & kStepMask);
}

int32_t FloorDivided(int32_t number, int32_t by) { return number / by - (number % by < 0); }

}  // namespace

Guess LastExponents::Of(uint64_t site, size_t block_count) const {
  const auto found = by_site_.find(site);
  Guess guess;
  if (found != by_site_.end() && found->second.exponents.size() == block_count) guess = found->second;
  guess.exponents.resize(block_count, kNoExponent);
  for (int32_t& exponent : guess.exponents) {
    exponent = exponent <= kMinExponent ? kFirstGuess : std::min(exponent + kGuessRoom, kMaxExponent);
  }
  return guess;
}

void LastExponents::Remember(const SegmentId& id, std::span<const int32_t> exponents) {
  if (by_site_.size() >= kMaxSites) by_site_.clear();
  by_site_[id.site] = {.execution = static_cast<int32_t>(id.execution & kNameMask),
                       .step = static_cast<int32_t>(id.step & kNameMask),
                       .exponents = {exponents.begin(), exponents.end()}};
}

SegmentExponents::SegmentExponents(const Segment& segment, std::vector<int32_t> own, uint32_t rank, uint32_t world_size)
    : exponents_(std::move(own)),
      per_block_(segment.per_block),
      guess_numbers_(segment.exponents_apart ? world_size : kGuessNumbers),
      rank_(rank),
      world_size_(world_size),
      chunks_awaited_(segment.exponent_chunks),
      moves_bits_(segment.moves_bits),
      exponents_apart_(segment.exponents_apart),
      guesses_(segment.guesses()) {
  assert(exponents_.size() == segment.block_count);
}

template <typename F>
void SegmentExponents::ForEachNumber(const ChunkRange& blocks, F&& f) const {
  for (uint64_t i = blocks.first; i < blocks.first + blocks.count; ++i) {
    const int32_t own = exponents_[i];
    if (!moves_bits_ || own == kNoExponent) {
      for (uint32_t n = 0; n < per_block_; ++n) f(own == kNoExponent ? kLeast : own);
      continue;
    }
    const int32_t number = own * static_cast<int32_t>(world_size_) + static_cast<int32_t>(rank_);
    f(number);
    f(-number);
  }
  if (!guesses_) return;
  const bool exact = !guess_.exponents.empty();
  for (const int32_t name : {guess_.execution, guess_.step}) {
    f(exact ? name : kGreatest);
    f(exact ? -name : kGreatest);
  }
}

template <typename F>
void SegmentExponents::ForEachOwnLane(const ChunkRange& blocks, F&& f) const {
  const auto shift = static_cast<int>(kBitsOfRank * (rank_ % kRanksPerLane));
  const uint32_t bits = ((uint32_t{1} << kBitsOfRank) - 1) << shift;
  size_t lane = rank_ / kRanksPerLane;
  for (uint64_t i = blocks.first; i < blocks.first + blocks.count; ++i, lane += per_block_) {
    f(lane, Apart(exponents_[i]) << shift, bits);
  }
  if (guesses_) f(size_t{per_block_} * blocks.count + rank_, NameOf(guess_), UINT32_MAX);
}

void SegmentExponents::Write(const ChunkRange& blocks, uint8_t* lanes) const {
  if (exponents_apart_) {
    std::fill_n(lanes, 4 * size_t{NumberCount(blocks)}, uint8_t{0});
    return ForEachOwnLane(blocks, [&](size_t lane, uint32_t own, uint32_t) { wire::StoreLane(lanes, lane, own); });
  }
  size_t count = 0;
  ForEachNumber(blocks, [&](int32_t number) { wire::StoreLane(lanes, count++, static_cast<uint32_t>(number)); });
}

bool SegmentExponents::MayBe(const ChunkRange& blocks, const uint8_t* lanes) const {
  bool may_be = true;
  if (exponents_apart_) {
    ForEachOwnLane(blocks, [&](size_t lane, uint32_t own, uint32_t bits) {
      may_be = may_be && (wire::LoadLane(lanes, lane) & bits) == own;
    });
    return may_be;
  }
  size_t count = 0;
  ForEachNumber(blocks,
                [&](int32_t own) { may_be = may_be && static_cast<int32_t>(wire::LoadLane(lanes, count++)) >= own; });
  return may_be;
}

// A segment that guesses has one exponent chunk, so one result tells it of all blocks.
void SegmentExponents::Take(const ChunkRange& blocks, const uint8_t* lanes) {
  assert(chunks_awaited_ > 0);
  --chunks_awaited_;
  if (guesses_) of_job_.resize(blocks.count);
  exponents_apart_ ? TakeApart(blocks, lanes) : TakeMaxima(blocks, lanes);
}

// Whatever the network says, it is no mark of ours.
void SegmentExponents::TakeBlock(uint64_t block, int32_t exponent, bool from_one_rank) {
  if (exponent != kNoExponent) exponent = std::clamp(exponent, kMinExponent, kMaxCode);
  if (guesses_) of_job_[block] = exponent;
  exponents_[block] = from_one_rank ? kMovedBits : exponent;
}

void SegmentExponents::TakeApart(const ChunkRange& blocks, const uint8_t* lanes) {
  for (uint64_t i = blocks.first; i < blocks.first + blocks.count; ++i, lanes += 4 * size_t{per_block_}) {
    uint32_t greatest = 0, ranks = 0;
    for (uint32_t rank = 0; rank < world_size_; ++rank) {
      const uint32_t said = wire::LoadLane(lanes, rank / kRanksPerLane) >> kBitsOfRank * (rank % kRanksPerLane);
      const uint32_t own = said & ((uint32_t{1} << kBitsOfRank) - 1);
      greatest = std::max(greatest, own);
      ranks += own != 0;
    }
    TakeBlock(i, ranks == 0 ? kNoExponent : static_cast<int32_t>(greatest) - kApartBias, moves_bits_ && ranks == 1);
  }
  if (!guesses_) return;
  const uint32_t first = wire::LoadLane(lanes, 0);
  guessed_right_ = first != kNotExact && !guess_.exponents.empty();
  for (uint32_t rank = 1; rank < world_size_; ++rank) {
    guessed_right_ = guessed_right_ && wire::LoadLane(lanes, rank) == first;
  }
}

void SegmentExponents::TakeMaxima(const ChunkRange& blocks, const uint8_t* lanes) {
  size_t count = 0;
  const auto load = [&] { return wire::LoadLane(lanes, count++); };
  const auto world_size = static_cast<int32_t>(world_size_);
  for (uint64_t i = blocks.first; i < blocks.first + blocks.count; ++i) {
    const auto highest = static_cast<int32_t>(load());
    const bool from_one_rank = moves_bits_ && load() == Negated(highest);
    const int32_t agreed = moves_bits_ ? FloorDivided(highest, world_size) : highest;
    TakeBlock(i, highest <= kLeast ? kNoExponent : agreed, from_one_rank);
  }
  if (!guesses_) return;
  // Were the greatest and the least names of the same sum?
  guessed_right_ = !guess_.exponents.empty();
  for (int name = 0; name < 2; ++name) {
    const auto greatest = static_cast<int32_t>(load());
    guessed_right_ = load() == Negated(greatest) && guessed_right_;
  }
}

void SegmentExponents::Keep(uint32_t chunk, uint8_t flags, std::span<const uint8_t> lanes) {
  assert(!known());
  kept_.push_back({chunk, flags, {lanes.begin(), lanes.end()}});
}

std::vector<SegmentExponents::EarlyResult> SegmentExponents::TakeKept() {
  assert(known());
  std::vector<EarlyResult> kept = std::exchange(kept_, {});
  if (!guessed_right_) kept.clear();
  return kept;
}

}  // namespace passing
