#include "cuda/shared_blocks.h"

namespace passing {

std::shared_ptr<SharedBlocks::Last> SharedBlocks::LastOf(const std::shared_ptr<const void>& site) {
  std::lock_guard lock(mutex_);
  if (const auto found = last_.find(site); found != last_.end()) return found->second;
  std::erase_if(last_, [](const auto& entry) { return entry.first.expired(); });
  return last_[site] = std::make_shared<Last>();
}

std::shared_ptr<PinnedBlock> SharedBlocks::BlockFor(const std::shared_ptr<const void>& site, int32_t run_id,
                                                    size_t slice, size_t slice_count, size_t bytes) {
  const auto last = LastOf(site);
  std::lock_guard lock(last->mutex);
  auto block = last->block.lock();
  if (!block || last->run_id != run_id || last->taken[slice]) {
    const ContextKept kept(driver_);
    block.reset();  // the execution broke off: the pool may have the block back
    block = pool_.Acquire(bytes);
    last->run_id = run_id;
    last->block = block;
    last->taken.assign(slice_count, false);
  }
  last->taken[slice] = true;
  return block;
}

void SharedBlocks::Reserve(const std::vector<size_t>& bytes) {
  const ContextKept kept(driver_);
  pool_.Reserve(bytes);
}

void SharedBlocks::ReleaseIdle() {
  const ContextKept kept(driver_);
  pool_.ReleaseIdle();
}

}  // namespace passing
