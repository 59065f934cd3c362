// Maps a position of the job's order to a shard, a slot there and a version. Pure; alike on every rank.
//
// A job's shards are switches that share its positions, so that each carries 1/N of the packets. A run of positions
// stays on one shard, then comes the next one's turn. Together they are one switch with N * slots_per_shard slots: a
// (shard, slot, version) is the position modulo twice that window, and nothing else of the protocol depends on N
// (docs/internals/protocol.md).
#ifndef XLA_FFI_HOST_WINDOW_SHARDING_H_
#define XLA_FFI_HOST_WINDOW_SHARDING_H_

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdint>

#include "wire/header.h"

namespace passing {

struct ShardSlot {
  uint32_t shard = 0;
  uint32_t slot = 0;  // from the job's first slot of that shard
  uint8_t version = 0;

  friend bool operator==(const ShardSlot&, const ShardSlot&) = default;
};

class Sharding {
 public:
  // `slots_per_shard`: a power of two; `shard_count` need not be one.
  Sharding(uint32_t shard_count, uint32_t slots_per_shard, uint32_t lanes_per_chunk = wire::kLanesAtMtu1500)
      : shard_count_(shard_count),
        slots_per_shard_(slots_per_shard),
        run_(std::min(LongestRun(shard_count, lanes_per_chunk), slots_per_shard)),
        run_bits_(std::countr_zero(run_)),
        slot_bits_(std::countr_zero(slots_per_shard)) {
    assert(shard_count > 0 && std::has_single_bit(slots_per_shard) && std::has_single_bit(run_));
  }

  uint32_t shard_count() const { return shard_count_; }
  // The number of positions from a rank's first missing result on that it may use.
  uint32_t window() const { return shard_count_ * slots_per_shard_; }
  // The number of consecutive positions on one shard: a power of two.
  uint32_t run() const { return run_; }

  // A sum that guesses its exponents must fit into this window, and so skips less than half of it. With several shards
  // it is a run: else sums one after the other could skip all that a shard has of each of its turns, and its switch
  // wouldn't hear how far the job is (jax_passing/switch/data_planes/reach.py).
  uint32_t window_of_guesses() const { return shard_count_ == 1 ? window() : run_; }

  uint32_t ShardOf(uint64_t position) const { return static_cast<uint32_t>((position >> run_bits_) % shard_count_); }
  ShardSlot At(uint64_t position) const {
    const uint64_t in_shard = (position >> run_bits_) / shard_count_ * run_ + (position & (run_ - 1));
    return {.shard = ShardOf(position),
            .slot = static_cast<uint32_t>(in_shard & (slots_per_shard_ - 1)),
            .version = static_cast<uint8_t>(in_shard >> slot_bits_ & 1)};
  }

 private:
  // Where shards have slots for it. A small sum mostly stays on one shard and costs one send; of a large one, packets
  // of a run share a super-packet, and 32 are half of one: with 8 the hosts' processors had three quarters more to do
  // (H=4, benchmarks/star/star.py). But all ranks go from shard to shard in the same order, with 256 chunks in flight,
  // and a shard that has none of these holds up the sum: with 16 shards and runs of 32, eight worked at a time. So
  // where there are more than eight of them, two rounds over all shards are in flight. Of chunks with more than 360
  // lanes fewer make as many bytes.
  static constexpr uint32_t LongestRun(uint32_t shard_count, uint32_t lanes) {
    const uint32_t of_short = shard_count <= 8 ? 32 : std::max(std::bit_floor(128 / shard_count), 1u);
    return lanes <= wire::kLanesAtMtu1500 ? of_short
                                          : std::max(std::bit_floor(of_short * wire::kLanesAtMtu1500 / lanes), 1u);
  }

  uint32_t shard_count_;
  uint32_t slots_per_shard_;
  uint32_t run_;
  // Positions are divided by these two for each packet, several times, so by shifts.
  int run_bits_, slot_bits_;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_WINDOW_SHARDING_H_
