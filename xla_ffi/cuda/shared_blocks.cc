#include "cuda/shared_blocks.h"

#include <algorithm>

namespace passing {

std::shared_ptr<PinnedBlock> SharedBlocks::Join(const std::shared_ptr<const void>& site, int32_t run_id, size_t shard,
                                                size_t shard_count, size_t bytes) {
  std::lock_guard lock(mutex_);
  std::erase_if(open_, [](const Open& each) { return each.site.expired(); });
  auto open = std::find_if(open_.begin(), open_.end(), [&](const Open& each) { return each.site.lock() == site; });
  if (open == open_.end()) open = open_.insert(open_.end(), Open{.site = site});
  auto block = open->block.lock();
  if (!block || open->run_id != run_id || open->joined[shard]) {
    const ContextKept kept(driver_);
    block.reset();  // of an execution that broke off: the pool may have it back
    block = pool_.Acquire(bytes);
    open->run_id = run_id;
    open->block = block;
    open->joined.assign(shard_count, false);
    open->missing = shard_count;
  }
  open->joined[shard] = true;
  if (--open->missing == 0) open_.erase(open);
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
