// How sums of arrays on a GPU get to the host and back.
//
// A sum is two calls of XLA's: `Start` has the arrays copied to pinned memory behind what XLA enqueued before, and
// `Take` finds the sum again, for `CopyBack`. In between XLA enqueues other work (docs/internals/accelerators.md).
//
// Both ways go in pieces, so that the sum begins with the first one, and its results go back while it goes on. Bytes
// are counted from the first leaf's start on, the leaves end to end; a piece takes no notice of where they end.
#ifndef XLA_FFI_CUDA_STAGING_H_
#define XLA_FFI_CUDA_STAGING_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cuda/driver.h"
#include "cuda/pinned_pool.h"
#include "host/sums/sum.h"

namespace passing {

struct DeviceArray {
  CUdeviceptr address = 0;
  size_t bytes = 0;

  friend bool operator==(const DeviceArray&, const DeviceArray&) = default;
};

// Where a GPU puts its shard of the host's elements: into a block that it shares with others.
struct PlaceInBlock {
  std::shared_ptr<PinnedBlock> block;
  size_t gpu = 0;  // which of the block's `gpus` it is
  size_t offset = 0;
};

// One GPU's part in one sum. It must be gone before its Staging.
class StagedSum {
 public:
  const std::vector<DeviceArray>& leaves() const { return leaves_; }
  // The leaves in pinned memory; their sums are to be written over them.
  const std::vector<void*>& memory() const { return memory_; }
  // In pinned memory, where each leaf is aligned.
  static size_t BlockBytes(const std::vector<size_t>& leaf_bytes);

  // Blocks until more than `bytes` are in `memory`; returns how many. From any thread that may keep the GPU's context.
  // Throws CudaError.
  size_t AwaitMore(size_t bytes);

  // So many bytes hold their sums. From any thread.
  void OnWritten(size_t bytes);
  // All do, or there is a failure. Exactly once, from any thread.
  void Complete(const Failure* failure);

  // Enqueues that the sums are copied over the leaves, as they come. Blocks until all of it is enqueued, or there is a
  // failure, which it returns: the sum's own, or one of `session_failure`, which is asked from time to time, as the sum
  // may still wait for a GPU that never comes to an end. Throws CudaError.
  std::optional<Failure> CopyBack(CUstream stream, const std::function<std::optional<Failure>()>& session_failure);

 private:
  friend class Staging;
  StagedSum(const CudaDriver& driver, CUcontext context, std::weak_ptr<const void> site, int32_t run_id,
            std::vector<DeviceArray> leaves);

  void Use(const PlaceInBlock& place);
  // Enqueues all copies to it.
  void CopyToHost(CUstream copies);
  // Calls f(address, memory, bytes) for what of each leaf lies between these bytes, until it returns an error.
  template <typename F>
  CUresult ForEachRun(size_t begin, size_t end, F&& f) const;

  const CudaDriver& driver_;
  const CUcontext context_;
  const std::weak_ptr<const void> site_;
  const int32_t run_id_;
  const std::vector<DeviceArray> leaves_;
  std::vector<size_t> ends_;  // of the leaves, in bytes
  std::vector<void*> memory_;
  std::shared_ptr<PinnedBlock> block_;           // all of `memory_`
  const PinnedBlock::Events* events_ = nullptr;  // this GPU's

  std::mutex mutex_;
  std::condition_variable changed_;
  size_t enqueued_bytes_ = 0;   // for copies to the host
  CUresult enqueue_error_ = 0;  // why not all of them
  size_t written_bytes_ = 0;    // whole pieces, or all
  bool complete_ = false;
  std::optional<Failure> failure_;
};

// Of one GPU.
class Staging {
 public:
  // The caller's context stays. Throws CudaError.
  Staging(const CudaDriver& driver, int ordinal);
  ~Staging();
  Staging(const Staging&) = delete;

  // Takes a few microseconds, however many leaves there are, if the pool has a block: a thread of its own enqueues the
  // copies, and what becomes of that `AwaitMore` and `CopyBack` say. The leaves are there when `stream` comes to this
  // point; nobody writes to them until `CopyBack`, or ever. `token` is an address that no other sum under way has;
  // `site`, whose calls come one after the other, is where the program sums. Sums that were left by executions that
  // broke off unnoticed are forgotten: those of the same token, of the same site, and of sites that are gone. `place`:
  // of the only leaf; without it the leaves get a block of their own. Throws CudaError.
  std::shared_ptr<StagedSum> Start(CUstream stream, const std::shared_ptr<const void>& site, int32_t run_id,
                                   CUdeviceptr token, std::vector<DeviceArray> leaves,
                                   const std::optional<PlaceInBlock>& place = std::nullopt);
  // The sum that was started with this token, once; null if there is none.
  std::shared_ptr<StagedSum> Take(CUdeviceptr token);
  // Those of an execution that breaks off, as nobody will take them.
  void Forget(int32_t run_id);
  // Enqueues that an int32 is written. Throws CudaError.
  void Write(CUstream stream, CUdeviceptr address, int value);

  // Memory for sums, as PinnedPool does. From any thread, whose context stays. Throws CudaError.
  void Reserve(const std::vector<size_t>& bytes);
  // Gives pinned memory that no sum uses back to the system. From any thread, whose context stays.
  void ReleaseIdle();

  size_t pending_count() const;
  CUcontext context() const { return context_; }
  const PinnedPool& pool() const { return pool_; }

 private:
  void Copy();  // the thread

  const CudaDriver& driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;  // the device's primary one, which XLA uses, too
  CUstream copies_ = nullptr;    // from the device, beside XLA's stream
  PinnedPool pool_;
  mutable std::mutex mutex_;                                             // of all below
  std::unordered_map<CUdeviceptr, std::shared_ptr<StagedSum>> pending_;  // by token
  std::deque<std::shared_ptr<StagedSum>> to_copy_;                       // in the order of XLA's calls
  std::condition_variable wake_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace passing

#endif  // XLA_FFI_CUDA_STAGING_H_
