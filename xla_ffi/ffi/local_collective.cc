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

// The same where devices bring, or take, rows: all devices' rows go to each, or each takes the sum of its own. Rows of
// other hosts, as in a rehearsal, are zeros.
void SumRows(const Sum& sum) {
  const SumSpec& spec = *sum.spec;
  const size_t leaf_count = spec.leaf_elements.size(), device_count = sum.device_count();
  std::vector<const void*> inputs(device_count);
  for (size_t leaf = 0; leaf < leaf_count; ++leaf) {
    const uint64_t row_elements = spec.leaf_elements[leaf] / sum.own_rows.size();
    const uint64_t row_bytes = row_elements * SizeOf(spec.dtype);
    for (size_t device = 0; device < device_count; ++device) {
      void* const output = sum.outputs[device * leaf_count + leaf];
      if (spec.moves == Moves::kGather) std::memset(output, 0, spec.leaf_elements[leaf] * SizeOf(spec.dtype));
      for (size_t other = 0; other < device_count; ++other) {
        const void* const input = sum.inputs[other * leaf_count + leaf];
        if (spec.moves == Moves::kGather) {
          std::memcpy(static_cast<uint8_t*>(output) + sum.rows[other] * row_bytes, input, row_bytes);
        } else {
          inputs[other] = static_cast<const uint8_t*>(input) + sum.rows[device] * row_bytes;
        }
      }
      if (spec.moves == Moves::kScatter) SumLocal(spec.dtype, inputs, row_elements, {&output, 1});
    }
  }
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
