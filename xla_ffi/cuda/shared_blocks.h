// Pinned memory in which the GPUs of a host put their shards of one sum side by side.
#ifndef XLA_FFI_CUDA_SHARED_BLOCKS_H_
#define XLA_FFI_CUDA_SHARED_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/driver.h"
#include "cuda/pinned_pool.h"

namespace passing {

class SharedBlocks {
 public:
  // Of the GPUs with these contexts, in whose order `PinnedBlock::gpus` is.
  SharedBlocks(const CudaDriver& driver, std::vector<CUcontext> contexts) : driver_(driver), pool_(driver, contexts) {}

  // The block of the sum that this shard is a part of, of at least so many bytes: the same for all `shard_count` shards
  // that come to a site in one execution. Those of an execution that broke off are forgotten when another one comes to
  // the site. Who comes second waits until the first has a block, but for no other site's. From any thread, whose
  // context stays. Throws CudaError.
  std::shared_ptr<PinnedBlock> Join(const std::shared_ptr<const void>& site, int32_t run_id, size_t shard,
                                    size_t shard_count, size_t bytes);
  // As PinnedPool does. From any thread, whose context stays. Throws CudaError.
  void Reserve(const std::vector<size_t>& bytes);
  // Gives pinned memory that no sum uses back to the system. From any thread, whose context stays.
  void ReleaseIdle();

  const PinnedPool& pool() const { return pool_; }

 private:
  // The last sum of a site.
  struct Last {
    std::mutex mutex;
    int32_t run_id = 0;
    std::weak_ptr<PinnedBlock> block;  // the parts of the sum own it
    std::vector<bool> joined;          // by shard
  };

  std::shared_ptr<Last> LastOf(const std::shared_ptr<const void>& site);

  const CudaDriver& driver_;
  PinnedPool pool_;
  std::mutex mutex_;
  std::map<std::weak_ptr<const void>, std::shared_ptr<Last>, std::owner_less<>> last_;  // by site
};

}  // namespace passing

#endif  // XLA_FFI_CUDA_SHARED_BLOCKS_H_
