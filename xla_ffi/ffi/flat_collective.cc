#include "ffi/flat_collective.h"

#include <cassert>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

namespace passing {
namespace {

// The ranks of one sum share this.
struct Pending {
  std::mutex mutex;
  size_t rank_count;
  std::optional<Failure> failure;  // the first
  std::function<void(const Failure*)> done;

  void Finish(const Failure* one_failed) {
    {
      std::lock_guard lock(mutex);
      if (one_failed && !failure) failure = *one_failed;
      if (--rank_count > 0) return;
    }
    done(failure ? &*failure : nullptr);
  }
};

}  // namespace

FlatCollective::FlatCollective(std::vector<std::shared_ptr<Collective>> ranks) : ranks_(std::move(ranks)) {
  assert(!ranks_.empty());
}

void FlatCollective::Start(Sum sum) {
  assert(sum.device_count() == ranks_.size() && sum.rows.empty());
  auto pending = std::make_shared<Pending>();
  pending->rank_count = ranks_.size();
  pending->done = std::move(sum.done);
  const auto leaf_count = static_cast<std::ptrdiff_t>(sum.spec->leaf_elements.size());
  auto pieces = std::move(sum.pieces);
  if (pieces) pieces->written = nullptr;  // each rank has the results of one device
  for (size_t device = 0; device < ranks_.size(); ++device) {
    const auto first = static_cast<std::ptrdiff_t>(device) * leaf_count;
    std::vector<void*> residuals;
    if (!sum.residuals.empty()) {
      residuals.assign(sum.residuals.begin() + first, sum.residuals.begin() + first + leaf_count);
    }
    ranks_[device]->Start({.key = sum.key,
                           .spec = sum.spec,
                           .inputs = {sum.inputs.begin() + first, sum.inputs.begin() + first + leaf_count},
                           .outputs = {sum.outputs.begin() + first, sum.outputs.begin() + first + leaf_count},
                           .residuals = std::move(residuals),
                           .done = [pending](const Failure* failure) { pending->Finish(failure); },
                           .pieces = pieces});
  }
}

void FlatCollective::Ready(const SumKey& key, uint64_t elements) {
  for (const auto& rank : ranks_) rank->Ready(key, elements);
}

void FlatCollective::Fail(const Failure& failure) {
  for (const auto& rank : ranks_) rank->Fail(failure);
}

}  // namespace passing
