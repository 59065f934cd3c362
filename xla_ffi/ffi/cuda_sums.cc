#include "ffi/cuda_sums.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace passing {
namespace {

Failure AcceleratorFailure(const std::string& message) { return {"AcceleratorError", message}; }

// Rests on what XLA promises of buffers that a call gets in place; if that ever breaks, no sum may come of it.
Failure Moved() {
  return AcceleratorFailure(
      "a sum's arrays aren't where they were when it started, so what was sent may not be what was meant. XLA copied "
      "them in between, which this version of jax_passing doesn't expect: try the jaxlib that it was tested with, and "
      "report it");
}

// Where the leaves stand in a block, end to end.
std::vector<void*> LeavesIn(const PinnedBlock& block, const SumShape& shape) {
  std::vector<void*> leaves;
  auto* leaf = static_cast<char*>(block.memory);
  for (const uint64_t elements : shape.leaf_elements) {
    leaves.push_back(leaf);
    leaf += elements * SizeOf(shape.dtype);
  }
  return leaves;
}

}  // namespace

CudaSums& CudaSums::Get() {
  static auto& sums = *new CudaSums(Rendezvous::Get(), CudaDriver::kLibrary);
  return sums;
}

void CudaSums::SetLibrary(std::string library) {
  std::lock_guard lock(mutex_);
  library_ = std::move(library);
}

void CudaSums::SetDevices(std::vector<CudaDevice> devices) {
  std::lock_guard lock(mutex_);
  devices_ = std::move(devices);
}

std::vector<CudaDevice> CudaSums::devices() {
  std::lock_guard lock(mutex_);
  return devices_;
}

std::optional<CudaDevice> CudaSums::Device(int32_t ordinal) {
  std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(devices_.begin(), devices_.end(), [&](const CudaDevice& each) { return each.ordinal == ordinal; });
  return found == devices_.end() ? std::nullopt : std::optional(*found);
}

Staging& CudaSums::StagingOf(int32_t ordinal) {
  std::lock_guard lock(mutex_);
  if (!driver_) driver_ = std::make_unique<CudaDriver>(library_);
  auto found = stagings_.find(ordinal);
  if (found == stagings_.end()) {
    found = stagings_.emplace(ordinal, std::make_unique<Staging>(*driver_, ordinal)).first;
  }
  return *found->second;
}

SharedBlocks& CudaSums::Shared() {
  std::unique_lock lock(mutex_);
  if (shared_) return *shared_;
  lock.unlock();
  std::vector<CUcontext> contexts;
  for (const CudaDevice& device : devices()) contexts.push_back(StagingOf(device.ordinal).context());
  lock.lock();
  if (!shared_) shared_ = std::make_unique<SharedBlocks>(*driver_, std::move(contexts));
  return *shared_;
}

SliceInBlock CudaSums::PlaceOf(const std::shared_ptr<const Site>& site, const CudaCall& call) {
  const size_t bytes = site->shard_elements * SizeOf(site->shape->dtype);
  const auto shard = static_cast<size_t>(call.shard);
  auto block = Shared().BlockFor(site, call.run_id, shard, site->shard_count, site->shard_count * bytes);
  std::lock_guard lock(mutex_);
  const auto gpu =
      std::find_if(devices_.begin(), devices_.end(), [&](const auto& each) { return each.ordinal == call.ordinal; });
  return {std::move(block), static_cast<size_t>(gpu - devices_.begin()), shard * bytes};
}

std::optional<Failure> CudaSums::Try(const std::function<std::optional<Failure>()>& action) {
  std::optional<Failure> failure;
  try {
    return action();
  } catch (const CudaError& error) {
    failure = AcceleratorFailure(error.what());
  }
  rendezvous_.FailSession(*failure);
  return failure;
}

std::optional<Failure> CudaSums::TryOrForget(const CudaCall& call,
                                             const std::function<std::optional<Failure>()>& action) {
  const auto failure = Try(action);
  if (failure) {
    Try([&]() -> std::optional<Failure> {
      StagingOf(call.ordinal).Forget(call.run_id);
      return std::nullopt;
    });
  }
  return failure;
}

void CudaSums::Reserve(const Executable& executable, int32_t ordinal) {
  std::vector<size_t> blocks;
  for (const auto& leaves : executable.leaf_bytes) blocks.push_back(StagedSum::BlockBytes(leaves));
  try {
    StagingOf(ordinal).Reserve(blocks);
    if (!executable.shard_bytes.empty()) Shared().Reserve(executable.shard_bytes);
  } catch (const CudaError&) {
  }
}

std::optional<Failure> CudaSums::Start(const std::shared_ptr<const Site>& site, CudaCall call) {
  return TryOrForget(call, [&]() -> std::optional<Failure> {
    const SumShape& shape = *site->shape;
    const bool sharded = site->shard_count > 1;
    const size_t element_bytes = SizeOf(shape.dtype);
    std::vector<DeviceArray> leaves;
    for (size_t i = 0; i < call.leaves.size(); ++i) {
      const uint64_t elements = sharded ? site->shard_elements : shape.leaf_elements[i];
      leaves.push_back({call.leaves[i], elements * element_bytes});
    }
    const auto place = sharded ? std::optional(PlaceOf(site, call)) : std::nullopt;
    const auto part =
        StagingOf(call.ordinal).Start(call.stream, site, call.run_id, call.token, std::move(leaves), place);
    const auto memory = place ? LeavesIn(*place->block, shape) : part->memory();
    rendezvous_.Arrive(
        site, {.run_id = call.run_id,
               .device = call.device,
               .member = call.member,
               .inputs = {memory.begin(), memory.end()},
               .outputs = memory,
               .await_inputs = [part, element_bytes](uint64_t& elements) -> std::optional<Failure> {
                 try {
                   elements = part->AwaitMore(elements * element_bytes) / element_bytes;
                 } catch (const CudaError& error) {
                   return AcceleratorFailure(error.what());
                 }
                 return std::nullopt;
               },
               .written = [part, element_bytes](uint64_t elements) { part->OnWritten(elements * element_bytes); },
               .done = [part](const Failure* failure) { part->Complete(failure); }});
    return std::nullopt;
  });
}

std::optional<Failure> CudaSums::Finish(const CudaCall& call) {
  return TryOrForget(call, [&]() -> std::optional<Failure> {
    const auto part = StagingOf(call.ordinal).Take(call.token);
    if (!part) {
      if (const auto failure = rendezvous_.failure()) return failure;  // of another sum, for which it was forgotten
    }
    const auto is_at = [](const DeviceArray& leaf, CUdeviceptr address) { return leaf.address == address; };
    if (!part ||
        !std::equal(part->leaves().begin(), part->leaves().end(), call.leaves.begin(), call.leaves.end(), is_at)) {
      rendezvous_.FailSession(Moved());
      return Moved();
    }
    return part->CopyBack(call.stream, [this] { return rendezvous_.failure(); });
  });
}

std::optional<Failure> CudaSums::Write(int32_t ordinal, CUstream stream, CUdeviceptr address, int value) {
  return Try([&]() -> std::optional<Failure> {
    StagingOf(ordinal).Write(stream, address, value);
    return std::nullopt;
  });
}

void CudaSums::ReleaseIdle() {
  std::unique_lock lock(mutex_);
  std::vector<Staging*> stagings;
  for (auto& [ordinal, staging] : stagings_) stagings.push_back(staging.get());
  SharedBlocks* const shared = shared_.get();
  lock.unlock();
  for (Staging* staging : stagings) staging->ReleaseIdle();
  if (shared != nullptr) shared->ReleaseIdle();
}

}  // namespace passing
