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
  // The header of the packet that this rank sends, without its flags: these depend on the elements.
  wire::Header HeaderOf(const PlacedSegment& placed, uint32_t chunk) const;
  // Writes that packet.
  struct Written {
    size_t bytes;
    uint8_t flags;  // of the elements, although a header of masked lanes hides them
    bool has_lanes, asks_for_lanes;
  };
  Written Write(const PlacedSegment& placed, uint32_t chunk, uint8_t* packet) const;
  // Is this the header of the chunk's result?
  bool IsResult(const wire::Header& header, const PlacedSegment& placed, uint32_t chunk) const;
  // Does this packet, whose header is the expected result's, carry the switch's tag? Always true if packets have no
  // tags.
  bool IsGenuine(std::span<const uint8_t> packet, uint64_t position) const;
  // The lanes of a result and its flags, as they were before anybody masked them. `scratch` must hold wire::kMaxLanes
  // lanes; it receives the unmasked ones.
  struct Summed {
    const uint8_t* lanes;
    uint8_t flags;
  };
  Summed Unmasked(const PlacedSegment& placed, uint32_t chunk, const wire::Header& header, const uint8_t* lanes,
                  uint8_t* scratch) const;
  // The lanes of a data chunk's result, whatever of them was left out or kept. `scratch` must hold wire::kMaxLanes
  // lanes.
  const uint8_t* Lanes(const PlacedSegment& placed, uint32_t chunk, const wire::Header& header, const uint8_t* lanes,
                       uint8_t* scratch) const;
  // Returns the numbers of an exponent chunk's result, or null unless they hold this host's own: as its bits where
  // ranks are apart, else as lower bounds. `scratch` must hold wire::kMaxLanes lanes; it receives the unsealed numbers
  // where numbers are sealed.
  const uint8_t* Maxima(const PlacedSegment& placed, uint32_t chunk, const uint8_t* lanes, uint8_t* scratch) const;
  // Takes the numbers that Maxima returned.
  void TakeExponents(PlacedSegment& placed, uint32_t chunk, const uint8_t* numbers) const;
  // May these lanes be the sum of what all ranks sent for the chunk? Always true where sums aren't checked.
  bool IsSum(const PlacedSegment& placed, uint32_t chunk, uint8_t flags, const uint8_t* lanes) const;

 private:
  bool MayBeBare(const PlacedSegment& placed, uint32_t chunk) const;
  ChunkRole RoleIn(const PlacedSegment& placed, uint32_t chunk) const;
  // Are the numbers of exponent chunks sealed? Those that are added up have a check as data has.
  bool seals_numbers() const { return check_ && !HasExponentsApart(job_); }
  uint32_t lanes_per_number() const { return seals_numbers() ? SumCheck::kNumberLanes : 1; }
  bool IsAddedUp(const PlacedSegment& placed, uint32_t chunk) const;
  bool IsChecked(const PlacedSegment& placed, uint32_t chunk) const;
  SumCheck::Chunk ToCheck(const PlacedSegment& placed, uint32_t chunk) const;
  uint32_t NumberCount(const PlacedSegment& placed, uint32_t chunk) const;
  uint32_t DataLanesOf(const PlacedSegment& placed, uint32_t chunk) const;
  uint32_t LanesOf(const PlacedSegment& placed, uint32_t chunk) const;

  const JobConfig job_;
  const std::optional<SumCheck> check_;
  const std::optional<LaneMasks> masks_;
  const Sharding sharding_;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_PACKETS_CHUNK_PACKETS_H_
