// Sums of arrays on GPUs: what the handlers of the CUDA platform do, without XLA's headers.
#ifndef XLA_FFI_FFI_CUDA_SUMS_H_
#define XLA_FFI_FFI_CUDA_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "cuda/shared_blocks.h"
#include "cuda/staging.h"
#include "ffi/cuda/spec.h"
#include "ffi/cuda/starts.h"
#include "ffi/gathering/rendezvous.h"
#include "ffi/naming/instance.h"

namespace passing {

// A GPU of this process.
struct CudaDevice {
  int32_t ordinal = 0;  // XLA's and CUDA's number of it
  int64_t id = 0;       // JAX's, by which a mesh over all processes knows it
  int64_t index = 0;    // among this process's GPUs, by id
  int64_t number = 0;   // for the rendezvous: as if it were the CPU device of the same index
};

// The part of one device in the sums of a site.
struct DeviceRole {
  int64_t group = 0;
  int64_t member = 0;
  int64_t slice = 0;
};

// The roles that a CudaSpec gives to GPUs.
class DeviceRoles {
 public:
  explicit DeviceRoles(const CudaSpec& spec);
  // Null if the device isn't in the program's mesh.
  const DeviceRole* Find(const CudaDevice& device) const;

 private:
  static constexpr int64_t kAnyDevice = -1;  // of CudaSpec::gpus

  const bool by_id_;
  std::unordered_map<int64_t, DeviceRole> roles_;
};

// Sizes of the blocks of pinned memory that the sums of an executable need.
struct PinnedNeeds {
  std::vector<size_t> of_each_device;  // one for each sum to which devices bring whole leaves
  std::vector<size_t> shared;          // one for each sum to which they bring slices, and for each group of devices
};

// Where one device's call of a sum comes from.
struct CudaCall {
  int32_t run_id = 0;
  int32_t ordinal = 0;
  int64_t device = 0;  // CudaDevice::number
  int64_t member = 0;
  int64_t slice = 0;  // which one its only leaf is, where the site has slices
  CUstream stream = nullptr;
  CUdeviceptr token = 0;
  std::vector<CUdeviceptr> leaves;
};

// The driver is opened when it is first needed, and no failure of it is an exception here: it fails the session, as
// other hosts wait for the sum.
class CudaSums {
 public:
  CudaSums(Rendezvous& rendezvous, std::string library)
      : rendezvous_(rendezvous),
        starts_(std::make_shared<StagedStarts>(
            rendezvous.pool(), [&rendezvous](const Failure& failure) { rendezvous.FailSession(failure); })),
        library_(std::move(library)) {}

  // The process's; never destroyed, as XLA's threads may still call it when the process ends.
  static CudaSums& Get();

  // In place of NVIDIA's driver, before it is opened.
  void SetLibrary(std::string library);
  void SetDevices(std::vector<CudaDevice> devices);
  std::vector<CudaDevice> devices();
  // Null if jax_passing wasn't told of it.
  std::optional<CudaDevice> Device(int32_t ordinal);

  PinnedNeeds NeedsOf(const Executable& executable);
  // Before an execution on this GPU: pins what its sums need, as that may wait for other GPUs of this process, which in
  // the midst of an execution may wait for this one. What can't be pinned now `Start` tries again, and says if it can't
  // be: an error before the execution would leave the other GPUs' threads waiting in XLA for this one.
  void Reserve(const PinnedNeeds& needs, int32_t ordinal);
  // `site` has a CudaSpec. Blocks no longer than PinnedPool's Acquire. `Finish` returns the failures
  // of the sum itself, which may have come already, and of the copies.
  std::optional<Failure> Start(const std::shared_ptr<const SumSite>& site, CudaCall call);
  // Blocks until the sum that was started with this token is there, and enqueues that it is copied to the leaves, piece
  // by piece.
  std::optional<Failure> Finish(const CudaCall& call);
  // Enqueues that an int32 is written.
  std::optional<Failure> Write(int32_t ordinal, CUstream stream, CUdeviceptr address, int value);

  // Gives pinned memory that no sum uses back to the system.
  void ReleaseIdle();

 private:
  // These throw CudaError.
  Staging& StagingOf(int32_t ordinal);
  SharedBlocks& Shared();
  // The block that the slices of this sum share, and where this call's is in it.
  SliceInBlock SharedBlockOf(const std::shared_ptr<const SumSite>& site, const CudaCall& call);

  std::optional<Failure> Try(const std::function<std::optional<Failure>()>& action);
  // XLA breaks off an execution at a failure, on this GPU.
  std::optional<Failure> TryOrForget(const CudaCall& call, const std::function<std::optional<Failure>()>& action);

  Rendezvous& rendezvous_;
  const std::shared_ptr<StagedStarts> starts_;
  std::mutex mutex_;  // of all below; not held while a Staging works
  std::string library_;
  std::vector<CudaDevice> devices_;
  std::unique_ptr<CudaDriver> driver_;
  std::unique_ptr<SharedBlocks> shared_;                  // of all devices; parts of sums in a Staging have its blocks
  std::map<int32_t, std::unique_ptr<Staging>> stagings_;  // by ordinal
};

}  // namespace passing

#endif  // XLA_FFI_FFI_CUDA_SUMS_H_
