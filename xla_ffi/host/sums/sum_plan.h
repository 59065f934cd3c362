// The plan of a sum cuts its elements into segments, blocks and chunks. Pure; alike on every rank.
//
// The leaves' elements lie end to end in a row of cells. Where elements share a lane, a leaf is padded to whole lanes
// by empty cells, so no lane spans two leaves.
#ifndef XLA_FFI_HOST_SUMS_SUM_PLAN_H_
#define XLA_FFI_HOST_SUMS_SUM_PLAN_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "host/numbers/fixed_point.h"
#include "host/sums/sum.h"

namespace passing {

// A segment is one entry of the job's order, with at most so many lanes. They are 64 chunks of 360, 90 of 256 or 360 of
// 64, or 10 of 2,232, with 2,176 lanes used of each; and 90 blocks of 256 float32 (180 of bfloat16, 64 of float32 as
// int8). With chunks of other lengths, as of sums that are checked or masked, a segment is so much shorter that chunks
// and blocks end with it: a shorter packet ends a super-packet (net/datagram_batch.h), so no chunk is short but the
// last of a leaf.
inline constexpr uint32_t kSegmentLanes = 23040;

// Floats of a sum that fits into this number of lanes travel precisely, and may guess their exponents. Four packets of
// 360 take 48 us at 1 Gbit/s, about the round trip that a right guess saves; a wrong one costs as much.
inline constexpr uint32_t kPreciseLanesOfSum = 1440;

// The numbers in an exponent chunk: of each block, and in addition where the segment guesses (segment_exponents.h).
inline constexpr uint32_t kNumbersPerBlock = 2, kGuessNumbers = 4;

// Ranks that have lanes of their own for exponents share a lane by so many.
inline constexpr uint32_t kRanksPerLane = 2;

// A sum has to be cut so that its parts fit into these.
struct PlanLimits {
  uint32_t lanes_per_chunk;         // of data
  uint32_t window;                  // a sum that guesses its exponents must fit into it as a whole
  uint32_t lanes_per_exponent = 1;  // of each number in an exponent chunk
  // Ranks have lanes of their own for their exponents, or for the elements of a maximum, so that these are added up as
  // all lanes are, and may be checked and masked alike.
  bool exponents_apart = false;
  bool maxima_apart = false;
};

struct Segment {
  uint64_t first_cell = 0;
  uint32_t cell_count = 0;
  uint64_t first_block = 0;
  uint32_t block_count = 0;      // 0 for integers, which need no scale
  uint32_t exponent_chunks = 0;  // sent first
  uint16_t per_block = 0;        // numbers that an exponent chunk has of each block (segment_exponents.h)
  bool moves_bits = false;       // blocks that one rank has alone travel as their bits
  bool exponents_apart = false;  // PlanLimits
  uint32_t data_chunks = 0;
  // The data of a small sum travels together with its exponents, scaled by guesses. These chunks carry the data again
  // if a guess was wrong.
  uint32_t repeat_chunks = 0;
  // Index of the first exponent chunk. Guessed data goes before it if the exponent chunk is the shorter packet: only
  // the last of the packets that the kernel takes in one send may be shorter.
  uint32_t exponents_at = 0;

  uint32_t chunk_count() const { return exponent_chunks + data_chunks + repeat_chunks; }
  bool guesses() const { return repeat_chunks > 0; }
  // The number of chunks that are sent before the job's exponents are known.
  uint32_t first_chunks() const { return exponent_chunks + (guesses() ? data_chunks : 0); }
  bool CarriesExponents(uint32_t chunk) const {
    return chunk >= exponents_at && chunk < exponents_at + exponent_chunks;
  }
  bool CarriesGuessedData(uint32_t chunk) const {
    return guesses() && chunk < first_chunks() && !CarriesExponents(chunk);
  }
  // The index of this chunk among the data chunks.
  uint32_t DataChunk(uint32_t chunk) const {
    return (chunk - (chunk < exponents_at ? 0 : exponent_chunks)) % data_chunks;
  }
};

// Elements of one leaf, inside one block.
struct ElementRun {
  uint32_t leaf;
  uint64_t first;  // in the leaf
  uint32_t count;
  uint64_t block;   // in the sum
  uint32_t offset;  // in cells, in the range that was asked for
};

// The cells of the sum, or the blocks of its segment, that a chunk carries.
struct ChunkRange {
  uint64_t first;
  uint32_t count;
};

class SumPlan {
 public:
  SumPlan(const SumSpec& spec, const PlanLimits& limits, uint32_t world_size);
  // Leaves out the segments of other stripes. Cells and blocks keep their numbers, so that all bits stay as they are.
  void Keep(const Stripe& stripe);

  uint64_t cells() const { return leaf_starts_.back(); }
  uint32_t segment_count() const { return static_cast<uint32_t>(segments_.size()); }
  const Segment& segment(uint32_t index) const { return segments_[index]; }

  // How elements travel, alike on every rank.
  const ElementFormat& format() const { return format_; }
  // Does each rank have lanes of its own for its elements, as where masked lanes carry maxima? An element has as many
  // lanes as there are ranks then.
  bool maxima_apart() const { return maxima_apart_; }
  // Lanes of this many cells: a range of a chunk, or the offset of a run in it.
  uint32_t LanesOf(uint32_t cells) const { return cells / group_.elements * group_.lanes; }

  // The blocks whose exponents a chunk carries.
  ChunkRange ExponentRange(const Segment& segment, uint32_t chunk) const {
    const uint32_t blocks = limits_.lanes_per_chunk / limits_.lanes_per_exponent / segment.per_block;
    const uint32_t first = (chunk - segment.exponents_at) * blocks;
    return {first, std::min(blocks, segment.block_count - first)};
  }
  ChunkRange DataRange(const Segment& segment, uint32_t chunk) const {
    const uint32_t first = segment.DataChunk(chunk) * cells_per_chunk_;
    return {segment.first_cell + first, std::min(cells_per_chunk_, segment.cell_count - first)};
  }

  // The number of elements before this cell.
  uint64_t ElementsBefore(uint64_t cell) const {
    const auto leaf = std::upper_bound(leaf_starts_.begin(), leaf_starts_.end() - 1, cell) - leaf_starts_.begin() - 1;
    return leaf_firsts_[leaf] + std::min(cell - leaf_starts_[leaf], ElementsOf(leaf));
  }

  // Calls f(ElementRun) for the runs in `count` cells from `first` on, in order.
  template <typename F>
  void ForEachRun(uint64_t first, uint64_t count, F&& f) const {
    auto leaf = std::upper_bound(leaf_starts_.begin(), leaf_starts_.end(), first) - leaf_starts_.begin() - 1;
    uint64_t in_leaf = first - leaf_starts_[leaf];
    for (uint64_t offset = 0; offset < count;) {
      const uint64_t leaf_left = leaf_starts_[leaf + 1] - leaf_starts_[leaf] - in_leaf;
      const uint64_t block_elements = block_elements_[leaf];
      const uint64_t block_left = block_elements - in_leaf % block_elements;
      const uint64_t run = std::min({count - offset, leaf_left, block_left});
      // None where the range starts in a leaf's padding, as a chunk of classes may.
      const uint64_t elements = std::min(run, ElementsOf(leaf) - std::min(in_leaf, ElementsOf(leaf)));
      f(ElementRun{static_cast<uint32_t>(leaf), in_leaf, static_cast<uint32_t>(elements),
                   leaf_blocks_[leaf] + in_leaf / block_elements, static_cast<uint32_t>(offset)});
      offset += run;
      in_leaf += run;
      if (run == leaf_left) {
        ++leaf;
        in_leaf = 0;
      }
    }
  }

  // The elements of block `block`, a number from the sum's start.
  ElementRun Block(uint64_t block) const;
  uint32_t BlockElementsOf(uint32_t leaf) const { return block_elements_[leaf]; }

 private:
  void TakeTurns(uint32_t parts);
  uint64_t ElementsOf(std::ptrdiff_t leaf) const { return leaf_firsts_[leaf + 1] - leaf_firsts_[leaf]; }

  PlanLimits limits_;
  ElementFormat format_;
  bool maxima_apart_;
  LaneGroup group_;
  uint32_t cells_per_chunk_;
  std::vector<uint64_t> leaf_starts_;     // cell at which each leaf starts, and the end
  std::vector<uint64_t> leaf_firsts_;     // the same in elements
  std::vector<uint64_t> leaf_blocks_;     // and in blocks
  std::vector<uint32_t> block_elements_;  // by leaf
  std::vector<Segment> segments_;         // in the order in which they are placed
};

}  // namespace passing

#endif  // XLA_FFI_HOST_SUMS_SUM_PLAN_H_
