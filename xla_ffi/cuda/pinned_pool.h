// Host memory that a GPU copies from and to by itself.
#ifndef XLA_FFI_CUDA_PINNED_POOL_H_
#define XLA_FFI_CUDA_PINNED_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/driver.h"

namespace passing {

// A block of pinned memory, with the events of the sum that has it: making an event takes longer than recording one.
struct PinnedBlock {
  // Memory is copied in pieces, so that each can be used while the next one is on its way. At 50 GB/s one takes 40 us.
  // With smaller ones the GPU might wait for the host, which takes some microseconds to enqueue a copy.
  static constexpr size_t kPieceBytes = 2 << 20;

  void* memory = nullptr;
  size_t bytes = 0;
  // The events of one GPU that uses the block. The last two are pairs: this sum's, at index `turn`, and the previous
  // sum's.
  struct Events {
    CUevent given = nullptr;       // recorded when the arrays that are copied here are ready
    std::vector<CUevent> there;    // recorded behind the copies to each piece
    CUevent copied_there[2] = {};  // recorded behind all these copies: until then the GPU may write to the block
    CUevent copied_back[2] = {};   // recorded behind all copies from the block
  };
  std::vector<Events> gpus;
  size_t turn = 0;
  std::atomic<bool> used = false;  // some GPU's copies wait for those of the sum before
};

// Pinning memory takes milliseconds, so blocks are kept and used again. Before one is pinned, idle ones that aren't
// reserved go, until all are no more bytes than were in use at once, or are reserved if that is more.
//
// Pinning may also wait until GPUs are idle, and a GPU may run one of NCCL's kernels until another GPU runs its own,
// which may need this thread to return. So memory whose need is known before anything runs should be reserved then.
// Driver calls run without the lock, so a thread that needs only an idle block never waits for them.
//
// A block is given out again while GPUs may still use it. A caller that copies to it makes its stream wait for all
// events of the previous sum, and sets `used`: so waiting for one sum is waiting for all before it.
class PinnedPool {
 public:
  // `contexts`: one for each GPU. Null stands for the caller's current context in Acquire, Reserve, ReleaseIdle and the
  // destructor. Without null, these leave another context current.
  explicit PinnedPool(const CudaDriver& driver, std::vector<CUcontext> contexts = {nullptr})
      : driver_(driver), contexts_(std::move(contexts)) {}
  ~PinnedPool();  // all blocks are back
  PinnedPool(const PinnedPool&) = delete;

  // Returns a block of at least `bytes` bytes. It goes back to the pool when its last owner drops it, on any thread.
  // Waits up to a second for a block that was reserved and is in use. Throws CudaError.
  std::shared_ptr<PinnedBlock> Acquire(size_t bytes);
  // Pins the blocks of these sizes that may be in use at once, as far as they are missing. The pool keeps, for
  // each size, as many blocks as were ever reserved at once, unless memory suffices only for these. If it doesn't
  // suffice even for these, those that could be pinned are idle, and nothing is reserved. Throws CudaError.
  void Reserve(const std::vector<size_t>& bytes);
  void ReleaseIdle();

  size_t pinned_bytes() const;
  size_t bytes_in_use() const;

  // Returns the size of a block for `bytes`: a multiple of a quarter of a power of two, so that few sizes serve all
  // sums.
  static size_t SizeClass(size_t bytes);

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Counts = std::map<size_t, size_t>;  // number of blocks, by size

  void Return(PinnedBlock* block);
  // Frees idle blocks, the one that has been idle the longest first, until at most `most_bytes` are pinned. Leaves
  // `kept`.
  void Shrink(Lock& lock, const Counts& kept, size_t most_bytes);
  // Shrinks likewise until the new block and all others are at most `most_bytes`, and pins the new one.
  std::unique_ptr<PinnedBlock> Pin(Lock& lock, size_t bytes, const Counts& kept, size_t most_bytes);
  void PinMissing(Lock& lock, const Counts& needed);

  // These call the driver, without the lock.
  std::unique_ptr<PinnedBlock> Make(size_t bytes);
  void Free(PinnedBlock& block);  // waits for the GPU
  void DestroyEvents(PinnedBlock& block);

  // Makes the context current, unless it is null.
  CUresult Enter(CUcontext context) const;

  const CudaDriver& driver_;
  const std::vector<CUcontext> contexts_;
  std::mutex reserving_;      // one at a time
  mutable std::mutex mutex_;  // guards all members below
  std::condition_variable returned_;
  std::deque<std::unique_ptr<PinnedBlock>> idle_;  // the one that has been idle the longest first
  Counts counts_;                                  // all pinned blocks
  Counts reserved_;
  size_t freeing_count_ = 0;  // threads that free blocks, which aren't counted any more
  size_t pinned_bytes_ = 0;
  size_t bytes_in_use_ = 0;
  size_t most_in_use_ = 0;
};

}  // namespace passing

#endif  // XLA_FFI_CUDA_PINNED_POOL_H_
