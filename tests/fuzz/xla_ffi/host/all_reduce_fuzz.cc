// One rank, its sums, and what the network tells it: rank 0's order as it is or garbled, results of what the rank sent,
// and packets that nobody awaits. Whatever comes, each sum ends once.
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../tests/fuzz/xla_ffi/operations.h"
#include "../tests/xla_ffi/net/fake_network.h"
#include "host/all_reduce.h"
#include "host/numbers/fixed_point.h"
#include "host/sums/sum_plan.h"
#include "wire/lanes.h"

namespace passing {
namespace {

constexpr size_t kSumsMax = 32;
constexpr size_t kSentMax = 64;  // that a result may come of: the last ones

std::shared_ptr<const SumSpec> Shape(DType dtype, std::vector<uint64_t> leaves, uint32_t devices = 1,
                                     Op op = Op::kSum) {
  return std::make_shared<SumSpec>(SumSpec{.site_name = "a name",
                                           .dtype = dtype,
                                           .leaf_elements = std::move(leaves),
                                           .local_member_count = devices,
                                           .op = op});
}

// One a site. The last has two segments.
const std::shared_ptr<const SumSpec> kShapes[] = {
    Shape(DType::kFloat32, {5}),          Shape(DType::kFloat32, {300, 7}, 2), Shape(DType::kInt32, {40}),
    Shape(DType::kBFloat16, {700, 1, 3}), Shape(DType::kFloat64, {30}),        Shape(DType::kInt32, {90}, 1, Op::kMax),
    Shape(DType::kUint8, {33}, 2),        Shape(DType::kFloat16, {64, 64}),    Shape(DType::kInt64, {1}),
    Shape(DType::kInt32, {23'100}),
};
constexpr size_t kSites = std::size(kShapes);

std::span<const uint8_t> Span(const std::string& message) {
  return {reinterpret_cast<const uint8_t*>(message.data()), message.size()};
}

JobConfig Job(Operations& input) {
  const uint8_t kind = input.Byte();
  JobConfig job{.rank = static_cast<uint16_t>(kind % 8 == 0 ? 0 : 1),
                .world_size = 2,
                .slots_per_shard = 4u << kind / 8 % 3,
                .lanes_per_chunk = kind % 8 == 7        ? wire::kMaxLanes
                                   : kind / 32 % 2 == 0 ? 64u
                                                        : 7u,
                .first_position = kind >= 192 ? 0xFFFF'FFF0u : 0u};
  for (uint16_t shard = 0; shard <= kind / 64 % 2; ++shard) {
    job.shards.push_back({.job = 3, .epoch = static_cast<uint16_t>(7 + shard), .slot_first = 2u * shard, .worker = 1});
  }
  return job;
}

class Target {
 public:
  explicit Target(Operations& input)
      : job_(Job(input)),
        window_(static_cast<uint32_t>(job_.shards.size()) * job_.slots_per_shard),
        rank_0_(window_, job_.first_position) {
    std::vector<Driver*> drivers;
    for (uint32_t shard = 0; shard < job_.shards.size(); ++shard) {
      drivers_.push_back(std::make_unique<FakeDriver>([this, shard](std::vector<uint8_t> packet) {
        sent_.emplace_back(shard, std::move(packet));
        if (sent_.size() > kSentMax) sent_.pop_front();
      }));
      drivers.push_back(drivers_.back().get());
    }
    rank_ = std::make_unique<AllReduce>(job_, drivers, [](std::string) {});
  }

  void Start(Operations& input) {
    if (sums_.size() == kSumsMax) return;
    const size_t site = input.Below(kSites);
    Call& call = sums_.emplace_back();
    call.shape = kShapes[site];
    call.key = {.site = site, .execution = executions_[site]++};
    Sum sum{.key = call.key, .spec = call.shape, .inputs = {}, .outputs = {}};
    const uint8_t pattern = input.Byte();
    for (uint32_t device = 0; device < call.shape->local_member_count; ++device) {
      for (const uint64_t elements : call.shape->leaf_elements) {
        // NaN, infinities and all sizes of numbers, too.
        call.buffers.emplace_back(elements * SizeOf(call.shape->dtype), pattern);
        if (pattern % 4 == 0) std::memset(call.buffers.back().data(), input.Byte(), SizeOf(call.shape->dtype));
        sum.inputs.push_back(call.buffers.back().data());
        sum.outputs.push_back(call.buffers.back().data());
      }
    }
    sum.done = [&call](const Failure*) { ++call.done; };
    rank_->Start(std::move(sum), now_us_);
  }

  // Rank 0 places the next segment of a sum, which this rank may start later.
  void Place(Operations& input) {
    const size_t site = input.Below(kSites);
    Placed& placed = placed_[site];
    const SumPlan plan(*kShapes[site], {.lanes_per_chunk = job_.lanes_per_chunk, .window = window_}, job_.world_size);
    const SegmentId id{.site = site, .execution = placed.execution, .segment = placed.segment};
    const uint8_t how = input.Byte();  // now and then its program is another one
    const uint32_t chunk_count = how < 240 ? plan.segment(id.segment).chunk_count() : 1 + how % 16;
    rank_0_.Append(id, chunk_count, plan.segment_count(), "a name", pending_);
    if (++placed.segment == plan.segment_count()) placed = {.execution = placed.execution + 1};
  }

  void DeliverOrder() { Deliver(std::exchange(pending_, {})); }

  void DeliverNonsense(Operations& input) {
    std::string message = pending_;
    const uint8_t at = input.Byte();
    if (!message.empty()) message[at % message.size()] = static_cast<char>(input.Byte());
    const auto more = input.Bytes(input.Below(64));
    message.append(more.begin(), more.end());
    Deliver(message);
  }

  // Brings the result of something that this rank sent, with lanes that others might have made.
  void Result(Operations& input) {
    if (sent_.empty()) return;
    auto [shard, packet] = sent_[sent_.size() - 1 - input.Byte() % sent_.size()];
    wire::Header header;
    EXPECT_ALWAYS(wire::Decode(packet, header) == wire::DecodeError::kNone);
    header.type = wire::PacketType::kResult;
    header.worker = wire::kEveryWorker;
    const uint8_t how = input.Byte();
    header.flags |= how % 8 == 0 ? input.Byte() & wire::kAllFlags : 0;
    packet.resize(header.packet_bytes());
    if (how % 8 == 1 && !header.bare()) wire::StoreLane(&packet[wire::kHeaderBytes], 0, input.Number32());
    if (how % 8 == 2) std::memset(&packet[wire::kHeaderBytes], input.Byte(), packet.size() - wire::kHeaderBytes);
    if (how % 8 == 3) header.job ^= 1;
    if (how % 8 == 4) header.epoch ^= 1;
    wire::Encode(header, packet.data());
    if (how % 8 == 5) packet[input.Byte() % packet.size()] ^= input.Byte();
    if (how % 8 == 6) packet.resize(packet.size() - 1);
    if (how % 8 == 7) shard = (shard + 1) % job_.shards.size();
    // Foreign packets are of another job or epoch, cut short, or from another shard.
    const bool is_foreign = how % 8 == 3 || how % 8 == 4 || how % 8 == 6 || (how % 8 == 7 && job_.shards.size() > 1);
    const uint64_t dropped = rank_->stats().packets_dropped;
    rank_->OnPacket(shard, packet, now_us_);
    EXPECT_ALWAYS(!is_foreign || rank_->stats().packets_dropped == dropped + 1);
  }

  // Brings the results of everything that it sent last.
  void Results() {
    const auto sent = std::exchange(sent_, {});
    for (auto [shard, packet] : sent) {
      packet[2] = static_cast<uint8_t>(wire::PacketType::kResult);
      packet[8] = packet[9] = 0xFF;
      rank_->OnPacket(shard, packet, now_us_);
    }
  }

  void Stray(Operations& input) {
    const auto bytes = input.Bytes(input.Byte());
    rank_->OnPacket(input.Byte() % job_.shards.size(), std::vector<uint8_t>(bytes.begin(), bytes.end()), now_us_);
  }

  void Timer(Operations& input) {
    now_us_ += 100 * int64_t{input.Byte()};
    for (int i = 0; i < 4 && rank_->next_timer_us() <= now_us_; ++i) rank_->OnTimer(now_us_);
    rank_->OldestStall();
  }

  void Finish() {
    rank_->Fail({"ClosedError", "the end"});
    EXPECT_ALWAYS(rank_->idle() && rank_->next_timer_us() == INT64_MAX);
    for (const Call& call : sums_) EXPECT_ALWAYS(call.done == 1);
  }

 private:
  // A rank that couldn't follow says so once, and does nothing any more.
  void Deliver(const std::string& message) {
    const bool has_failed = rank_->OnOrderMessage(Span(message)).has_value();
    EXPECT_ALWAYS(!has_failed || !has_failed_);
    has_failed_ = has_failed_ || has_failed;
    EXPECT_ALWAYS(!has_failed_ || rank_->next_timer_us() == INT64_MAX);
  }

  struct Call {
    std::shared_ptr<const SumSpec> shape;
    SumKey key;
    std::deque<std::vector<uint8_t>> buffers;
    int done = 0;
  };
  struct Placed {
    uint32_t execution = 0;
    uint32_t segment = 0;
  };

  const JobConfig job_;
  const uint32_t window_;
  Order rank_0_;
  std::string pending_;                                         // order messages
  std::deque<std::pair<uint32_t, std::vector<uint8_t>>> sent_;  // shard and packet
  std::deque<Call> sums_;
  uint32_t executions_[kSites] = {};
  Placed placed_[kSites];
  int64_t now_us_ = 0;
  bool has_failed_ = false;
  std::vector<std::unique_ptr<FakeDriver>> drivers_;
  std::unique_ptr<AllReduce> rank_;
};

}  // namespace
}  // namespace passing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  passing::Operations input(data, size);
  passing::Target target(input);
  while (!input.empty()) {
    const uint32_t operation = input.Below(16);
    if (operation < 3) {
      target.Start(input);
    } else if (operation < 6) {
      target.Place(input);
    } else if (operation < 8) {
      target.DeliverOrder();
    } else if (operation == 8) {
      target.DeliverNonsense(input);
    } else if (operation < 11) {
      target.Result(input);
    } else if (operation < 13) {
      target.Results();
    } else if (operation < 15) {
      target.Timer(input);
    } else {
      target.Stray(input);
    }
  }
  target.Finish();
  return 0;
}
