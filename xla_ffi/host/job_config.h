// A rank's part of a job, as the control planes settled it at join.
#ifndef XLA_FFI_HOST_JOB_CONFIG_H_
#define XLA_FFI_HOST_JOB_CONFIG_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host/packets/lane_masks.h"
#include "host/packets/sum_check.h"
#include "wire/header.h"
#include "wire/packet_key.h"

namespace passing {

// The job at one of its switches.
struct Shard {
  uint16_t job = 0;
  uint16_t epoch = 0;
  uint32_t slot_first = 0;
  uint16_t worker = 0;                     // this rank's number there
  uint32_t whole_lanes = 0;                // if not 0, this switch takes packets of exactly that length
  std::string name{};                      // the switch's, for people
  std::optional<wire::MemberKeys> keys{};  // if packets have tags there
  bool bare = false;                       // this switch knows packets without lanes
};

struct JobConfig {
  std::string name{};  // for messages
  uint16_t rank = 0;
  uint32_t world_size = 1;
  uint32_t ranks_at_port = 1;    // how many ranks reach a switch through one port of the network, its own
  std::vector<Shard> shards{};   // in the order that all ranks agreed on
  uint32_t slots_per_shard = 0;  // a power of two
  uint32_t lanes_per_chunk = wire::kLanesAtMtu1500;
  std::optional<SumCheck::Key> check_key{};  // only hosts know it; without it, sums aren't checked
  std::optional<LaneMasks::Key> mask_key{};  // only hosts know it; without it, lanes aren't masked
  uint64_t seed = 0;                         // of the rounding on narrow wires
  bool check_nans = false;                   // tell where this rank brings the first element that isn't finite
  uint64_t first_position = 0;               // alike on all ranks; tests begin right before the sequence wraps
};

// The lanes that a chunk has behind those of its data: of the check, or the one that tells flags where lanes are
// masked.
uint32_t LanesBehind(const JobConfig& job);

// The most that a packet of the job has, with its tag.
size_t FullPacketBytes(const JobConfig& job);

// Do ranks have lanes of their own for exponents (PlanLimits)? Where lanes are masked, as a switch can't take their
// maxima; and where sums are checked, as long as it takes no more lanes than numbers that are sealed.
bool HasExponentsApart(const JobConfig& job);

// Are the job's numbers, which the switches told, possible?
bool IsInRange(const JobConfig& job);

}  // namespace passing

#endif  // XLA_FFI_HOST_JOB_CONFIG_H_
