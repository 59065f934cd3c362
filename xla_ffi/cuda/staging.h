// How sums of arrays on a GPU get to the host and back.
//
// A sum is two calls of XLA's: `Start` begins to copy the arrays to pinned memory behind what XLA enqueued before, and
// `Take` finds the sum again, for `CopyBack`. In between XLA enqueues other work. docs/gpus.md says why it is
// so.
#ifndef XLA_FFI_CUDA_STAGING_H_
#define XLA_FFI_CUDA_STAGING_H_

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cuda/driver.h"
#include "cuda/pinned_pool.h"
#include "host/sum.h"

namespace passing {

struct DeviceArray {
  CUdeviceptr address = 0;
  size_t bytes = 0;

  friend bool operator==(const DeviceArray&, const DeviceArray&) = default;
};

// Where a GPU puts its shard of the host's elements: into a block that it shares with others.
struct PlaceInBlock {
  std::shared_ptr<PinnedBlock> block;
  size_t gpu = 0;  // which of the block's `last_uses` is this GPU's
  size_t offset = 0;
};

// One GPU's part in one sum. It must be gone before its Staging.
class StagedSum {
 public:
  const std::vector<DeviceArray>& leaves() const { return leaves_; }
  // The leaves in pinned memory; their sums are to be written over them.
  const std::vector<void*>& memory() const { return memory_; }

  // Blocks until the leaves are in `memory`. From any thread that may keep the GPU's context. Throws CudaError.
  void AwaitLeaves() const;

  // The sums are in `memory`, or there is a failure. Exactly once, from any thread.
  void Complete(const Failure* failure);
  // Blocks until that, or until `session_failure`, which is asked from time to time, has one: the sum may still wait
  // for a GPU that never comes to an end. Returns the failure.
  std::optional<Failure> Await(const std::function<std::optional<Failure>()>& session_failure);

  // Enqueues that the sums are copied over the leaves. Throws CudaError.
  void CopyBack(CUstream stream) const;

 private:
  friend class Staging;
  StagedSum(const CudaDriver& driver, CUcontext context, std::weak_ptr<const void> site,
            std::vector<DeviceArray> leaves)
      : driver_(driver), context_(context), site_(std::move(site)), leaves_(std::move(leaves)) {}

  const CudaDriver& driver_;
  const CUcontext context_;
  const std::weak_ptr<const void> site_;
  const std::vector<DeviceArray> leaves_;
  std::vector<void*> memory_;
  std::shared_ptr<PinnedBlock> block_;  // all of `memory_`
  CUevent last_use_ = nullptr;          // this GPU's, of the block

  std::mutex mutex_;
  std::condition_variable completed_;
  bool complete_ = false;
  std::optional<Failure> failure_;
};

// Of one GPU.
class Staging {
 public:
  // Throws CudaError.
  Staging(const CudaDriver& driver, int ordinal);
  ~Staging();
  Staging(const Staging&) = delete;

  // The leaves are there when `stream` comes to this point; nobody writes to them until `CopyBack`, or ever. `token` is
  // an address that no other sum under way has; `site`, whose calls come one after the other, is where the program
  // sums. Sums that were left by executions that broke off are forgotten: those of the same token, of the same site,
  // and of sites that are gone. `place`: of the only leaf; without it the leaves get a block of their own. Throws
  // CudaError.
  std::shared_ptr<StagedSum> Start(CUstream stream, const std::shared_ptr<const void>& site, CUdeviceptr token,
                                   std::vector<DeviceArray> leaves,
                                   const std::optional<PlaceInBlock>& place = std::nullopt);
  // The sum that was started with this token, once; null if there is none.
  std::shared_ptr<StagedSum> Take(CUdeviceptr token);
  // Enqueues that an int32 is written. Throws CudaError.
  void Write(CUstream stream, CUdeviceptr address, int value);

  // Gives pinned memory that no sum uses back to the system. From any thread.
  void ReleaseIdle();

  size_t pending_count() const;
  CUcontext context() const { return context_; }
  const PinnedPool& pool() const { return pool_; }

 private:
  const CudaDriver& driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;  // the device's primary one, which XLA uses, too
  CUstream copies_ = nullptr;    // from the device, beside XLA's stream
  CUevent leaves_ = nullptr;     // where XLA's stream has those of the sum that starts
  PinnedPool pool_;
  mutable std::mutex mutex_;  // one sum at a time: copies are in the order of XLA's calls
  std::unordered_map<CUdeviceptr, std::shared_ptr<StagedSum>> pending_;  // by token
};

}  // namespace passing

#endif  // XLA_FFI_CUDA_STAGING_H_
