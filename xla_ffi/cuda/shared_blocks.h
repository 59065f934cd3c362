// Pinned memory in which the GPUs of a host put their slices of one sum side by side.
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
  // `contexts`: one for each GPU, in the order of `PinnedBlock::gpus`.
  SharedBlocks(const CudaDriver& driver, std::vector<CUcontext> contexts) : driver_(driver), pool_(driver, contexts) {}

  // Returns the block, of at least `bytes`, for the sum that this slice is part of: the same block for all
  // `slice_count` slices that come to a site in one execution. The block of an execution that broke off is forgotten
  // when another execution comes to the site. The second caller waits until the first has a block, but for no other
  // site's. May be called from any thread, whose context stays. Throws CudaError.
  std::shared_ptr<PinnedBlock> BlockFor(const std::shared_ptr<const void>& site, int32_t run_id, size_t slice,
                                        size_t slice_count, size_t bytes);
  // See PinnedPool. May be called from any thread, whose context stays. Throws CudaError.
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
    std::vector<bool> taken;           // by slice
  };

  std::shared_ptr<Last> LastOf(const std::shared_ptr<const void>& site);

  const CudaDriver& driver_;
  PinnedPool pool_;
  std::mutex mutex_;
  std::map<std::weak_ptr<const void>, std::shared_ptr<Last>, std::owner_less<>> last_;  // by site
};

}  // namespace passing

#endif  // XLA_FFI_CUDA_SHARED_BLOCKS_H_
