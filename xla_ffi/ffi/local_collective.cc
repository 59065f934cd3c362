#include "ffi/local_collective.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "host/numbers/host_elements.h"

namespace passing {
namespace {

// The elements of each device from the `begin`th to the `end`th.
void SumElements(const Sum& sum, uint64_t begin, uint64_t end) {
  const SumSpec& spec = *sum.spec;
  assert(spec.op == Op::kSum || spec.dtype == DType::kInt32);
  const size_t leaf_count = spec.leaf_elements.size();
  std::vector<const void*> inputs(sum.device_count());
  std::vector<void*> outputs(sum.device_count());
  uint64_t leaf_begin = 0;
  for (size_t leaf = 0; leaf < leaf_count; leaf_begin += spec.leaf_elements[leaf++]) {
    const uint64_t first = std::max(begin, leaf_begin);
    const uint64_t last = std::min(end, leaf_begin + spec.leaf_elements[leaf]);
    if (first >= last) continue;
    const uint64_t offset = (first - leaf_begin) * SizeOf(spec.dtype);
    for (size_t device = 0; device < inputs.size(); ++device) {
      inputs[device] = static_cast<const uint8_t*>(sum.inputs[device * leaf_count + leaf]) + offset;
      outputs[device] = static_cast<uint8_t*>(sum.outputs[device * leaf_count + leaf]) + offset;
    }
    if (spec.op == Op::kMax) {
      MaxLocal(inputs, last - first, outputs);
    } else {
      SumLocal(spec.dtype, inputs, last - first, outputs);
    }
    for (size_t device = 0; !sum.residuals.empty() && device < inputs.size(); ++device) {
      auto* residuals = static_cast<uint8_t*>(sum.residuals[device * leaf_count + leaf]) + offset;
      std::memset(residuals, 0, (last - first) * SizeOf(spec.dtype));  // nothing is sent, so nothing is lost
    }
  }
}

// All devices' rows go to each. Rows of other hosts, as in a rehearsal, are zeros.
void GatherRows(const Sum& sum, size_t leaf) {
  const size_t leaf_count = sum.spec->leaf_elements.size(), size = SizeOf(sum.spec->dtype);
  const uint64_t row_bytes = sum.row_elements(leaf) * size;
  for (size_t device = 0; device < sum.device_count(); ++device) {
    auto* const output = static_cast<uint8_t*>(sum.outputs[device * leaf_count + leaf]);
    std::memset(output, 0, sum.spec->leaf_elements[leaf] * size);
    for (size_t other = 0; other < sum.device_count(); ++other) {
      std::memcpy(output + sum.rows[other] * row_bytes, sum.inputs[other * leaf_count + leaf], row_bytes);
    }
  }
}

// Each device takes the sum of its own rows.
void ScatterRows(const Sum& sum, size_t leaf) {
  const size_t leaf_count = sum.spec->leaf_elements.size();
  const uint64_t row_elements = sum.row_elements(leaf), row_bytes = row_elements * SizeOf(sum.spec->dtype);
  std::vector<const void*> inputs(sum.device_count());
  for (size_t device = 0; device < sum.device_count(); ++device) {
    for (size_t other = 0; other < inputs.size(); ++other) {
      const auto* const whole = static_cast<const uint8_t*>(sum.inputs[other * leaf_count + leaf]);
      inputs[other] = whole + sum.rows[device] * row_bytes;
    }
    SumLocal(sum.spec->dtype, inputs, row_elements, {&sum.outputs[device * leaf_count + leaf], 1});
  }
}

// The sum where devices bring, or take, rows.
void SumRows(const Sum& sum) {
  const auto of_leaf = sum.spec->moves == Moves::kGather ? GatherRows : ScatterRows;
  for (size_t leaf = 0; leaf < sum.spec->leaf_elements.size(); ++leaf) of_leaf(sum, leaf);
}

}  // namespace

void LocalCollective::Start(Sum sum) {
  {
    std::lock_guard lock(mutex_);
    ++stats_.sums_started;
  }
  const uint64_t ready = sum.pieces ? sum.pieces->ready_elements : sum.spec->elements();
  GoOn(std::move(sum), 0, ready);
}

void LocalCollective::Ready(const SumKey& key, uint64_t elements) {
  std::unique_lock lock(mutex_);
  const auto found =
      std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& each) { return each.sum.key == key; });
  if (found == waiting_.end()) return;
  Waiting waiting = std::move(*found);
  waiting_.erase(found);
  lock.unlock();
  GoOn(std::move(waiting.sum), waiting.summed, elements);
}

void LocalCollective::GoOn(Sum sum, uint64_t begin, uint64_t end) {
  const uint64_t all = sum.spec->elements();
  end = std::min(end, all);
  if (!failure()) {
    if (sum.rows.empty()) {
      SumElements(sum, begin, end);
    } else {
      SumRows(sum);
    }
    if (sum.pieces && sum.pieces->written) sum.pieces->written(end);
  }
  std::optional<Failure> failed;
  {
    std::lock_guard lock(mutex_);
    failed = failure_;
    if (!failed && end < all) {
      waiting_.push_back({std::move(sum), end});
      return;
    }
    if (!failed) {
      ++stats_.sums_completed;
      stats_.tensor_bytes += sum.spec->bytes();
    }
  }
  sum.done(failed ? &*failed : nullptr);
}

void LocalCollective::Fail(const Failure& failure) {
  std::vector<Waiting> waiting;
  {
    std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = failure;
    waiting.swap(waiting_);
  }
  for (const Waiting& each : waiting) each.sum.done(&failure);
}

std::optional<Failure> LocalCollective::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

AllReduceStats LocalCollective::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace passing
