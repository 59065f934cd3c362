#include "ffi/cuda/sums.h"

#include <algorithm>
#include <set>
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
std::vector<void*> LeavesIn(const PinnedBlock& block, const CudaSpec& spec) {
  std::vector<void*> leaves;
  auto* leaf = static_cast<char*>(block.memory);
  for (const uint64_t elements : spec.leaf_elements) {
    leaves.push_back(leaf);
    leaf += elements * SizeOf(spec.dtype_brought());
  }
  return leaves;
}

}  // namespace

DeviceRoles::DeviceRoles(const CudaSpec& spec) : by_id_(!spec.devices.empty()) {
  for (size_t i = 0; i < spec.gpus.size(); ++i) {
    roles_[spec.gpus[i]] = {spec.groups[i], spec.members[i], spec.slices[i]};
  }
}

const DeviceRole* DeviceRoles::Find(const CudaDevice& device) const {
  auto role = roles_.find(by_id_ ? device.id : device.index);
  if (role == roles_.end()) role = roles_.find(kAnyDevice);
  return role == roles_.end() ? nullptr : &role->second;
}

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

SliceInBlock CudaSums::SharedBlockOf(const std::shared_ptr<const SumSite>& site, const CudaCall& call) {
  const CudaSpec& spec = CudaSpecOf(*site);
  const size_t slices = spec.local_member_count, bytes = spec.slice_elements * SizeOf(spec.dtype_brought());
  const auto slice = static_cast<size_t>(call.slice);
  auto block = Shared().BlockFor(site, call.run_id, slice, slices, slices * bytes);
  std::lock_guard lock(mutex_);
  const auto gpu =
      std::find_if(devices_.begin(), devices_.end(), [&](const auto& each) { return each.ordinal == call.ordinal; });
  return {std::move(block), static_cast<size_t>(gpu - devices_.begin()), slice * bytes};
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

PinnedNeeds CudaSums::NeedsOf(const Executable& executable) {
  PinnedNeeds needs;
  for (const auto& sum : executable.sums) {
    const auto* spec = static_cast<const CudaSpec*>(sum.get());
    if (spec->slice_elements) {
      const DeviceRoles roles(*spec);
      std::set<int64_t> groups;
      for (const CudaDevice& device : devices()) {
        if (const DeviceRole* role = roles.Find(device)) groups.insert(role->group);
      }
      const size_t bytes = spec->local_member_count * spec->slice_elements * SizeOf(spec->dtype_brought());
      needs.shared.insert(needs.shared.end(), groups.size(), bytes);
      continue;
    }
    std::vector<size_t> leaves;
    for (const uint64_t elements : spec->leaf_elements) leaves.push_back(elements * SizeOf(spec->dtype));
    if (spec->residuals) leaves.insert(leaves.end(), leaves.begin(), leaves.end());
    needs.of_each_device.push_back(StagedSum::BlockBytes(leaves));
  }
  return needs;
}

void CudaSums::Reserve(const PinnedNeeds& needs, int32_t ordinal) {
  try {
    StagingOf(ordinal).Reserve(needs.of_each_device);
    if (!needs.shared.empty()) Shared().Reserve(needs.shared);
  } catch (const CudaError&) {
  }
}

std::optional<Failure> CudaSums::Start(const std::shared_ptr<const SumSite>& site, CudaCall call) {
  return TryOrForget(call, [&]() -> std::optional<Failure> {
    const CudaSpec& spec = CudaSpecOf(*site);
    const bool sliced = spec.slice_elements > 0;
    const size_t element_bytes = SizeOf(spec.dtype_brought()), leaf_count = spec.leaf_elements.size();
    std::vector<DeviceArray> leaves;
    for (size_t i = 0; i < call.leaves.size(); ++i) {
      const uint64_t elements = sliced ? spec.slice_elements : spec.leaf_elements[i % leaf_count];
      leaves.push_back({call.leaves[i], elements * element_bytes});
    }
    const auto shared = sliced ? std::optional(SharedBlockOf(site, call)) : std::nullopt;
    const auto part =
        StagingOf(call.ordinal).Start(call.stream, site, call.run_id, call.token, std::move(leaves), shared);
    auto memory = shared ? LeavesIn(*shared->block, spec) : part->memory();
    // The arrays for residuals come behind the leaves, and are copied as these are, in both directions. Nothing is
    // written to their memory before they have come.
    const auto residuals_at = memory.begin() + static_cast<std::ptrdiff_t>(leaf_count);
    std::vector<void*> residuals(residuals_at, memory.end());
    memory.erase(residuals_at, memory.end());
    const size_t bytes_before_start = residuals.empty() ? 0 : 2 * spec.bytes();
    auto await = [part, element_bytes, bytes_before_start](uint64_t& elements) -> std::optional<Failure> {
      try {
        size_t bytes = elements * element_bytes;
        do {
          bytes = part->AwaitMore(bytes);
        } while (bytes < bytes_before_start);
        elements = bytes / element_bytes;
      } catch (const CudaError& error) {
        return AcceleratorFailure(error.what());
      }
      return std::nullopt;
    };
    auto written = [part, element_bytes](uint64_t elements) { part->OnWritten(elements * element_bytes); };
    rendezvous_.Arrive(site, {.run_id = call.run_id,
                              .device = call.device,
                              .member = call.member,
                              .inputs = {memory.begin(), memory.end()},
                              .outputs = memory,
                              .residuals = std::move(residuals),
                              .staged = std::make_shared<StagedInputs>(starts_, std::move(await), std::move(written)),
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
