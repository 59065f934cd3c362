// Lets hosts notice that a chunk's sum isn't the sum of what all ranks sent. Where packets have no tags, somebody else
// may have sent one, and the switch itself may add wrongly. The switch needs to know nothing of the check.
//
// A contribution has kLanes lanes more than its data lanes x[i]. The first counts flags and is a lane x like the
// others. The other two are a message authentication code that can be added up (Agrawal, Boneh: Homomorphic MACs, ACNS
// 2009):
//
//     c = sum over i of k[i] x[i] + P(rank) - P(rank + 1)     modulo m
//
// m is 2^44 - 17, a prime; the two lanes have 22 bits of c each, so their sums over 1,024 ranks stay below 2^32, and
// tell the sum of all c. The lanes of floats (docs/internals/fixed_point.md) and the counters of element_classes.h
// don't overflow either, so they are integers x, whose sums lie between -2^31 and 2^31 - 1.
//
// k[i], of 27 bits, is drawn from a key that only hosts know. So are the P, which depend on the chunk's position, its
// segment and exponents as well, but for P(world size) = 0: they are independent, and so are their differences
// (for the proof see lane_masks.h). Each is used once, so the packets reveal nothing about k. Added up over all ranks,
// the equation holds for the sums, with P(0) alone. So every rank must be in the sum once, and with this chunk of this
// sum: the switch, which relays the job's order, can't have ranks take one position for different ones. If a lane is
// wrong by d, which isn't 0 and less than m in magnitude, then at most one k[i] makes d k[i] what somebody guessed
// modulo m, and changed c by. So an error passes with a probability of 2^-27 a try, whatever it is.
//
// Exponents of up to eight ranks are added up, and have this check as well. Of more ranks (HasExponentsApart in
// job_config.h) the switch takes the greatest exponents: each has two lanes, with another code of its own in the lower
// 10 bits of each, so a wrong one passes with 2^-20. The codes are the same for all ranks, so the greatest lanes are
// those that some rank sent.
//
// Lanes of integers may wrap. So each of the two lanes is a code of its own, with other k and P, modulo 2^32. An error
// by an odd number in some lane passes with 2^-64, but one by an odd number times 2^n with 4^(n - 32): the highest bits
// of integers are protected badly. Maxima have a lane for each rank, which doesn't wrap.
#ifndef XLA_FFI_HOST_PACKETS_SUM_CHECK_H_
#define XLA_FFI_HOST_PACKETS_SUM_CHECK_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "host/packets/lane_product.h"
#include "host/sums/segment_id.h"
#include "wire/header.h"
#include "wire/sip_hash.h"

namespace passing {

// A lane of flags, which is added up like any lane: it counts the ranks that set each flag.
inline constexpr uint32_t kFlagLanes = 1;
uint32_t FlagLane(uint8_t flags);
// The flags that some rank set, of the sum of these lanes.
uint8_t FlagsOfLane(uint32_t flag_lane);

class SumCheck {
 public:
  static constexpr uint32_t kLanes = 2 + kFlagLanes;
  static constexpr size_t kKeyBytes = 16;
  using Key = std::array<uint8_t, kKeyBytes>;

  struct Chunk {
    uint64_t position;
    uint64_t digest;  // of its segment, and of the exponents of its data
    bool may_wrap;    // its lanes are integers
  };

  SumCheck(const Key& key, uint32_t rank, uint32_t world_size);

  // Returns a number that stands for a segment that begins at this position.
  uint64_t DigestOf(const SegmentId& id, uint64_t first_position) const;
  // Returns one for the segment with this digest, and for its exponents. Integers have none.
  uint64_t DigestOf(uint64_t segment, std::span<const int32_t> exponents) const;
  // Writes kLanes lanes behind `count` data lanes of this rank's contribution.
  void Write(const Chunk& chunk, uint8_t flags, uint32_t count, uint8_t* lanes) const;
  // May these be the sums of what all ranks wrote, with the flags or-ed?
  bool Holds(const Chunk& chunk, uint8_t flags, uint32_t count, const uint8_t* lanes) const;

  // The bits of a number that can be sealed, its sign among them, and its lanes then.
  static constexpr int kNumberBits = 22;
  static constexpr uint32_t kNumberLanes = 2;
  // Seals the number with this index of an exponent chunk.
  void SealNumber(const Chunk& chunk, uint32_t index, int32_t number, uint8_t* lanes) const;
  // Returns the number, or nothing if no rank sent these lanes.
  std::optional<int32_t> OpenNumber(const Chunk& chunk, uint32_t index, const uint8_t* lanes) const;

 private:
  using Codes = std::array<uint32_t, 2>;  // the lanes of c

  // The P of one rank, for positions that follow each other and share a digest, as most chunks do: they are made
  // together, as one alone takes hardly less time.
  struct Pads {
    uint32_t rank;
    bool made = false;
    uint64_t first_position = 0, digest = 0;
    wire::WordOfEach values{};
  };
  uint64_t PadOf(const Chunk& chunk, Pads& pads) const;
  Codes CodesOf(const Chunk& chunk, uint32_t count, const uint8_t* lanes, uint64_t pad, uint64_t next_pad) const;

  std::array<uint64_t, 2> key_;
  const uint32_t world_size_;
  // For what is written, and for what is checked. Only one thread at a time calls Write or Holds.
  mutable Pads own_, next_, first_;
  std::array<int32_t, wire::kMaxLanes + kFactorsBehind> factors_{};
  std::array<std::array<uint32_t, wire::kMaxLanes>, 2> wrapping_factors_{};  // of each code of integers
};

}  // namespace passing

#endif  // XLA_FFI_HOST_PACKETS_SUM_CHECK_H_
