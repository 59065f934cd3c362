// Makes a packet of a chunk, and checks the packet that comes back as its result.
#ifndef XLA_FFI_HOST_PACKETS_CHUNK_PACKETS_H_
#define XLA_FFI_HOST_PACKETS_CHUNK_PACKETS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "host/job_config.h"
#include "host/order/order_log.h"
#include "host/packets/lane_masks.h"
#include "host/packets/sum_check.h"
#include "host/sums/sum_passes.h"
#include "host/window/sharding.h"
#include "wire/header.h"

namespace passing {

// A chunk in its place. Sending a packet and taking one ask for all of this several times, so it is worked out once.
struct PlacedChunk {
  const PlacedSegment& placed;
  uint32_t index;  // in its segment
  uint64_t position;
  ShardSlot at;
  bool carries_exponents;
  bool is_added_up;     // by the switch; else it takes the maximum of the lanes
  bool is_checked;      // has the lanes of a check
  bool may_be_bare;     // its packets may leave lanes out
  uint32_t data_lanes;  // of elements or exponents
  uint32_t lanes;       // and those behind. A packet may have more, which are 0

  const Segment& segment() const { return placed.segment(); }
};

// Every segment that is handed in must have its sum.
class ChunkPackets {
 public:
  explicit ChunkPackets(const JobConfig& job);

  const Sharding& sharding() const { return sharding_; }
  Rank rank() const { return {.rank = job_.rank, .world_size = job_.world_size, .seed = job_.seed}; }
  // How sums must be cut. The lanes behind those of the data come in addition.
  PlanLimits limits() const {
    return {.lanes_per_chunk = job_.lanes_per_chunk - LanesBehind(job_),
            .window = sharding_.window_of_guesses(),
            .lanes_per_exponent = lanes_per_number(),
            .exponents_apart = HasExponentsApart(job_),
            .maxima_apart = masks_.has_value()};
  }

  // Returns what stands for the segment in its checks, so that no rank takes its chunks for another one's; 0 where sums
  // aren't checked.
  uint64_t DigestOf(const LogEntry& entry) const {
    return check_ ? check_->DigestOf(entry.id, entry.first_position) : 0;
  }
  PlacedChunk At(const PlacedSegment& placed, uint32_t index) const;
  // The header of the packet that this rank sends, without its flags: these depend on the elements.
  wire::Header HeaderOf(const PlacedChunk& chunk) const;
  // Writes that packet.
  struct Written {
    size_t bytes;
    uint8_t flags;  // of the elements, although a header of masked lanes hides them
    bool has_lanes, asks_for_lanes;
  };
  Written Write(const PlacedChunk& chunk, uint8_t* packet) const;
  // Is this the header of the chunk's result?
  bool IsResult(const wire::Header& header, const PlacedChunk& chunk) const;
  // Does this packet, whose header is the expected result's, carry the switch's tag? Always true if packets have no
  // tags.
  bool IsGenuine(std::span<const uint8_t> packet, const PlacedChunk& chunk) const;
  // The lanes of a result and its flags, as they were before anybody masked them. `scratch` must hold wire::kMaxLanes
  // lanes; it receives the unmasked ones.
  struct Summed {
    const uint8_t* lanes;
    uint8_t flags;
  };
  Summed Unmasked(const PlacedChunk& chunk, const wire::Header& header, const uint8_t* lanes, uint8_t* scratch) const;
  // The lanes of a data chunk's result, whatever of them was left out or kept. `scratch` must hold wire::kMaxLanes
  // lanes.
  const uint8_t* Lanes(const PlacedChunk& chunk, const wire::Header& header, const uint8_t* lanes,
                       uint8_t* scratch) const;
  // Returns the numbers of an exponent chunk's result, or null unless they hold this host's own: as its bits where
  // ranks are apart, else as lower bounds. `scratch` must hold wire::kMaxLanes lanes; it receives the unsealed numbers
  // where numbers are sealed.
  const uint8_t* Maxima(const PlacedChunk& chunk, const uint8_t* lanes, uint8_t* scratch) const;
  // Takes the numbers that Maxima returned.
  void TakeExponents(PlacedSegment& placed, uint32_t chunk, const uint8_t* numbers) const;
  // May these lanes be the sum of what all ranks sent for the chunk? Always true where sums aren't checked.
  bool IsSum(const PlacedChunk& chunk, uint8_t flags, const uint8_t* lanes) const;

 private:
  // Are the numbers of exponent chunks sealed? Those that are added up have a check as data has.
  bool seals_numbers() const { return check_ && !HasExponentsApart(job_); }
  uint32_t lanes_per_number() const { return seals_numbers() ? SumCheck::kNumberLanes : 1; }
  // The chunk carries exponents.
  uint32_t NumberCount(const PlacedSegment& placed, uint32_t index) const;
  ChunkRole RoleIn(const PlacedChunk& chunk) const;
  SumCheck::Chunk ToCheck(const PlacedChunk& chunk) const;

  const JobConfig job_;
  const std::optional<SumCheck> check_;
  const std::optional<LaneMasks> masks_;
  const Sharding sharding_;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_PACKETS_CHUNK_PACKETS_H_
