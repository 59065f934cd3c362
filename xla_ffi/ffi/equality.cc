#include "ffi/equality.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "ffi/naming/hash.h"

namespace passing {
namespace {

constexpr size_t kNamedMax = 4;
constexpr int32_t kNothing = std::numeric_limits<int32_t>::min();  // of all four lanes, which no digest has

using Four = std::array<int32_t, 4>;

Four LanesOf(uint64_t digest) {
  const auto low = static_cast<int32_t>(digest), high = static_cast<int32_t>(digest >> 32);
  return {low, high, ~low, ~high};
}

Four At(std::span<const int32_t> lanes, size_t index) {
  Four four;
  std::copy_n(lanes.begin() + static_cast<std::ptrdiff_t>(4 * index), 4, four.begin());
  return four;
}

bool AreEqual(const Four& four) { return four[0] == ~four[2] && four[1] == ~four[3]; }

// "rank 3", "ranks 0, 2 and 9 more".
std::string RanksText(const std::vector<uint32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), 2 * kNamedMax); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
  }
  if (ranks.size() > 2 * kNamedMax) text += " and " + std::to_string(ranks.size() - 2 * kNamedMax) + " more";
  return text;
}

// Says who has others. `groups`: the ranks of each set of bits; `mixed`: those whose own devices differ.
std::string WhoText(std::vector<std::vector<uint32_t>> groups, const std::vector<uint32_t>& mixed) {
  // The most come first, of as many those with the lowest rank: they are most people's idea of right.
  std::stable_sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    return a.size() != b.size() ? a.size() > b.size() : a.front() < b.front();
  });
  std::string text;
  for (size_t i = 1; i < std::min(groups.size(), kNamedMax); ++i) {
    text += (text.empty() ? "" : ", ") + RanksText(groups[i]) + (groups[i].size() == 1 ? " has" : " have") +
            (text.empty() ? " others than " + RanksText(groups[0]) : " yet others");
  }
  if (groups.size() > kNamedMax) text += ", and so on";
  if (!mixed.empty()) {
    text += (text.empty() ? "" : ", and ") + std::string("the devices of ") + RanksText(mixed) +
            " have different ones among themselves";
  }
  return text;
}

}  // namespace

uint64_t DigestOf(const void* data, size_t bytes) {
  // Four chains side by side, so that a processor multiplies while it waits. A product spreads bits upwards alone, so
  // the upper half is brought down between two: else flips of the uppermost bits, which are signs, could cancel.
  constexpr size_t kChains = 4;
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;
  const auto* next = static_cast<const uint8_t*>(data);
  uint64_t chains[kChains] = {1, 2, 3, 4};
  const auto add = [&](size_t chain, uint64_t word) {
    uint64_t& state = chains[chain];
    state = (state ^ word) * kFactor;
    state = (state ^ state >> 32) * kFactor;
  };
  size_t left = bytes;
  for (; left >= kChains * 8; left -= kChains * 8, next += kChains * 8) {
    uint64_t words[kChains];
    std::memcpy(words, next, sizeof(words));
    for (size_t i = 0; i < kChains; ++i) add(i, words[i]);
  }
  for (size_t chain = 0; left > 0; ++chain) {
    uint64_t word = 0;
    const size_t size = std::min<size_t>(left, 8);
    std::memcpy(&word, next, size);
    add(chain, word);
    left -= size;
    next += size;
  }
  Hash hash;
  hash.Add(bytes);
  for (const uint64_t chain : chains) hash.Add(chain);
  return hash.value();
}

std::vector<int32_t> Equality::Lanes(std::span<const uint64_t> digests, uint32_t rank) const {
  assert(digests.size() == leaves_.size());
  std::vector<int32_t> lanes(lane_count(), kNothing);
  auto end = lanes.begin();
  Hash all;
  for (const uint64_t digest : digests) {
    end = std::ranges::copy(LanesOf(digest), end).out;
    all.Add(digest);
  }
  if (rank < ranks_max_) std::ranges::copy(LanesOf(all.value()), end + 4 * static_cast<std::ptrdiff_t>(rank));
  return lanes;
}

std::optional<Failure> Equality::Difference(std::span<const int32_t> maxima) const {
  assert(maxima.size() == lane_count());
  std::vector<size_t> different;
  for (size_t leaf = 0; leaf < leaves_.size(); ++leaf) {
    if (!AreEqual(At(maxima, leaf))) different.push_back(leaf);
  }
  if (different.empty()) return std::nullopt;
  std::map<std::pair<int32_t, int32_t>, std::vector<uint32_t>> by_digest;
  std::vector<uint32_t> mixed;
  for (uint32_t rank = 0; rank < ranks_max_; ++rank) {
    const Four four = At(maxima, leaves_.size() + rank);
    if (four[0] == kNothing && four[2] == kNothing) continue;  // there is no such rank
    if (AreEqual(four)) {
      by_digest[{four[0], four[1]}].push_back(rank);
    } else {
      mixed.push_back(rank);
    }
  }
  std::vector<std::vector<uint32_t>> groups;
  for (auto& [digest, ranks] : by_digest) groups.push_back(std::move(ranks));
  return Failure{"ProgramMismatchError",
                 site_name_ +
                     ": hosts or devices have different parameters, which the program takes for equal on all: " +
                     LeavesText(different) + ". Here " + WhoText(std::move(groups), mixed) +
                     ", so each would train a model of its own. Start with the same parameters on all hosts: from the "
                     "same random key or checkpoint, or with those of one device, by jax_passing.broadcast(params, "
                     "AXIS) under jax.shard_map. If they are meant to differ, as by the last bits on processors of "
                     "several kinds, jax_passing.init(check_equal=False) or JAX_PASSING_CHECK_EQUAL=false on all hosts "
                     "leaves out this comparison."};
}

bool Equality::IsDone(int64_t group, uint64_t session) const {
  std::lock_guard lock(mutex_);
  const auto found = done_.find(group);
  return found != done_.end() && found->second == session;
}

void Equality::Done(int64_t group, uint64_t session) {
  std::lock_guard lock(mutex_);
  done_[group] = session;
}

std::string Equality::LeavesText(const std::vector<size_t>& which) const {
  std::string text;
  for (size_t i = 0; i < std::min(which.size(), kNamedMax); ++i) {
    if (i > 0) text += ", ";
    text += leaves_[which[i]];
  }
  if (which.size() > kNamedMax) text += " and " + std::to_string(which.size() - kNamedMax) + " more";
  return text;
}

}  // namespace passing
