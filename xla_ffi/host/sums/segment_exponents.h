// The ranks agree on the exponents of a segment's blocks. Pure.
//
// An exponent chunk has two numbers of each block, v and -v, of which the switch returns the greatest of all ranks:
// v = E H + rank, where E is the rank's own exponent and H the world size, or the least number for both where the rank
// has nothing but +0. The greatest v tells the job's exponent, as rank < H. If it equals the least v, only one rank has
// anything but +0 in the block: then the elements' bits travel as they are (kMovedBits). A narrow wire's blocks have
// one number, the code of their scale.
//
// Data that waited for the exponents would take a second round trip. So a small sum, which is precise, guesses them and
// sends its data at once: the guess is what its site had last, and kGuessRoom above it. It is right if all ranks
// guessed from the same sum, and each one's elements are exact at it: then they are exact at the true exponents, too,
// and give the same bits. Four numbers behind those of the blocks tell it: n, -n, m, -m, where n and m name the
// execution and the step that were guessed from. A rank whose elements aren't exact gives the greatest number for all
// four. All ranks see the same maxima, so all decide alike: either the guessed data counts, or it is sent again at the
// true exponents (docs/internals/protocol.md).
//
// Where lanes are masked, a switch can't take maxima. There the ranks are apart: each has 16 bits of its own for its
// exponent of a block, or 0, and a lane of its own that names its guess. The others leave them 0, so the sum has what
// every rank said.
#ifndef XLA_FFI_HOST_SUMS_SEGMENT_EXPONENTS_H_
#define XLA_FFI_HOST_SUMS_SEGMENT_EXPONENTS_H_

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "host/sums/segment_id.h"
#include "host/sums/sum_plan.h"

namespace passing {

// The numbers have at most this many bits, sign and all: the seal of a checked sum has room for no more (sum_check.h).
inline constexpr int kNumberBits = 22;

// A small sum guesses its blocks' exponents from another sum of its site, which has this execution and step.
struct Guess {
  int32_t execution = -1;  // modulo 2^20; -1 if nothing is known of the site
  int32_t step = -1;
  std::vector<int32_t> exponents;
};

// Remembers the exponents that the sums of each site had last. A guess may always be missing, so the memory is bounded
// in the simplest way: beyond kMaxSites sites, all of them are forgotten.
class LastExponents {
 public:
  static constexpr size_t kMaxSites = 4096;
  // Elements may grow by this many powers of two from one sum to the next. A float32 of two hosts is exact down to 2^29
  // below the largest of its block's last sum, one of 64 hosts down to 2^19.
  static constexpr int32_t kGuessRoom = 6;
  // The guess for blocks of which nothing is known, or that were 0. A float32 of two hosts is exact from 2^-28 on.
  static constexpr int32_t kFirstGuess = 8;

  Guess Of(uint64_t site, size_t block_count) const;
  void Remember(const SegmentId& id, std::span<const int32_t> exponents);

 private:
  std::unordered_map<uint64_t, Guess> by_site_;
};

// The exponents of one segment's blocks. Methods that take a segment expect the one that this was made for.
class SegmentExponents {
 public:
  // A result of guessed data that came before anybody knew whether the guess was right.
  struct EarlyResult {
    uint32_t chunk;
    uint8_t flags;
    std::vector<uint8_t> lanes;
  };

  SegmentExponents() = default;
  // `own`: this host's exponents, none for integers.
  SegmentExponents(const Segment& segment, std::vector<int32_t> own, uint32_t rank, uint32_t world_size);
  // Tells the guess at which this host's elements are exact, before anything is written; else they are taken for not
  // exact. Only for a segment that guesses.
  void MakeGuess(Guess guess) { guess_ = std::move(guess); }

  // Does this host know the job's exponents?
  bool known() const { return chunks_awaited_ == 0; }
  // The exponents, or kMovedBits, of the data that counts.
  std::span<const int32_t> of_data() const { return guessed_right_ ? guess_.exponents : exponents_; }
  // The exponents, or kMovedBits, with which this host sends a chunk's data.
  std::span<const int32_t> Sending(const Segment& segment, uint32_t chunk) const {
    return segment.CarriesGuessedData(chunk) && !guess_.exponents.empty() ? guess_.exponents : exponents_;
  }
  // The job's exponents, of a segment that guesses.
  std::span<const int32_t> of_job() const { return of_job_; }

  // The numbers in the exponent chunk that carries these blocks of the segment.
  uint32_t NumberCount(const ChunkRange& blocks) const {
    return per_block_ * blocks.count + (guesses_ ? guess_numbers_ : 0);
  }
  // Writes them, a lane each.
  void Write(const ChunkRange& blocks, uint8_t* lanes) const;
  // May this be its result, so that no lane is less than our own, or our own lanes are in it? Called before Take.
  bool MayBe(const ChunkRange& blocks, const uint8_t* lanes) const;
  // Takes its result; called once for each exponent chunk.
  void Take(const ChunkRange& blocks, const uint8_t* lanes);

  // Once the exponents are known: did all ranks guess them? If so, nobody needs the chunks that repeat the data; if
  // not, nobody needs those with the guessed data.
  bool guessed_right() const { return guessed_right_; }
  bool Needs(const Segment& segment, uint32_t chunk) const {
    return !segment.guesses() || segment.CarriesExponents(chunk) || segment.CarriesGuessedData(chunk) == guessed_right_;
  }

  // Keeps a result of guessed data until the exponents are known.
  void Keep(uint32_t chunk, uint8_t flags, std::span<const uint8_t> lanes);
  // Once the exponents are known: hands out the kept results, if they count, and forgets them.
  std::vector<EarlyResult> TakeKept();

 private:
  // Calls f(number) for the numbers of these blocks, in the order in which they travel, of this host.
  template <typename F>
  void ForEachNumber(const ChunkRange& blocks, F&& f) const;
  // The same where ranks are apart: f(index of a lane, its value, the bits of it that are this rank's).
  template <typename F>
  void ForEachOwnLane(const ChunkRange& blocks, F&& f) const;
  void TakeMaxima(const ChunkRange& blocks, const uint8_t* lanes);
  void TakeApart(const ChunkRange& blocks, const uint8_t* lanes);
  void TakeBlock(uint64_t block, int32_t exponent, bool from_one_rank);

  std::vector<int32_t> exponents_;  // this host's, then those of the data at the true exponents
  std::vector<int32_t> of_job_;     // if the segment guesses
  Guess guess_;                     // no exponents unless the segment guesses
  std::vector<EarlyResult> kept_;
  uint32_t per_block_ = 0;
  uint32_t guess_numbers_ = 0;
  uint32_t rank_ = 0;
  uint32_t world_size_ = 1;
  uint32_t chunks_awaited_ = 0;
  bool moves_bits_ = false;
  bool exponents_apart_ = false;
  bool guesses_ = false;
  bool guessed_right_ = false;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_SUMS_SEGMENT_EXPONENTS_H_
