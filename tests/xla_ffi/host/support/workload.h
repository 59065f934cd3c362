// Programs of random sums for a Cluster, and what every host must get.
#ifndef TESTS_XLA_FFI_HOST_SUPPORT_WORKLOAD_H_
#define TESTS_XLA_FFI_HOST_SUPPORT_WORKLOAD_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../tests/xla_ffi/host/support/cluster.h"
#include "../tests/xla_ffi/host/support/reference.h"

namespace passing {

// One site of a program, and the buffers of one call of it on one host.
struct Site {
  uint64_t id;
  std::shared_ptr<const SumSpec> shape;
};
struct Call {
  HostBuffers buffers;   // results overwrite the input
  HostBuffers late;      // what of the input isn't in `buffers` from the start
  uint64_t written = 0;  // elements
  bool done = false;
  int64_t done_us = 0;
  std::optional<Failure> failure;
};

class Workload {
 public:
  Workload(Cluster& cluster, uint32_t world_size) : cluster_(cluster), world_size_(world_size) {}

  void AddSite(DType dtype, std::vector<uint64_t> leaves, uint32_t device_count, Op op = Op::kSum,
               Wire wire = Wire::kFull) {
    const uint64_t id = 0x9E3779B97F4A7C15 * (sites_.size() + 1);
    sites_.push_back({id, std::make_shared<SumSpec>(SumSpec{.site_name = "site " + std::to_string(sites_.size()),
                                                            .dtype = dtype,
                                                            .leaf_elements = std::move(leaves),
                                                            .local_member_count = device_count,
                                                            .op = op,
                                                            .wire = wire})});
    executions_.push_back(0);
  }
  size_t site_count() const { return sites_.size(); }
  // From now on only some elements of a sum are there when it is issued, as if a GPU delivered them. Each next piece,
  // of up to `piece` elements, comes up to `gap_us` later.
  void DeliverLate(uint64_t seed, uint64_t piece, int64_t gap_us) { late_ = {std::mt19937_64(seed), piece, gap_us}; }
  // The number of times a host was told of results before its sum was done.
  uint64_t told() const { return told_; }

  // One execution of a program that calls `sites`: every host issues them in its own order and at its own pace.
  // Elements are random, or all `value`, a float32.
  void Execute(const std::vector<size_t>& sites, int64_t spread_us, double special = 0,
               std::optional<float> value = std::nullopt) {
    std::vector<std::pair<size_t, uint32_t>> calls;
    for (size_t site : sites) {
      const uint32_t execution = executions_[site]++;
      calls.emplace_back(site, execution);
      auto& hosts = calls_[{site, execution}];
      hosts.resize(world_size_);
      for (Call& host : hosts) {
        for (uint32_t device = 0; device < sites_[site].shape->local_member_count; ++device) {
          for (uint64_t elements : sites_[site].shape->leaf_elements) {
            host.buffers.push_back(RandomLeaf(*sites_[site].shape, elements, cluster_.network().random(), special));
            for (uint64_t i = 0; value && i < elements; ++i) std::memcpy(&host.buffers.back()[4 * i], &*value, 4);
          }
        }
      }
      std::vector<HostBuffers> inputs;
      for (const Call& host : hosts) inputs.push_back(host.buffers);
      references_[{site, execution}] =
          Reference(*sites_[site].shape, inputs, {.site = sites_[site].id, .execution = execution});
    }
    for (uint32_t rank = 0; rank < world_size_; ++rank) {
      for (const auto& [site, execution] : calls) {
        const int64_t delay_us = cluster_.network().Below(spread_us);
        cluster_.network().After(delay_us,
                                 [this, rank, site = site, execution = execution] { Issue(rank, site, execution); });
      }
    }
  }

  // Every call is done, and every device of every host holds the reference's bits; unless the sum failed, if it may.
  void Check(bool may_fail = false) const {
    for (const auto& [key, hosts] : calls_) {
      const auto& reference = references_.at(key);
      for (uint32_t rank = 0; rank < world_size_; ++rank) {
        const Call& call = hosts[rank];
        ASSERT_TRUE(call.done) << "site " << key.first << " execution " << key.second << " rank " << rank;
        if (may_fail && call.failure) continue;
        ASSERT_FALSE(call.failure) << call.failure->message;
        for (size_t i = 0; i < call.buffers.size(); ++i) {
          ASSERT_EQ(call.buffers[i], reference[i % reference.size()])
              << "site " << key.first << " execution " << key.second << " rank " << rank << " buffer " << i;
        }
      }
    }
  }

  Call& call(size_t site, uint32_t execution, uint32_t rank) { return calls_.at({site, execution})[rank]; }

 private:
  void Issue(uint32_t rank, size_t site, uint32_t execution) {
    Call& call = calls_.at({site, execution})[rank];
    Sum sum{.key = {.site = sites_[site].id, .execution = execution, .step = 0},
            .spec = sites_[site].shape,
            .inputs = {},
            .outputs = {}};
    for (Bytes& buffer : call.buffers) {
      sum.inputs.push_back(buffer.data());
      sum.outputs.push_back(buffer.data());
    }
    sum.done = [this, &call](const Failure* failure) {
      ASSERT_FALSE(call.done);
      call.done = true;
      call.done_us = cluster_.network().now_us();
      if (failure != nullptr) call.failure = *failure;
    };
    if (late_) {
      const SumSpec& shape = *sites_[site].shape;
      const uint64_t all = ElementsOf(shape), first = 1 + late_->random() % all;
      call.late = call.buffers;
      Spoil(call.buffers, shape, first);
      sum.pieces.emplace().ready_elements = first;
      sum.pieces->written = [this, &call, site, execution](uint64_t elements) {
        OnWritten(call, site, execution, elements);
      };
      DeliverNext(call, rank, sum.key, sites_[site].shape, first);
    }
    cluster_.rank(rank).Start(std::move(sum), cluster_.network().now_us());
  }
  void DeliverNext(Call& call, uint32_t rank, const SumKey& key, const std::shared_ptr<const SumSpec>& shape,
                   uint64_t begin) {
    if (begin == ElementsOf(*shape)) return;
    const auto delay_us = static_cast<int64_t>(late_->random() % static_cast<uint64_t>(late_->gap_us));
    cluster_.network().After(delay_us, [this, &call, rank, key, shape, begin] {
      const uint64_t end = std::min(ElementsOf(*shape), begin + 1 + late_->random() % late_->piece);
      Deliver(call.late, call.buffers, *shape, begin, end);
      cluster_.rank(rank).OnReady(key, end);
      DeliverNext(call, rank, key, shape, end);
    });
  }
  // A host's input stays as it is once the host was told of it.
  void OnWritten(Call& call, size_t site, uint32_t execution, uint64_t elements) {
    ASSERT_FALSE(call.done);
    ASSERT_GT(elements, call.written);
    const auto& reference = references_.at({site, execution});
    ASSERT_TRUE(AreRight(call.buffers, reference, *sites_[site].shape, call.written, elements)) << "site " << site;
    call.written = elements;
    ++told_;
  }

  struct Late {
    std::mt19937_64 random;
    uint64_t piece;
    int64_t gap_us;
  };

  Cluster& cluster_;
  const uint32_t world_size_;
  std::optional<Late> late_;
  uint64_t told_ = 0;
  std::vector<Site> sites_;
  std::vector<uint32_t> executions_;
  std::map<std::pair<size_t, uint32_t>, std::vector<Call>> calls_;
  std::map<std::pair<size_t, uint32_t>, std::vector<Bytes>> references_;
};

inline std::string Stalls(Cluster& cluster, uint32_t world_size) {
  std::string text = "at " + std::to_string(cluster.network().now_us()) + " us\n";
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    const auto stall = cluster.rank(rank).OldestStall();
    if (!stall) continue;
    text += "rank " + std::to_string(rank) + ": " + stall->site_name + " execution " +
            std::to_string(stall->key.execution) + (stall->waits_for_gpu ? " waits for elements" : "") +
            (stall->waits_for_order ? " waits for its place" : "") + ", slot " + std::to_string(stall->slot) +
            " version " + std::to_string(stall->version) + " sequence " + std::to_string(stall->sequence) +
            " job is at " + stall->job_is_at + "\n";
  }
  return text;
}

}  // namespace passing

#endif  // TESTS_XLA_FFI_HOST_SUPPORT_WORKLOAD_H_
