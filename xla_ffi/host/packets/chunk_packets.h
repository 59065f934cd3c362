// A chunk of the job's order as a packet: what this rank sends for it, and what its result must look like.
#ifndef XLA_FFI_HOST_PACKETS_CHUNK_PACKETS_H_
#define XLA_FFI_HOST_PACKETS_CHUNK_PACKETS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "host/job_config.h"
#include "host/order/order_log.h"
#include "host/packets/sum_check.h"
#include "host/window/sharding.h"
#include "wire/header.h"

namespace passing {

// Every line that is handed in has its sum.
class ChunkPackets {
 public:
  explicit ChunkPackets(const JobConfig& job);

  const Sharding& sharding() const { return sharding_; }
  uint32_t headroom_bits() const { return headroom_bits_; }
  // Of a chunk: those for a check are left out.
  uint32_t data_lanes_per_chunk() const { return job_.lanes_per_chunk - (check_ ? SumCheck::kLanes : 0); }

  // Of the packet that this rank sends, without its flags, which its elements tell.
  wire::Header HeaderOf(const PlacedSegment& placed, uint32_t chunk) const;
  // Writes that packet; returns its size in bytes.
  size_t Write(const PlacedSegment& placed, uint32_t chunk, uint8_t* packet) const;
  // Is this the header of the chunk's result?
  bool IsResult(const wire::Header& header, const PlacedSegment& placed, uint32_t chunk) const;
  // Has this packet, with the header of that result, the tag that only the switch can make, if packets have tags there?
  bool IsGenuine(std::span<const uint8_t> packet, uint64_t position) const;
  // The lanes of an exponent chunk's result, if they may be the maxima of what all ranks sent, else null. They are no
  // less than our own. `room`: for wire::kMaxLanes lanes, where they are put if the packet has them in another form.
  const uint8_t* Maxima(const PlacedSegment& placed, uint32_t chunk, const uint8_t* lanes, uint8_t* room) const;
  // May these lanes be the sum of what all ranks sent for the chunk? Always, if nobody checks.
  bool IsSum(const PlacedSegment& placed, uint32_t chunk, uint8_t flags, const uint8_t* lanes) const;

 private:
  bool IsChecked(const PlacedSegment& placed, uint32_t chunk) const;
  SumCheck::Chunk ToCheck(const PlacedSegment& placed, uint32_t chunk) const;
  uint32_t DataLanesOf(const PlacedSegment& placed, uint32_t chunk) const;
  uint32_t LanesOf(const PlacedSegment& placed, uint32_t chunk) const;

  const JobConfig job_;
  const std::optional<SumCheck> check_;
  const Sharding sharding_;
  const uint32_t headroom_bits_;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_PACKETS_CHUNK_PACKETS_H_
