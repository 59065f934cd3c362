// Copies the arrays of sums from a GPU to the host and back.
//
// XLA makes two calls for a sum: `Start` has the arrays copied to pinned memory, behind the work that XLA enqueued
// before, and `Take` finds the sum again, for `CopyBack`. In between XLA enqueues other work.
// docs/internals/accelerators.md gives the reasons.
//
// Arrays are copied in pieces both ways, so that the sum begins with the first piece, and results go back while it goes
// on. Bytes are counted over the leaves end to end; a piece may span several leaves.
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

// A GPU's slice of the host's elements, in a block that it shares with other GPUs.
struct SliceInBlock {
  std::shared_ptr<PinnedBlock> block;
  size_t gpu = 0;  // its index in the block's `gpus`
  size_t offset = 0;
};

// One GPU's part in one sum. It must be gone before its Staging.
class StagedSum {
 public:
  const std::vector<DeviceArray>& leaves() const { return leaves_; }
  // The leaves in pinned memory; their sums are to be written over them.
  const std::vector<void*>& memory() const { return memory_; }
  // The bytes of pinned memory that these leaves take, each of them aligned.
  static size_t BlockBytes(const std::vector<size_t>& leaf_bytes);

  // Waits until more than `bytes` bytes are in `memory`; returns how many are. The thread may be left in the GPU's
  // context. Throws CudaError.
  size_t AwaitMore(size_t bytes);

  // Tells that the first `bytes` bytes hold their sums. May be called from any thread.
  void OnWritten(size_t bytes);
  // Tells that all bytes do, or that there is a failure. Called exactly once, from any thread.
  void Complete(const Failure* failure);

  // Enqueues copies of the sums over the leaves, as the sums come. Returns when all copies are enqueued, or with a
  // failure: the sum's own, or one that `session_failure` returns. That is called from time to time, because the sum
  // may wait for a GPU that never finishes. Throws CudaError.
  std::optional<Failure> CopyBack(CUstream stream, const std::function<std::optional<Failure>()>& session_failure);

 private:
  friend class Staging;
  StagedSum(const CudaDriver& driver, CUcontext context, std::weak_ptr<const void> site, int32_t run_id,
            std::vector<DeviceArray> leaves);

  void Use(const SliceInBlock& slice);
  // Enqueues all copies to the block.
  void CopyToHost(CUstream copies);
  // Calls f(address, memory, bytes) for the part of each leaf between these bytes, until it returns an error.
  template <typename F>
  CUresult ForEachRun(size_t begin, size_t end, F&& f) const;

  const CudaDriver& driver_;
  const CUcontext context_;
  const std::weak_ptr<const void> site_;
  const int32_t run_id_;
  const std::vector<DeviceArray> leaves_;
  std::vector<size_t> ends_;  // in bytes, one for each leaf
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

// Stages the sums of one GPU.
class Staging {
 public:
  // The caller's context stays. Throws CudaError.
  Staging(const CudaDriver& driver, int ordinal);
  ~Staging();
  Staging(const Staging&) = delete;

  // Starts a sum. This takes a few microseconds, however many leaves there are, if the pool has a block: a thread
  // enqueues the copies, and `AwaitMore` and `CopyBack` report its errors. The leaves are ready once `stream` reaches
  // this point, and must not be written until `CopyBack` (if it is called). `token` is an address that no other sum
  // under way has. `site` is the sum in the program; its calls come one after the other. Sums of executions that broke
  // off unnoticed are forgotten: those of the same token, of the same site, and of sites that are gone. `slice` holds
  // the only leaf; without it the leaves get a block of their own. Throws CudaError.
  std::shared_ptr<StagedSum> Start(CUstream stream, const std::shared_ptr<const void>& site, int32_t run_id,
                                   CUdeviceptr token, std::vector<DeviceArray> leaves,
                                   const std::optional<SliceInBlock>& slice = std::nullopt);
  // The sum that was started with this token, once; null if there is none.
  std::shared_ptr<StagedSum> Take(CUdeviceptr token);
  // Forgets the sums of an execution that breaks off, because nobody will take them.
  void Forget(int32_t run_id);
  // Enqueues the write of an int32. Throws CudaError.
  void Write(CUstream stream, CUdeviceptr address, int value);

  // Reserves memory for sums; see PinnedPool. May be called from any thread, whose context stays. Throws CudaError.
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
  mutable std::mutex mutex_;                                             // guards all members below
  std::unordered_map<CUdeviceptr, std::shared_ptr<StagedSum>> pending_;  // by token
  std::deque<std::shared_ptr<StagedSum>> to_copy_;                       // in the order of XLA's calls
  std::condition_variable wake_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace passing

#endif  // XLA_FFI_CUDA_STAGING_H_
