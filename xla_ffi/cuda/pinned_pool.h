// Host memory that a GPU copies from and to by itself.
#ifndef XLA_FFI_CUDA_PINNED_POOL_H_
#define XLA_FFI_CUDA_PINNED_POOL_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/driver.h"

namespace passing {

struct PinnedBlock {
  void* memory = nullptr;
  size_t bytes = 0;
  // Of each GPU that uses it, recorded behind every copy that it makes from or to it: until then it may be at it.
  std::vector<CUevent> last_uses;
};

// Pinning memory takes milliseconds, so blocks are kept and used again. What is pinned at a time is no more than was in
// use at once before, or what is asked for now: idle blocks go before a new one would exceed that.
//
// A block is given out again while GPUs may still be at it. Whoever copies has his stream wait for all `last_uses`.
class PinnedPool {
 public:
  // Of the GPUs with these contexts; null is the one that is current where a member may call the driver: in Acquire,
  // ReleaseIdle and the destructor. Without null these leave another one current.
  explicit PinnedPool(const CudaDriver& driver, std::vector<CUcontext> contexts = {nullptr})
      : driver_(driver), contexts_(std::move(contexts)) {}
  ~PinnedPool();  // all blocks are back
  PinnedPool(const PinnedPool&) = delete;

  // At least so many bytes. The pool has the block back when the last owner lets go of it, on any thread. Throws
  // CudaError.
  std::shared_ptr<PinnedBlock> Acquire(size_t bytes);
  void ReleaseIdle();

  size_t pinned_bytes() const;
  size_t bytes_in_use() const;

  // Of a block for so many: a step of a quarter of a power of two, so that few sizes serve all sums.
  static size_t SizeClass(size_t bytes);

 private:
  void Return(PinnedBlock* block);
  std::unique_ptr<PinnedBlock> Make(size_t bytes);
  void Free(std::unique_ptr<PinnedBlock> block);  // waits for the GPU

  // Makes it current, unless it is null.
  CUresult Enter(CUcontext context) const;

  const CudaDriver& driver_;
  const std::vector<CUcontext> contexts_;
  mutable std::mutex mutex_;
  std::deque<std::unique_ptr<PinnedBlock>> idle_;  // the one that has been idle the longest first
  size_t pinned_bytes_ = 0;
  size_t bytes_in_use_ = 0;
  size_t most_in_use_ = 0;
};

}  // namespace passing

#endif  // XLA_FFI_CUDA_PINNED_POOL_H_
