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

PlacedChunk ChunkPackets::At(const PlacedSegment& placed, uint32_t index) const {
  const SumPlan& plan = placed.sum->plan();
  const Segment& segment = placed.segment();
  const uint64_t position = placed.PositionOf(index);
  const ShardSlot at = sharding_.At(position);
  const bool carries_exponents = segment.CarriesExponents(index);
  const bool is_sum = placed.sum->spec().op == Op::kSum;
  // Masked lanes are always added up. Only what is added up has a check.
  const bool is_added_up = carries_exponents ? HasExponentsApart(job_) : masks_ || is_sum;
  const bool is_checked = check_ && is_added_up;
  // Lanes aren't left out where each rank must have given its part of a check or of the masks, nor of maxima, to which
  // zeros add something.
  const bool may_be_bare = job_.shards[at.shard].bare && !check_ && !masks_ && !carries_exponents && is_sum;
  const uint32_t data_lanes = carries_exponents ? NumberCount(placed, index) * lanes_per_number()
                                                : plan.LanesOf(plan.DataRange(segment, index).count);
  return {.placed = placed,
          .index = index,
          .position = position,
          .at = at,
          .carries_exponents = carries_exponents,
          .is_added_up = is_added_up,
          .is_checked = is_checked,
          .may_be_bare = may_be_bare,
          .data_lanes = data_lanes,
          .lanes = data_lanes + (is_checked ? SumCheck::kLanes
                                 : masks_   ? kFlagLanes
                                            : 0)};
}

uint32_t ChunkPackets::NumberCount(const PlacedSegment& placed, uint32_t index) const {
  return placed.exponents.NumberCount(placed.sum->plan().ExponentRange(placed.segment(), index));
}

ChunkRole ChunkPackets::RoleIn(const PlacedChunk& chunk) const {
  return chunk.may_be_bare ? chunk.placed.sum->RoleIn(chunk.segment(), chunk.index) : ChunkRole{};
}

// Exponents that are added up have no exponents themselves.
SumCheck::Chunk ChunkPackets::ToCheck(const PlacedChunk& chunk) const {
  const PlacedSegment& placed = chunk.placed;
  if (chunk.carries_exponents) return {.position = chunk.position, .digest = placed.digest, .may_wrap = false};
  const Segment& segment = chunk.segment();
  return {.position = chunk.position,
          .digest = segment.guesses() ? check_->DigestOf(placed.digest, placed.exponents.Sending(segment, chunk.index))
                    : segment.exponent_chunks > 0 ? placed.digest_of_data
                                                  : placed.digest,
          .may_wrap = placed.sum->lanes_may_wrap()};
}

void ChunkPackets::TakeExponents(PlacedSegment& placed, uint32_t chunk, const uint8_t* numbers) const {
  placed.exponents.Take(placed.sum->plan().ExponentRange(placed.segment(), chunk), numbers);
  if (!check_ || !placed.exponents.known()) return;
  placed.digest_of_data = check_->DigestOf(placed.digest, placed.exponents.of_data());
}

wire::Header ChunkPackets::HeaderOf(const PlacedChunk& chunk) const {
  const Shard& shard = job_.shards[chunk.at.shard];
  return {.type = wire::PacketType::kContribution,
          .job = shard.job,
          .epoch = shard.epoch,
          .worker = shard.worker,
          .slot = static_cast<uint16_t>(shard.slot_first + chunk.at.slot),
          .sequence = static_cast<uint32_t>(chunk.position),
          .version = chunk.at.version,
          .lane_format = chunk.is_added_up ? wire::LaneFormat::kSumInt32 : wire::LaneFormat::kMaxInt32,
          .element_count = static_cast<uint16_t>(shard.whole_lanes != 0 ? shard.whole_lanes : chunk.lanes),
          .tagged = shard.keys.has_value()};
}

ChunkPackets::Written ChunkPackets::Write(const PlacedChunk& chunk, uint8_t* packet) const {
  const PlacedSegment& placed = chunk.placed;
  const Segment& segment = chunk.segment();
  uint8_t* lanes = packet + wire::kHeaderBytes;
  wire::Header header = HeaderOf(chunk);
  uint8_t flags = 0;
  const ChunkRole role = RoleIn(chunk);
  if (chunk.carries_exponents) {
    placed.exponents.Write(placed.sum->plan().ExponentRange(segment, chunk.index), lanes);
    // Backwards: a sealed number takes more lanes.
    for (uint32_t i = seals_numbers() ? NumberCount(placed, chunk.index) : 0; i-- > 0;) {
      const auto number = static_cast<int32_t>(wire::LoadLane(lanes, i));
      check_->SealNumber(ToCheck(chunk), i, number, lanes + 4 * size_t{SumCheck::kNumberLanes} * i);
    }
  } else if (!role.adds_zeros) {
    flags = placed.sum->Encode(segment, chunk.index, placed.exponents.Sending(segment, chunk.index), lanes);
  }
  if (chunk.is_checked) {
    check_->Write(ToCheck(chunk), flags, chunk.data_lanes, lanes);
  } else if (masks_) {
    wire::StoreLane(lanes, chunk.data_lanes, FlagLane(flags));
  }
  if (masks_) {
    masks_->Mask(chunk.position, chunk.lanes, lanes);
  } else {
    header.flags = flags;
  }
  std::fill_n(lanes + 4 * size_t{chunk.lanes}, 4 * (size_t{header.element_count} - chunk.lanes), uint8_t{0});
  if (chunk.may_be_bare) {
    if (role.keeps_lanes || role.adds_zeros || AreZero(lanes, chunk.lanes)) header.flags |= wire::kFlagBare;
    if (!role.needs_result) header.flags |= wire::kFlagNoResult;
  }
  wire::Encode(header, packet);
  const auto& keys = job_.shards[chunk.at.shard].keys;
  if (keys) keys->contribution.Seal(packet, header.lanes_carried(), chunk.position);
  return {.bytes = header.packet_bytes(),
          .flags = flags,
          .has_lanes = !header.bare(),
          .asks_for_lanes = (header.flags & wire::kFlagNoResult) == 0};
}

bool ChunkPackets::IsResult(const wire::Header& header, const PlacedChunk& chunk) const {
  wire::Header expected = HeaderOf(chunk);
  expected.type = wire::PacketType::kResult;
  expected.worker = wire::kEveryWorker;
  expected.flags = header.flags;
  if (header != expected) return false;
  const bool may_be_flagged = !masks_ && !chunk.carries_exponents && IsFloat(chunk.placed.sum->spec().dtype);
  if ((header.flags & wire::kStickyFlags) != 0 && !may_be_flagged) return false;
  if ((header.flags & wire::kFlagNoResult) != 0) return header.bare() && !RoleIn(chunk).needs_result;
  return !header.bare() || chunk.may_be_bare;
}

const uint8_t* ChunkPackets::Lanes(const PlacedChunk& chunk, const wire::Header& header, const uint8_t* lanes,
                                   uint8_t* scratch) const {
  if (!chunk.may_be_bare) return lanes;
  const bool adds_own = RoleIn(chunk).keeps_lanes || (header.flags & wire::kFlagNoResult) != 0;
  if (!adds_own && !header.bare()) return lanes;
  if (adds_own) {
    const PlacedSegment& placed = chunk.placed;
    placed.sum->Encode(placed.segment(), chunk.index, placed.exponents.Sending(placed.segment(), chunk.index), scratch);
    if (!header.bare()) AddLanes(lanes, chunk.lanes, scratch);
  } else {
    std::fill_n(scratch, 4 * size_t{chunk.lanes}, uint8_t{0});
  }
  return scratch;
}

bool ChunkPackets::IsGenuine(std::span<const uint8_t> packet, const PlacedChunk& chunk) const {
  const auto& keys = job_.shards[chunk.at.shard].keys;
  return !keys || keys->result.Fits(packet, chunk.position);
}

ChunkPackets::Summed ChunkPackets::Unmasked(const PlacedChunk& chunk, const wire::Header& header, const uint8_t* lanes,
                                            uint8_t* scratch) const {
  if (!masks_) return {lanes, static_cast<uint8_t>(header.flags & wire::kStickyFlags)};
  masks_->Unmask(chunk.position, chunk.lanes, lanes, scratch);
  std::fill_n(scratch + 4 * size_t{chunk.lanes}, 4 * (size_t{header.element_count} - chunk.lanes), uint8_t{0});
  const bool may_be_flagged = !chunk.carries_exponents && IsFloat(chunk.placed.sum->spec().dtype);
  return {scratch, may_be_flagged ? FlagsOfLane(wire::LoadLane(scratch, chunk.data_lanes)) : uint8_t{0}};
}

const uint8_t* ChunkPackets::Maxima(const PlacedChunk& chunk, const uint8_t* lanes, uint8_t* scratch) const {
  const PlacedSegment& placed = chunk.placed;
  if (seals_numbers()) {
    const uint32_t count = NumberCount(placed, chunk.index);
    for (uint32_t i = 0; i < count; ++i) {
      const uint8_t* sealed = lanes + 4 * size_t{SumCheck::kNumberLanes} * i;
      const auto number = check_->OpenNumber(ToCheck(chunk), i, sealed);
      if (!number) return nullptr;
      wire::StoreLane(scratch, i, static_cast<uint32_t>(*number));
    }
    lanes = scratch;
  }
  return placed.exponents.MayBe(placed.sum->plan().ExponentRange(chunk.segment(), chunk.index), lanes) ? lanes
                                                                                                       : nullptr;
}

bool ChunkPackets::IsSum(const PlacedChunk& chunk, uint8_t flags, const uint8_t* lanes) const {
  return !chunk.is_checked || check_->Holds(ToCheck(chunk), flags, chunk.data_lanes, lanes);
}

}  // namespace passing
