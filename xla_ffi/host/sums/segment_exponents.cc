#include "host/sums/segment_exponents.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "wire/lanes.h"

namespace passing {
namespace {

// An exponent's negative, as a lane. A packet may hold the one number that has none as an int32: so modulo 2^32.
uint32_t Negated(int32_t exponent) { return uint32_t{0} - static_cast<uint32_t>(exponent); }

}  // namespace

std::span<const int32_t> LastExponents::Of(uint64_t site) const {
  const auto found = by_site_.find(site);
  return found == by_site_.end() ? std::span<const int32_t>() : found->second;
}

void LastExponents::Remember(uint64_t site, std::span<const int32_t> exponents) {
  if (by_site_.size() >= kMaxSites) by_site_.clear();
  by_site_[site].assign(exponents.begin(), exponents.end());
}

SegmentExponents::SegmentExponents(const Segment& segment, std::vector<int32_t> own, std::span<const int32_t> last)
    : exponents_(std::move(own)), chunks_awaited_(segment.exponent_chunks) {
  assert(exponents_.size() == segment.block_count);
  if (!segment.guesses()) return;
  guesses_ = exponents_;  // the least that holds this host's data
  if (last.size() != guesses_.size()) return;
  for (size_t i = 0; i < guesses_.size(); ++i) guesses_[i] = std::max(guesses_[i], last[i]);
}

void SegmentExponents::Write(const ChunkRange& blocks, uint8_t* lanes) const {
  size_t count = 0;
  const auto store = [&](uint32_t lane) { wire::StoreLane(lanes, count++, lane); };
  for (uint64_t i = blocks.first; i < blocks.first + blocks.count; ++i) {
    store(static_cast<uint32_t>(exponents_[i]));
    if (guesses_.empty()) continue;
    store(static_cast<uint32_t>(guesses_[i]));
    store(Negated(guesses_[i]));
  }
}

bool SegmentExponents::MayBe(const ChunkRange& blocks, const uint8_t* lanes) const {
  size_t count = 0;
  const auto is_maximum_with = [&](uint32_t own) {
    return static_cast<int32_t>(wire::LoadLane(lanes, count++)) >= static_cast<int32_t>(own);
  };
  for (uint64_t i = blocks.first; i < blocks.first + blocks.count; ++i) {
    if (!is_maximum_with(static_cast<uint32_t>(exponents_[i]))) return false;
    if (guesses_.empty()) continue;
    if (!is_maximum_with(static_cast<uint32_t>(guesses_[i])) || !is_maximum_with(Negated(guesses_[i]))) return false;
  }
  return true;
}

// The guess was right if it was the same on all ranks, as its maximum and minimum tell, and is the exponent of the sum.
// A segment that guesses has one exponent chunk, so one result tells it of all blocks.
void SegmentExponents::Take(const ChunkRange& blocks, const uint8_t* lanes) {
  assert(chunks_awaited_ > 0);
  --chunks_awaited_;
  size_t count = 0;
  const auto load = [&] { return wire::LoadLane(lanes, count++); };
  guessed_right_ = !guesses_.empty();
  for (uint64_t i = blocks.first; i < blocks.first + blocks.count; ++i) {
    exponents_[i] = static_cast<int32_t>(load());
    if (guesses_.empty()) continue;
    const auto highest = static_cast<int32_t>(load());
    const uint32_t lowest_negated = load();
    guessed_right_ = guessed_right_ && highest == exponents_[i] && lowest_negated == Negated(exponents_[i]);
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
