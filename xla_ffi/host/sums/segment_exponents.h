// The ranks agree on the exponents of a segment's blocks. Pure.
//
// Each rank sends its own exponents, and the switch returns the greatest of all ranks. Data that waited for them would
// take a second round trip. So a small sum guesses the exponents and sends its data at once: the guess is the exponents
// that its site had last, raised where this host needs more. Each block then has three lanes: exponent, guess, -guess.
// Their maxima tell whether all ranks guessed alike and right. All ranks see the same maxima, so all decide alike:
// either the guessed data counts, or it is sent again at the true exponents (docs/internals/protocol.md).
#ifndef XLA_FFI_HOST_SUMS_SEGMENT_EXPONENTS_H_
#define XLA_FFI_HOST_SUMS_SEGMENT_EXPONENTS_H_

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "host/sums/sum_plan.h"

namespace passing {

// Remembers the exponents that the sums of each site had last. A guess may always be missing, so the memory is bounded
// in the simplest way: beyond kMaxSites sites, all of them are forgotten.
class LastExponents {
 public:
  static constexpr size_t kMaxSites = 4096;

  // None if the site is unknown.
  std::span<const int32_t> Of(uint64_t site) const;
  void Remember(uint64_t site, std::span<const int32_t> exponents);

 private:
  std::unordered_map<uint64_t, std::vector<int32_t>> by_site_;
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
  // `own`: this host's, none for integers. `last`: what the site's sum had last, none if that is unknown.
  SegmentExponents(const Segment& segment, std::vector<int32_t> own, std::span<const int32_t> last);

  // Does this host know the job's exponents?
  bool known() const { return chunks_awaited_ == 0; }
  std::span<const int32_t> of_job() const { return exponents_; }
  // The exponents with which this host sends a chunk's data.
  std::span<const int32_t> Sending(const Segment& segment, uint32_t chunk) const {
    return segment.CarriesGuessedData(chunk) ? guesses_ : exponents_;
  }

  // Writes the lanes of the exponent chunk that carries these blocks of the segment.
  void Write(const ChunkRange& blocks, uint8_t* lanes) const;
  // May this be its result, so that no lane is less than our own? Called before Take.
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
  std::vector<int32_t> exponents_;  // this host's, then the job's
  std::vector<int32_t> guesses_;    // empty unless the segment guesses
  std::vector<EarlyResult> kept_;
  uint32_t chunks_awaited_ = 0;
  bool guessed_right_ = false;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_SUMS_SEGMENT_EXPONENTS_H_
