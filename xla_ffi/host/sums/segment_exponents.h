// How the ranks agree on the exponents of a segment's blocks. Pure.
//
// Each rank sends its own exponents, and the switch returns the greatest of all ranks. Data that waited for them would
// take a second round trip. So a small sum guesses them, and sends its data at once: at the exponents that its site had
// last, and no less than this host needs. Each block has three lanes then: exponent, guess, -guess. Their maxima tell
// whether all ranks guessed alike and right, and as all ranks have the same maxima, all decide alike: either the
// guessed data counts, or it is sent again at the true exponents (docs/internals/protocol.md).
#ifndef XLA_FFI_HOST_SUMS_SEGMENT_EXPONENTS_H_
#define XLA_FFI_HOST_SUMS_SEGMENT_EXPONENTS_H_

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "host/sums/sum_plan.h"

namespace passing {

// The exponents that the sums of each site had last. A guess is never needed, so the memory is bounded in the simplest
// way: beyond so many sites all of them are forgotten at once.
class LastExponents {
 public:
  static constexpr size_t kMaxSites = 4096;

  // None if the site is unknown.
  std::span<const int32_t> Of(uint64_t site) const;
  void Remember(uint64_t site, std::span<const int32_t> exponents);

 private:
  std::unordered_map<uint64_t, std::vector<int32_t>> by_site_;
};

// Of the blocks of one segment. Every method that takes a segment wants the one that this was made for.
class SegmentExponents {
 public:
  // The result of guessed data that came before it was known whether the guess was right.
  struct EarlyResult {
    uint32_t chunk;
    uint8_t flags;
    std::vector<uint8_t> lanes;
  };

  SegmentExponents() = default;  // of no segment
  // `own`: this host's, none for integers. `last`: what the site's sum had last, none if that is unknown.
  SegmentExponents(const Segment& segment, std::vector<int32_t> own, std::span<const int32_t> last);

  // Does this host know those of the job?
  bool known() const { return chunks_awaited_ == 0; }
  std::span<const int32_t> of_job() const { return exponents_; }
  // At which this host sends a chunk's data.
  std::span<const int32_t> Sending(const Segment& segment, uint32_t chunk) const {
    return segment.CarriesGuessedData(chunk) ? guesses_ : exponents_;
  }

  // Writes the lanes of the exponent chunk that carries these blocks of the segment.
  void Write(const ChunkRange& blocks, uint8_t* lanes) const;
  // May this be its result, in which our own are? Before it is taken.
  bool MayBe(const ChunkRange& blocks, const uint8_t* lanes) const;
  // Takes its result. Each exponent chunk's comes once.
  void Take(const ChunkRange& blocks, const uint8_t* lanes);

  // Once they are known: did all ranks guess them? Then nobody needs the chunks that are for the data of a wrong guess,
  // and otherwise nobody needs those with the guessed data.
  bool guessed_right() const { return guessed_right_; }
  bool Needs(const Segment& segment, uint32_t chunk) const {
    return !segment.guesses() || segment.CarriesExponents(chunk) || segment.CarriesGuessedData(chunk) == guessed_right_;
  }

  // Before they are known: keeps a result of guessed data.
  void Keep(uint32_t chunk, uint8_t flags, std::span<const uint8_t> lanes);
  // Once they are known: those that were kept, if they count. They are handed out once.
  std::vector<EarlyResult> TakeKept();

 private:
  std::vector<int32_t> exponents_;  // this host's, then the job's
  std::vector<int32_t> guesses_;    // of a segment that guesses
  std::vector<EarlyResult> kept_;
  uint32_t chunks_awaited_ = 0;
  bool guessed_right_ = false;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_SUMS_SEGMENT_EXPONENTS_H_
