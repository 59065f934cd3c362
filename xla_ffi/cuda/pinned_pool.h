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

// With the events of the sum that has it, as making an event takes longer than recording one.
struct PinnedBlock {
  // Memory is copied in pieces, so that each can be used while the next one is on its way. At 50 GB/s one takes 40 us.
  // With smaller ones the GPU might wait for the host, which takes some microseconds to enqueue a copy.
  static constexpr size_t kPieceBytes = 2 << 20;

  void* memory = nullptr;
  size_t bytes = 0;
  // Of one GPU that uses it. Two of each of the last ones: this sum's, at `turn`, and those of the sum before.
  struct Events {
    CUevent given = nullptr;       // recorded where the arrays that are copied here are there
    std::vector<CUevent> there;    // recorded behind the copies to each piece
    CUevent copied_there[2] = {};  // recorded behind all of them: until then the GPU may be at the block
    CUevent copied_back[2] = {};   // the same for copies from it
  };
  std::vector<Events> gpus;
  size_t turn = 0;
  std::atomic<bool> used = false;  // some GPU's copies wait for those of the sum before
};

// Pinning memory takes milliseconds, so blocks are kept and used again. Before one is pinned, idle ones that aren't
// reserved go, until all are no more bytes than were in use at once, or are reserved if that is more.
//
// Pinning may also wait until GPUs are idle, and a GPU may run a kernel of NCCL's until another one does, for which
// this thread has to return. So what is known before any runs is to be reserved then. And who calls the driver holds
// nobody up who needs no more than an idle block.
//
// A block is given out again while GPUs may still be at it. Whoever copies to it has his stream wait for all that the
// sum before recorded, and says that it is `used`: so who waits for one sum waits for all before.
class PinnedPool {
 public:
  // Of the GPUs with these contexts; null is the one that is current where a member may call the driver: in Acquire,
  // Reserve, ReleaseIdle and the destructor. Without null these leave another one current.
  explicit PinnedPool(const CudaDriver& driver, std::vector<CUcontext> contexts = {nullptr})
      : driver_(driver), contexts_(std::move(contexts)) {}
  ~PinnedPool();  // all blocks are back
  PinnedPool(const PinnedPool&) = delete;

  // At least so many bytes. The pool has the block back when the last owner lets go of it, on any thread. Waits up to a
  // second for one that was reserved and is in use. Throws CudaError.
  std::shared_ptr<PinnedBlock> Acquire(size_t bytes);
  // Pins what is missing of blocks for so many bytes each, which may be in use at once. Of each size as many are kept
  // as were ever reserved at once, unless memory is so scarce that only these can be. If even these can't, what could
  // be pinned is idle, and nothing is reserved. Throws CudaError.
  void Reserve(const std::vector<size_t>& bytes);
  void ReleaseIdle();

  size_t pinned_bytes() const;
  size_t bytes_in_use() const;

  // Of a block for so many: a step of a quarter of a power of two, so that few sizes serve all sums.
  static size_t SizeClass(size_t bytes);

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Counts = std::map<size_t, size_t>;  // of blocks, by size

  void Return(PinnedBlock* block);
  // Frees idle blocks, the one that has been idle the longest first, but none that is `kept`, until no more than so
  // many bytes are pinned.
  void Shrink(Lock& lock, const Counts& kept, size_t most_bytes);
  // After idle blocks have gone like this, until the new one and all others are no more than so many bytes.
  std::unique_ptr<PinnedBlock> Pin(Lock& lock, size_t bytes, const Counts& kept, size_t most_bytes);
  void PinMissing(Lock& lock, const Counts& needed);

  // These call the driver, without the lock.
  std::unique_ptr<PinnedBlock> Make(size_t bytes);
  void Free(PinnedBlock& block);  // waits for the GPU
  void DestroyEvents(PinnedBlock& block);

  // Makes it current, unless it is null.
  CUresult Enter(CUcontext context) const;

  const CudaDriver& driver_;
  const std::vector<CUcontext> contexts_;
  std::mutex reserving_;      // one at a time
  mutable std::mutex mutex_;  // of all below
  std::condition_variable returned_;
  std::deque<std::unique_ptr<PinnedBlock>> idle_;  // the one that has been idle the longest first
  Counts counts_;                                  // of all that are pinned
  Counts reserved_;
  size_t freeing_count_ = 0;  // threads that free blocks, which aren't counted any more
  size_t pinned_bytes_ = 0;
  size_t bytes_in_use_ = 0;
  size_t most_in_use_ = 0;
};

}  // namespace passing

#endif  // XLA_FFI_CUDA_PINNED_POOL_H_
