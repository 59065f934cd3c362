#include "host/packets/chunk_packets.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "host/numbers/fixed_point.h"
#include "wire/lanes.h"

namespace passing {

static_assert(kNumberBits == SumCheck::kNumberBits);

namespace {

// There is a lane, and as each equals the next, all are 0 if the first one is.
bool AreZero(const uint8_t* lanes, uint32_t count) {
  return wire::LoadLane(lanes, 0) == 0 && std::memcmp(lanes, lanes + 4, 4 * (size_t{count} - 1)) == 0;
}

PASSING_CLONES void AddLanes(const uint8_t* __restrict lanes, uint32_t count, uint8_t* __restrict sums) {
  for (uint32_t i = 0; i < count; ++i) wire::StoreLane(sums, i, wire::LoadLane(sums, i) + wire::LoadLane(lanes, i));
}

}  // namespace

ChunkPackets::ChunkPackets(const JobConfig& job)
    : job_(job),
      check_(job.check_key ? std::optional<SumCheck>(std::in_place, *job.check_key, job.rank, job.world_size)
                           : std::nullopt),
      masks_(job.mask_key ? std::optional<LaneMasks>(std::in_place, *job.mask_key, job.rank, job.world_size)
                          : std::nullopt),
      sharding_(static_cast<uint32_t>(job.shards.size()), job.slots_per_shard, job.lanes_per_chunk) {
  assert(IsInRange(job));
}

// The switch adds up its lanes; else it takes their maximum. Masked lanes are always added up.
bool ChunkPackets::IsAddedUp(const PlacedSegment& placed, uint32_t chunk) const {
  if (placed.segment().CarriesExponents(chunk)) return HasExponentsApart(job_);
  return masks_ || placed.sum->spec().op == Op::kSum;
}

// Chunks that are added up have a check; those whose maximum is taken have none.
bool ChunkPackets::IsChecked(const PlacedSegment& placed, uint32_t chunk) const {
  return check_ && IsAddedUp(placed, chunk);
}

// May lanes be left out of the chunk's packets? Not where each rank must have given its part of a check or of the
// masks, nor of maxima, to which zeros add something.
bool ChunkPackets::MayBeBare(const PlacedSegment& placed, uint32_t chunk) const {
  return job_.shards[sharding_.ShardOf(placed.PositionOf(chunk))].bare && !check_ && !masks_ &&
         !placed.segment().CarriesExponents(chunk) && placed.sum->spec().op == Op::kSum;
}

ChunkRole ChunkPackets::RoleIn(const PlacedSegment& placed, uint32_t chunk) const {
  return MayBeBare(placed, chunk) ? placed.sum->RoleIn(placed.segment(), chunk) : ChunkRole{};
}

// Exponents that are added up have no exponents themselves.
SumCheck::Chunk ChunkPackets::ToCheck(const PlacedSegment& placed, uint32_t chunk) const {
  if (placed.segment().CarriesExponents(chunk)) {
    return {.position = placed.PositionOf(chunk), .digest = placed.digest, .may_wrap = false};
  }
  const bool guesses = placed.segment().guesses();
  return {.position = placed.PositionOf(chunk),
          .digest = guesses ? check_->DigestOf(placed.digest, placed.exponents.Sending(placed.segment(), chunk))
                    : placed.segment().exponent_chunks > 0 ? placed.digest_of_data
                                                           : placed.digest,
          .may_wrap = placed.sum->lanes_may_wrap()};
}

void ChunkPackets::TakeExponents(PlacedSegment& placed, uint32_t chunk, const uint8_t* numbers) const {
  placed.exponents.Take(placed.sum->plan().ExponentRange(placed.segment(), chunk), numbers);
  if (!check_ || !placed.exponents.known()) return;
  placed.digest_of_data = check_->DigestOf(placed.digest, placed.exponents.of_data());
}

// The chunk carries exponents.
uint32_t ChunkPackets::NumberCount(const PlacedSegment& placed, uint32_t chunk) const {
  return placed.exponents.NumberCount(placed.sum->plan().ExponentRange(placed.segment(), chunk));
}

uint32_t ChunkPackets::DataLanesOf(const PlacedSegment& placed, uint32_t chunk) const {
  const SumPlan& plan = placed.sum->plan();
  const Segment& segment = placed.segment();
  return segment.CarriesExponents(chunk) ? NumberCount(placed, chunk) * lanes_per_number()
                                         : plan.LanesOf(plan.DataRange(segment, chunk).count);
}

// The lanes of a chunk. A packet may have more, which are 0.
uint32_t ChunkPackets::LanesOf(const PlacedSegment& placed, uint32_t chunk) const {
  const uint32_t behind = IsChecked(placed, chunk) ? SumCheck::kLanes : masks_ ? kFlagLanes : 0;
  return DataLanesOf(placed, chunk) + behind;
}

wire::Header ChunkPackets::HeaderOf(const PlacedSegment& placed, uint32_t chunk) const {
  const uint64_t position = placed.PositionOf(chunk);
  const ShardSlot at = sharding_.At(position);
  const Shard& shard = job_.shards[at.shard];
  const uint32_t lanes = shard.whole_lanes != 0 ? shard.whole_lanes : LanesOf(placed, chunk);
  return {.type = wire::PacketType::kContribution,
          .job = shard.job,
          .epoch = shard.epoch,
          .worker = shard.worker,
          .slot = static_cast<uint16_t>(shard.slot_first + at.slot),
          .sequence = static_cast<uint32_t>(position),
          .version = at.version,
          .lane_format = IsAddedUp(placed, chunk) ? wire::LaneFormat::kSumInt32 : wire::LaneFormat::kMaxInt32,
          .element_count = static_cast<uint16_t>(lanes),
          .tagged = shard.keys.has_value()};
}

ChunkPackets::Written ChunkPackets::Write(const PlacedSegment& placed, uint32_t chunk, uint8_t* packet) const {
  const Segment& segment = placed.segment();
  uint8_t* lanes = packet + wire::kHeaderBytes;
  wire::Header header = HeaderOf(placed, chunk);
  const uint32_t lane_count = LanesOf(placed, chunk);
  uint8_t flags = 0;
  const bool may_be_bare = MayBeBare(placed, chunk);
  const ChunkRole role = RoleIn(placed, chunk);
  if (segment.CarriesExponents(chunk)) {
    placed.exponents.Write(placed.sum->plan().ExponentRange(segment, chunk), lanes);
    // Backwards: a sealed number takes more lanes.
    for (uint32_t i = seals_numbers() ? NumberCount(placed, chunk) : 0; i-- > 0;) {
      const auto number = static_cast<int32_t>(wire::LoadLane(lanes, i));
      check_->SealNumber(ToCheck(placed, chunk), i, number, lanes + 4 * size_t{SumCheck::kNumberLanes} * i);
    }
  } else if (!role.adds_zeros) {
    flags = placed.sum->Encode(segment, chunk, placed.exponents.Sending(segment, chunk), lanes);
  }
  if (IsChecked(placed, chunk)) {
    check_->Write(ToCheck(placed, chunk), flags, DataLanesOf(placed, chunk), lanes);
  } else if (masks_) {
    wire::StoreLane(lanes, DataLanesOf(placed, chunk), FlagLane(flags));
  }
  if (masks_) {
    masks_->Mask(placed.PositionOf(chunk), lane_count, lanes);
  } else {
    header.flags = flags;
  }
  std::fill_n(lanes + 4 * size_t{lane_count}, 4 * (size_t{header.element_count} - lane_count), uint8_t{0});
  if (may_be_bare) {
    if (role.keeps_lanes || role.adds_zeros || AreZero(lanes, lane_count)) header.flags |= wire::kFlagBare;
    if (!role.needs_result) header.flags |= wire::kFlagNoResult;
  }
  wire::Encode(header, packet);
  const uint64_t position = placed.PositionOf(chunk);
  const auto& keys = job_.shards[sharding_.ShardOf(position)].keys;
  if (keys) keys->contribution.Seal(packet, header.lanes_carried(), position);
  return {.bytes = header.packet_bytes(),
          .flags = flags,
          .has_lanes = !header.bare(),
          .asks_for_lanes = (header.flags & wire::kFlagNoResult) == 0};
}

bool ChunkPackets::IsResult(const wire::Header& header, const PlacedSegment& placed, uint32_t chunk) const {
  wire::Header expected = HeaderOf(placed, chunk);
  expected.type = wire::PacketType::kResult;
  expected.worker = wire::kEveryWorker;
  expected.flags = header.flags;
  if (header != expected) return false;
  const bool may_be_flagged = !masks_ && !placed.segment().CarriesExponents(chunk) && IsFloat(placed.sum->spec().dtype);
  if ((header.flags & wire::kStickyFlags) != 0 && !may_be_flagged) return false;
  if ((header.flags & wire::kFlagNoResult) != 0) return header.bare() && !RoleIn(placed, chunk).needs_result;
  return !header.bare() || MayBeBare(placed, chunk);
}

const uint8_t* ChunkPackets::Lanes(const PlacedSegment& placed, uint32_t chunk, const wire::Header& header,
                                   const uint8_t* lanes, uint8_t* scratch) const {
  if (!MayBeBare(placed, chunk)) return lanes;
  const bool adds_own = RoleIn(placed, chunk).keeps_lanes || (header.flags & wire::kFlagNoResult) != 0;
  if (!adds_own && !header.bare()) return lanes;
  const uint32_t count = LanesOf(placed, chunk);
  if (adds_own) {
    placed.sum->Encode(placed.segment(), chunk, placed.exponents.Sending(placed.segment(), chunk), scratch);
    if (!header.bare()) AddLanes(lanes, count, scratch);
  } else {
    std::fill_n(scratch, 4 * size_t{count}, uint8_t{0});
  }
  return scratch;
}

bool ChunkPackets::IsGenuine(std::span<const uint8_t> packet, uint64_t position) const {
  const auto& keys = job_.shards[sharding_.ShardOf(position)].keys;
  return !keys || keys->result.Fits(packet, position);
}

ChunkPackets::Summed ChunkPackets::Unmasked(const PlacedSegment& placed, uint32_t chunk, const wire::Header& header,
                                            const uint8_t* lanes, uint8_t* scratch) const {
  if (!masks_) return {lanes, static_cast<uint8_t>(header.flags & wire::kStickyFlags)};
  const uint32_t lane_count = LanesOf(placed, chunk);
  masks_->Unmask(placed.PositionOf(chunk), lane_count, lanes, scratch);
  std::fill_n(scratch + 4 * size_t{lane_count}, 4 * (size_t{header.element_count} - lane_count), uint8_t{0});
  const bool may_be_flagged = !placed.segment().CarriesExponents(chunk) && IsFloat(placed.sum->spec().dtype);
  return {scratch, may_be_flagged ? FlagsOfLane(wire::LoadLane(scratch, DataLanesOf(placed, chunk))) : uint8_t{0}};
}

const uint8_t* ChunkPackets::Maxima(const PlacedSegment& placed, uint32_t chunk, const uint8_t* lanes,
                                    uint8_t* scratch) const {
  if (seals_numbers()) {
    const uint32_t count = NumberCount(placed, chunk);
    for (uint32_t i = 0; i < count; ++i) {
      const uint8_t* sealed = lanes + 4 * size_t{SumCheck::kNumberLanes} * i;
      const auto number = check_->OpenNumber(ToCheck(placed, chunk), i, sealed);
      if (!number) return nullptr;
      wire::StoreLane(scratch, i, static_cast<uint32_t>(*number));
    }
    lanes = scratch;
  }
  return placed.exponents.MayBe(placed.sum->plan().ExponentRange(placed.segment(), chunk), lanes) ? lanes : nullptr;
}

bool ChunkPackets::IsSum(const PlacedSegment& placed, uint32_t chunk, uint8_t flags, const uint8_t* lanes) const {
  return !IsChecked(placed, chunk) || check_->Holds(ToCheck(placed, chunk), flags, DataLanesOf(placed, chunk), lanes);
}

}  // namespace passing
