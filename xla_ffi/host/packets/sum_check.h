// Lets hosts notice that a chunk's sum isn't the sum of what all ranks sent. Where packets have no tags, somebody else
// may have sent one, and the switch itself may add wrongly. The switch needs to know nothing of the check.
//
// A contribution has kLanes lanes more than its data lanes x[i]. The first counts flags and is a lane x like the
// others. The other two are a message authentication code that can be added up (Agrawal, Boneh: Homomorphic MACs, ACNS
// 2009):
//
//     c[j] = sum over i of k[j][i] x[i] + pad[j][rank]     modulo m[j]
//
// m[0] is 4,194,301, a prime, and m[1] is 2^32: with the prime alone, nobody would see that a lane is wrong by a
// multiple of it.
//
// k is drawn from a key that only hosts know. The pads are drawn from that key and from the chunk's position and
// exponents: each pad is used once, so the packets reveal nothing about k. Added up over all ranks, the equation holds
// for the sums, with the sum of all pads. So every rank must be in the sum once, and with this chunk. An error passes
// c[0] with a probability of 2^-22, or surely if it is a multiple of the prime; and c[1] with 2^(n - 32) if it is an
// odd multiple of 2^n. A lane's error is below 2^32, so n is at most 9 for multiples of the prime: the worst errors
// pass with 2^-23, and those by an odd number with 2^-54. No lane c[0] overflows, because 1,024 times the prime is
// below 2^32. The lanes of floats (docs/internals/fixed_point.md) and the counters of element_classes.h don't overflow
// either.
//
// The switch takes the greatest of the numbers in an exponent chunk. Each has two lanes, with another code of its own
// in the lower 10 bits of each, so a wrong one passes with 2^-20. The codes are the same for all ranks, so the greatest
// lanes are those that some rank sent.
//
// Lanes of integers may wrap, so both their codes are modulo 2^32. An error by an odd number in some lane passes with
// 2^-64, but one by 2^n with 4^(n - 32): the highest bits of integers are protected badly.
#ifndef XLA_FFI_HOST_PACKETS_SUM_CHECK_H_
#define XLA_FFI_HOST_PACKETS_SUM_CHECK_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "wire/header.h"

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
    std::span<const int32_t> exponents;  // its segment's; none for integers
    bool may_wrap;                       // its lanes are integers
  };

  SumCheck(const Key& key, uint32_t rank, uint32_t world_size);

  // Writes kLanes lanes behind `count` data lanes of this rank's contribution.
  void Write(const Chunk& chunk, uint8_t flags, uint32_t count, uint8_t* lanes) const;
  // May these be the sums of what all ranks wrote, with the flags or-ed?
  bool Holds(const Chunk& chunk, uint8_t flags, uint32_t count, const uint8_t* lanes) const;

  // The bits of a number that can be sealed, its sign among them, and its lanes then.
  static constexpr int kNumberBits = 22;
  static constexpr uint32_t kNumberLanes = 2;
  // Seals the number with this index of the exponent chunk at this position.
  void SealNumber(uint64_t position, uint32_t index, int32_t number, uint8_t* lanes) const;
  // Returns the number, or nothing if no rank sent these lanes.
  std::optional<int32_t> OpenNumber(uint64_t position, uint32_t index, const uint8_t* lanes) const;

 private:
  static constexpr uint32_t kCodes = 2;  // lanes c of a chunk
  using Pads = std::array<uint32_t, kCodes>;

  uint64_t NameOf(const Chunk& chunk) const;
  void AddPads(uint64_t name, uint32_t rank, bool may_wrap, Pads& pads) const;
  uint32_t Right(uint32_t code, bool may_wrap, uint32_t pad, uint32_t count, const uint8_t* lanes) const;

  std::array<uint64_t, 2> key_;
  const uint32_t rank_;
  const uint32_t world_size_;
  std::array<std::vector<uint32_t>, kCodes> k_;  // modulo 2^32
  std::vector<int32_t> k_below_prime_;           // modulo the prime: a sum over all lanes fits into 64 bits
};

}  // namespace passing

#endif  // XLA_FFI_HOST_PACKETS_SUM_CHECK_H_
