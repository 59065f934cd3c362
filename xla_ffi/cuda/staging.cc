#include "cuda/staging.h"

#include <chrono>
#include <utility>

namespace passing {
namespace {

constexpr size_t kAlignment = 256;  // of a leaf in pinned memory
constexpr auto kFailureInterval = std::chrono::milliseconds(200);

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Whether both own, or owned, the same.
bool Same(const std::weak_ptr<const void>& a, const std::shared_ptr<const void>& b) {
  return !a.owner_before(b) && !b.owner_before(a);
}

}  // namespace

void StagedSum::AwaitLeaves() const {
  driver_.Check(driver_.ContextSetCurrent(context_), "entering a GPU's context");
  driver_.Check(driver_.EventSynchronize(last_use_), "copying a sum from the GPU");
}

void StagedSum::Complete(const Failure* failure) {
  std::lock_guard lock(mutex_);
  complete_ = true;
  if (failure != nullptr) failure_ = *failure;
  completed_.notify_all();
}

std::optional<Failure> StagedSum::Await(const std::function<std::optional<Failure>()>& session_failure) {
  std::optional<Failure> failure;
  std::unique_lock lock(mutex_);
  while (!completed_.wait_for(lock, kFailureInterval, [this] { return complete_; })) {
    // Not at once: where the sum is there for another device, it is for this one, too.
    if (failure) return failure;
    lock.unlock();
    failure = session_failure();
    lock.lock();
  }
  return failure_;
}

void StagedSum::CopyBack(CUstream stream) const {
  CUresult result = driver_.ContextSetCurrent(context_);
  for (size_t i = 0; i < leaves_.size() && result == 0; ++i) {
    result = driver_.CopyToDevice(leaves_[i].address, memory_[i], leaves_[i].bytes, stream);
  }
  const CUresult recorded = driver_.EventRecord(last_use_, stream);  // of those that were enqueued, in any case
  driver_.Check(result, "copying a sum to the GPU");
  driver_.Check(recorded, "recording an event behind a sum");
}

Staging::Staging(const CudaDriver& driver, int ordinal) : driver_(driver), pool_(driver) {
  driver_.Check(driver_.DeviceGet(&device_, ordinal), "finding a GPU");
  driver_.Check(driver_.PrimaryContextRetain(&context_, device_), "entering a GPU's context");
  CUresult result = driver_.ContextSetCurrent(context_);
  if (result == 0) result = driver_.StreamCreate(&copies_, CudaDriver::kStreamNonBlocking);
  if (result == 0) {
    result = driver_.EventCreate(&leaves_, CudaDriver::kEventForWaiting);
    if (result != 0) driver_.StreamDestroy(copies_);
  }
  if (result != 0) driver_.PrimaryContextRelease(device_);
  driver_.Check(result, "making a stream for copies");
}

Staging::~Staging() {
  pending_.clear();
  driver_.ContextSetCurrent(context_);
  pool_.ReleaseIdle();
  driver_.EventDestroy(leaves_);
  driver_.StreamDestroy(copies_);
  driver_.PrimaryContextRelease(device_);
}

std::shared_ptr<StagedSum> Staging::Start(CUstream stream, const std::shared_ptr<const void>& site, CUdeviceptr token,
                                          std::vector<DeviceArray> leaves, const std::optional<PlaceInBlock>& place) {
  size_t bytes = 0;
  for (const DeviceArray& leaf : leaves) bytes += Aligned(leaf.bytes);
  std::shared_ptr<StagedSum> sum(new StagedSum(driver_, context_, site, std::move(leaves)));
  std::lock_guard lock(mutex_);
  std::erase_if(pending_, [&](const auto& entry) {
    const auto& [its_token, its_sum] = entry;
    return its_token == token || its_sum->site_.expired() || Same(its_sum->site_, site);
  });
  driver_.Check(driver_.ContextSetCurrent(context_), "entering a GPU's context");
  sum->block_ = place ? place->block : pool_.Acquire(bytes);
  sum->last_use_ = sum->block_->last_uses[place ? place->gpu : 0];
  char* memory = static_cast<char*>(sum->block_->memory) + (place ? place->offset : 0);
  CUresult result = 0;
  for (const CUevent last_use : sum->block_->last_uses) {  // for the sum that had the block before
    if (result == 0) result = driver_.StreamWaitEvent(copies_, last_use, 0);
  }
  // By an event of its own: who waits for the last use of the block waits for all uses before.
  if (result == 0) result = driver_.EventRecord(leaves_, stream);
  if (result == 0) result = driver_.StreamWaitEvent(copies_, leaves_, 0);
  driver_.Check(result, "waiting for the arrays of a sum");
  for (const DeviceArray& leaf : sum->leaves_) {
    if (result == 0) result = driver_.CopyToHost(memory, leaf.address, leaf.bytes, copies_);
    sum->memory_.push_back(memory);
    memory += Aligned(leaf.bytes);
  }
  const CUresult recorded = driver_.EventRecord(sum->last_use_, copies_);  // of those that were enqueued, in any case
  driver_.Check(result, "copying a sum from the GPU");
  driver_.Check(recorded, "recording an event behind a sum");
  pending_[token] = sum;
  return sum;
}

std::shared_ptr<StagedSum> Staging::Take(CUdeviceptr token) {
  std::lock_guard lock(mutex_);
  const auto found = pending_.find(token);
  if (found == pending_.end()) return nullptr;
  auto sum = std::move(found->second);
  pending_.erase(found);
  return sum;
}

void Staging::Write(CUstream stream, CUdeviceptr address, int value) {
  driver_.Check(driver_.ContextSetCurrent(context_), "entering a GPU's context");
  driver_.Check(driver_.Fill(address, static_cast<unsigned>(value), 1, stream), "writing a number to the GPU");
}

void Staging::ReleaseIdle() {
  CUcontext before = nullptr;
  driver_.ContextGetCurrent(&before);
  if (driver_.ContextSetCurrent(context_) == 0) pool_.ReleaseIdle();
  driver_.ContextSetCurrent(before);
}

size_t Staging::pending_count() const {
  std::lock_guard lock(mutex_);
  return pending_.size();
}

}  // namespace passing
