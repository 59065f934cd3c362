#include "ffi/local_collective.h"

#include <cassert>
#include <span>
#include <vector>

#include "host/host_elements.h"

namespace passing {

void LocalCollective::Start(Sum sum) {
  {
    std::unique_lock lock(mutex_);
    ++stats_.sums_started;
    if (failure_) {
      const Failure failure = *failure_;
      lock.unlock();
      sum.done(&failure);
      return;
    }
  }
  const SumShape& shape = *sum.shape;
  assert(shape.op == Op::kSum || shape.dtype == DType::kInt32);
  const size_t leaf_count = shape.leaf_elements.size();
  std::vector<const void*> inputs(shape.device_count);
  std::vector<void*> outputs(shape.device_count);
  for (size_t leaf = 0; leaf < leaf_count; ++leaf) {
    for (uint32_t device = 0; device < shape.device_count; ++device) {
      inputs[device] = sum.inputs[device * leaf_count + leaf];
      outputs[device] = sum.outputs[device * leaf_count + leaf];
    }
    if (shape.op == Op::kMax) {
      MaxLocal(inputs, shape.leaf_elements[leaf], outputs);
    } else {
      SumLocal(shape.dtype, inputs, shape.leaf_elements[leaf], outputs);
    }
  }
  {
    std::lock_guard lock(mutex_);
    ++stats_.sums_completed;
    stats_.tensor_bytes += shape.bytes();
  }
  sum.done(nullptr);
}

void LocalCollective::Fail(const Failure& failure) {
  std::lock_guard lock(mutex_);
  if (!failure_) failure_ = failure;
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
