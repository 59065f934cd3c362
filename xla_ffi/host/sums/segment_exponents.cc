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
      rank_(rank),
      world_size_(world_size),
      chunks_awaited_(segment.exponent_chunks),
      guesses_(segment.guesses()) {
  assert(exponents_.size() == segment.block_count);
}

template <typename F>
void SegmentExponents::ForEachNumber(const ChunkRange& blocks, F&& f) const {
  for (uint64_t i = blocks.first; i < blocks.first + blocks.count; ++i) {
    const int32_t own = exponents_[i];
    if (per_block_ == 1 || own == kNoExponent) {
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

void SegmentExponents::Write(const ChunkRange& blocks, uint8_t* lanes) const {
  size_t count = 0;
  ForEachNumber(blocks, [&](int32_t number) { wire::StoreLane(lanes, count++, static_cast<uint32_t>(number)); });
}

bool SegmentExponents::MayBe(const ChunkRange& blocks, const uint8_t* lanes) const {
  size_t count = 0;
  bool may_be = true;
  ForEachNumber(blocks,
                [&](int32_t own) { may_be = may_be && static_cast<int32_t>(wire::LoadLane(lanes, count++)) >= own; });
  return may_be;
}

// A segment that guesses has one exponent chunk, so one result tells it of all blocks.
void SegmentExponents::Take(const ChunkRange& blocks, const uint8_t* lanes) {
  assert(chunks_awaited_ > 0);
  --chunks_awaited_;
  size_t count = 0;
  const auto load = [&] { return wire::LoadLane(lanes, count++); };
  const auto world_size = static_cast<int32_t>(world_size_);
  if (guesses_) of_job_.resize(blocks.count);
  for (uint64_t i = blocks.first; i < blocks.first + blocks.count; ++i) {
    const auto highest = static_cast<int32_t>(load());
    const bool from_one_rank = per_block_ == 2 && load() == Negated(highest);
    const int32_t agreed = per_block_ == 1 ? highest : FloorDivided(highest, world_size);
    // Whatever the network says, it is no mark of ours.
    const int32_t exponent = highest <= kLeast ? kNoExponent : std::clamp(agreed, kMinExponent, kMaxCode);
    if (guesses_) of_job_[i] = exponent;
    exponents_[i] = from_one_rank ? kMovedBits : exponent;
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
