// Programs of random sums for a Cluster, and what every host must get.
#ifndef TESTS_XLA_FFI_HOST_WORKLOAD_H_
#define TESTS_XLA_FFI_HOST_WORKLOAD_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../tests/xla_ffi/host/cluster.h"
#include "host/element_classes.h"
#include "host/fixed_point.h"
#include "wire/lanes.h"

namespace passing {

using Bytes = std::vector<uint8_t>;

// One site of a program, and the buffers of one call of it on one host.
struct Site {
  uint64_t id;
  std::shared_ptr<const SumShape> shape;
};
struct Call {
  std::vector<Bytes> buffers;  // device-major; results overwrite the input
  bool done = false;
  int64_t done_us = 0;
  std::optional<Failure> failure;
};

inline Bytes RandomLeaf(const SumShape& shape, uint64_t elements, FakeNetwork& network, double special) {
  Bytes bytes(elements * SizeOf(shape.dtype));
  auto& random = network.random();
  for (uint64_t i = 0; i < elements; ++i) {
    uint8_t* at = &bytes[i * SizeOf(shape.dtype)];
    const double scale = std::ldexp(1.0, static_cast<int>(network.Below(20)) - 10);
    double value = std::normal_distribution<>(0, scale)(random);
    if (network.Chance(special)) {
      constexpr double kInf = std::numeric_limits<double>::infinity();
      const double specials[] = {kInf, -kInf, std::numeric_limits<double>::quiet_NaN()};
      value = specials[network.Below(3)];
    }
    if (shape.dtype == DType::kFloat32) {
      const float f = static_cast<float>(value);
      std::memcpy(at, &f, 4);
    } else if (shape.dtype == DType::kFloat64) {
      std::memcpy(at, &value, 8);
    } else if (shape.dtype == DType::kBFloat16) {
      const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16;
      std::memcpy(at, &bits, 2);
    } else {
      const uint64_t bits = random();
      std::memcpy(at, &bits, SizeOf(shape.dtype));
    }
  }
  return bytes;
}

inline Bytes MaximaOf(const SumShape& shape, const std::vector<Call>& hosts, size_t leaf) {
  std::vector<int32_t> maxima(shape.leaf_elements[leaf], std::numeric_limits<int32_t>::min());
  for (const Call& host : hosts) {
    for (uint32_t device = 0; device < shape.device_count; ++device) {
      const Bytes& buffer = host.buffers[device * shape.leaf_elements.size() + leaf];
      for (size_t i = 0; i < maxima.size(); ++i) {
        int32_t element;
        std::memcpy(&element, &buffer[4 * i], 4);
        maxima[i] = std::max(maxima[i], element);
      }
    }
  }
  Bytes bytes(4 * maxima.size());
  std::memcpy(bytes.data(), maxima.data(), bytes.size());
  return bytes;
}

// What every host must get, from the inputs alone: leaf by leaf and block by block, without a protocol.
inline std::vector<Bytes> Reference(const SumShape& shape, const std::vector<Call>& hosts) {
  const auto world_size = static_cast<uint32_t>(hosts.size());
  const uint32_t headroom = HeadroomBits(world_size);
  std::vector<Bytes> leaves;
  for (size_t leaf = 0; leaf < shape.leaf_elements.size(); ++leaf) {
    const uint64_t elements = shape.leaf_elements[leaf];
    if (shape.op == Op::kMax) {
      leaves.push_back(MaximaOf(shape, hosts, leaf));
      continue;
    }
    Bytes out(elements * SizeOf(shape.dtype));
    for (uint64_t first = 0; first < elements; first += kBlockElements) {
      const size_t count = std::min<uint64_t>(kBlockElements, elements - first);
      const auto inputs = [&](const Call& host) {
        std::vector<const void*> pointers;
        for (uint32_t device = 0; device < shape.device_count; ++device) {
          const Bytes& buffer = host.buffers[device * shape.leaf_elements.size() + leaf];
          pointers.push_back(buffer.data() + first * SizeOf(shape.dtype));
        }
        return pointers;
      };
      int32_t exponent = kNoExponent;
      for (const Call& host : hosts) {
        if (!IsFloat(shape.dtype)) break;
        exponent = std::max(exponent, BlockExponent(shape.dtype, inputs(host), count));
      }
      const size_t lane_count = LaneCount(shape.dtype, count, headroom);
      std::vector<uint32_t> lanes(lane_count);
      std::vector<uint32_t> classes(count);
      uint8_t flags = 0;
      for (const Call& host : hosts) {
        Bytes encoded(4 * lane_count);
        flags |= EncodeLanes(shape.dtype, inputs(host), count, exponent, headroom, encoded.data());
        for (size_t i = 0; i < lane_count; ++i) lanes[i] += wire::LoadLane(encoded.data(), i);
        if (!IsFloat(shape.dtype)) continue;
        std::vector<uint32_t> own(count);
        ClassifyElements(shape.dtype, inputs(host), count, own.data());
        for (size_t i = 0; i < count; ++i) classes[i] += own[i];
      }
      Bytes summed(4 * lane_count);
      for (size_t i = 0; i < lane_count; ++i) wire::StoreLane(summed.data(), i, lanes[i]);
      void* output = out.data() + first * SizeOf(shape.dtype);
      DecodeLanes(shape.dtype, summed.data(), count, exponent, headroom, {&output, 1});
      if (flags != 0) ApplyClasses(shape.dtype, classes, {&output, 1});
    }
    leaves.push_back(std::move(out));
  }
  return leaves;
}

class Workload {
 public:
  Workload(Cluster& cluster, uint32_t world_size) : cluster_(cluster), world_size_(world_size) {}

  void AddSite(DType dtype, std::vector<uint64_t> leaves, uint32_t device_count, Op op = Op::kSum) {
    const uint64_t id = 0x9E3779B97F4A7C15 * (sites_.size() + 1);
    sites_.push_back({id, std::make_shared<SumShape>(SumShape{.site_name = "site " + std::to_string(sites_.size()),
                                                              .dtype = dtype,
                                                              .leaf_elements = std::move(leaves),
                                                              .device_count = device_count,
                                                              .op = op})});
    executions_.push_back(0);
  }
  size_t site_count() const { return sites_.size(); }

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
        for (uint32_t device = 0; device < sites_[site].shape->device_count; ++device) {
          for (uint64_t elements : sites_[site].shape->leaf_elements) {
            host.buffers.push_back(RandomLeaf(*sites_[site].shape, elements, cluster_.network(), special));
            for (uint64_t i = 0; value && i < elements; ++i) std::memcpy(&host.buffers.back()[4 * i], &*value, 4);
          }
        }
      }
      references_[{site, execution}] = Reference(*sites_[site].shape, hosts);
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
            .shape = sites_[site].shape,
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
    cluster_.rank(rank).Start(std::move(sum), cluster_.network().now_us());
  }

  Cluster& cluster_;
  const uint32_t world_size_;
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
            std::to_string(stall->key.execution) + (stall->waits_for_order ? " waits for its place" : "") + ", slot " +
            std::to_string(stall->slot) + " version " + std::to_string(stall->version) + " sequence " +
            std::to_string(stall->sequence) + " job is at " + stall->job_is_at + "\n";
  }
  return text;
}

}  // namespace passing

#endif  // TESTS_XLA_FFI_HOST_WORKLOAD_H_
