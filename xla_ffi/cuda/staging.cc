#include "cuda/staging.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>
#include <utility>

namespace passing {
namespace {

constexpr size_t kAlignment = 256;  // each leaf's in pinned memory
constexpr auto kFailureInterval = std::chrono::milliseconds(200);

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Do both own, or did both own, the same object?
bool Same(const std::weak_ptr<const void>& a, const std::shared_ptr<const void>& b) {
  return !a.owner_before(b) && !b.owner_before(a);
}

}  // namespace

StagedSum::StagedSum(const CudaDriver& driver, CUcontext context, std::weak_ptr<const void> site, int32_t run_id,
                     std::vector<DeviceArray> leaves)
    : driver_(driver), context_(context), site_(std::move(site)), run_id_(run_id), leaves_(std::move(leaves)) {
  size_t end = 0;
  for (const DeviceArray& leaf : leaves_) ends_.push_back(end += leaf.bytes);
}

size_t StagedSum::BlockBytes(const std::vector<size_t>& leaf_bytes) {
  size_t bytes = 0;
  for (const size_t each : leaf_bytes) bytes += Aligned(each);
  return bytes;
}

void StagedSum::Use(const SliceInBlock& slice) {
  block_ = slice.block;
  events_ = &block_->gpus[slice.gpu];
  char* memory = static_cast<char*>(block_->memory) + slice.offset;
  for (const DeviceArray& leaf : leaves_) {
    memory_.push_back(memory);
    memory += Aligned(leaf.bytes);
  }
}

template <typename F>
CUresult StagedSum::ForEachRun(size_t begin, size_t end, F&& f) const {
  auto leaf = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
  for (; begin < end; ++leaf) {
    const size_t in_leaf = begin - (ends_[leaf] - leaves_[leaf].bytes);
    const size_t bytes = std::min(end, ends_[leaf]) - begin;
    const CUresult result = f(leaves_[leaf].address + in_leaf, static_cast<char*>(memory_[leaf]) + in_leaf, bytes);
    if (result != 0) return result;
    begin += bytes;
  }
  return 0;
}

void StagedSum::CopyToHost(CUstream copies) {
  CUresult result = 0;
  for (const PinnedBlock::Events& gpu : block_->gpus) {  // of the sum that had the block before
    for (const CUevent event : {gpu.copied_there[1 - block_->turn], gpu.copied_back[1 - block_->turn]}) {
      if (result == 0) result = driver_.StreamWaitEvent(copies, event, 0);
    }
  }
  if (result == 0) block_->used = true;
  if (result == 0) result = driver_.StreamWaitEvent(copies, events_->given, 0);
  size_t begin = 0;
  for (size_t piece = 0; begin < ends_.back() && result == 0; ++piece) {
    const size_t end = std::min(begin + PinnedBlock::kPieceBytes, ends_.back());
    result = ForEachRun(begin, end, [&](CUdeviceptr address, void* memory, size_t bytes) {
      return driver_.CopyToHost(memory, address, bytes, copies);
    });
    if (result == 0) result = driver_.EventRecord(events_->there[piece], copies);
    std::lock_guard lock(mutex_);
    if (result == 0) enqueued_bytes_ = begin = end;
    changed_.notify_all();
  }
  // Recorded behind the copies that were enqueued, even if one failed.
  const CUresult recorded = driver_.EventRecord(events_->copied_there[block_->turn], copies);
  if (result == 0) result = recorded;
  if (result == 0) return;
  std::lock_guard lock(mutex_);
  enqueue_error_ = result;
  changed_.notify_all();
}

size_t StagedSum::AwaitMore(size_t bytes) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return enqueued_bytes_ > bytes || enqueue_error_ != 0; });
  const CUresult result = enqueued_bytes_ > bytes ? 0 : enqueue_error_;
  lock.unlock();
  driver_.Check(result, "copying a sum from the GPU");
  driver_.Enter(context_);
  const size_t piece = bytes / PinnedBlock::kPieceBytes;
  driver_.Check(driver_.EventSynchronize(events_->there[piece]), "copying a sum from the GPU");
  return std::min((piece + 1) * PinnedBlock::kPieceBytes, ends_.back());
}

void StagedSum::OnWritten(size_t bytes) {
  if (bytes < ends_.back()) bytes -= bytes % PinnedBlock::kPieceBytes;
  std::lock_guard lock(mutex_);
  if (bytes <= written_bytes_) return;
  written_bytes_ = bytes;
  changed_.notify_all();
}

void StagedSum::Complete(const Failure* failure) {
  std::lock_guard lock(mutex_);
  complete_ = true;
  if (failure != nullptr) failure_ = *failure;
  changed_.notify_all();
}

std::optional<Failure> StagedSum::CopyBack(CUstream stream,
                                           const std::function<std::optional<Failure>()>& session_failure) {
  driver_.Enter(context_);
  size_t copied = 0;
  bool is_over = false;
  std::optional<Failure> failure;
  CUresult out_result = 0, result = 0;
  while (!is_over) {
    std::unique_lock lock(mutex_);
    const auto has_more = [&] { return complete_ || enqueue_error_ != 0 || written_bytes_ > copied; };
    if (!changed_.wait_for(lock, kFailureInterval, has_more)) {
      // Not at once: where the sum is there for another device, it is for this one, too.
      if (failure) break;
      lock.unlock();
      failure = session_failure();
      continue;
    }
    failure = failure_;
    if (!complete_) out_result = enqueue_error_;
    is_over = complete_ || out_result != 0;
    const size_t end = failure || out_result != 0 ? copied : complete_ ? ends_.back() : written_bytes_;
    lock.unlock();
    result = ForEachRun(copied, end, [&](CUdeviceptr address, void* memory, size_t bytes) {
      return driver_.CopyToDevice(address, memory, bytes, stream);
    });
    copied = end;
    if (result != 0) break;
  }
  // Recorded behind the copies that were enqueued, even if one failed.
  const CUresult recorded = copied > 0 ? driver_.EventRecord(events_->copied_back[block_->turn], stream) : 0;
  driver_.Check(out_result, "copying a sum from the GPU");
  driver_.Check(result, "copying a sum to the GPU");
  driver_.Check(recorded, "recording an event behind a sum");
  return failure;
}

Staging::Staging(const CudaDriver& driver, int ordinal) : driver_(driver), pool_(driver) {
  driver_.Check(driver_.DeviceGet(&device_, ordinal), "finding a GPU");
  driver_.Check(driver_.PrimaryContextRetain(&context_, device_), "entering a GPU's context");
  const ContextKept kept(driver_);
  CUresult result = driver_.ContextSetCurrent(context_);
  if (result == 0) result = driver_.StreamCreate(&copies_, CudaDriver::kStreamNonBlocking);
  if (result != 0) driver_.PrimaryContextRelease(device_);
  driver_.Check(result, "making a stream for copies");
  try {
    thread_ = std::thread(&Staging::Copy, this);
  } catch (const std::system_error& error) {
    driver_.StreamDestroy(copies_);
    driver_.PrimaryContextRelease(device_);
    throw CudaError(std::string("a GPU's copies need a thread, but the system has none (") + error.what() +
                    "): raise the limit of processes (ulimit -u), or the container's of pids");
  }
}

Staging::~Staging() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    wake_.notify_all();
  }
  thread_.join();
  pending_.clear();
  driver_.ContextSetCurrent(context_);
  pool_.ReleaseIdle();
  driver_.StreamDestroy(copies_);
  driver_.PrimaryContextRelease(device_);
}

std::shared_ptr<StagedSum> Staging::Start(CUstream stream, const std::shared_ptr<const void>& site, int32_t run_id,
                                          CUdeviceptr token, std::vector<DeviceArray> leaves,
                                          const std::optional<SliceInBlock>& slice) {
  std::vector<size_t> leaf_bytes;
  for (const DeviceArray& leaf : leaves) leaf_bytes.push_back(leaf.bytes);
  std::shared_ptr<StagedSum> sum(new StagedSum(driver_, context_, site, run_id, std::move(leaves)));
  std::unique_lock lock(mutex_);
  std::erase_if(pending_, [&](const auto& entry) {
    const auto& [its_token, its_sum] = entry;
    return its_token == token || its_sum->site_.expired() || Same(its_sum->site_, site);
  });
  lock.unlock();  // the thread that gives the memory back may need the lock
  driver_.Enter(context_);
  sum->Use(slice ? *slice : SliceInBlock{pool_.Acquire(StagedSum::BlockBytes(leaf_bytes))});
  driver_.Check(driver_.EventRecord(sum->events_->given, stream), "waiting for the arrays of a sum");
  lock.lock();
  pending_[token] = sum;
  to_copy_.push_back(sum);
  wake_.notify_all();
  return sum;
}

// Also what was started and then forgotten: others may add it up.
void Staging::Copy() {
  driver_.ContextSetCurrent(context_);
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return ending_ || !to_copy_.empty(); });
    if (to_copy_.empty()) return;
    auto sum = std::move(to_copy_.front());
    to_copy_.pop_front();
    lock.unlock();
    sum->CopyToHost(copies_);
    sum.reset();
    lock.lock();
  }
}

std::shared_ptr<StagedSum> Staging::Take(CUdeviceptr token) {
  std::lock_guard lock(mutex_);
  const auto found = pending_.find(token);
  if (found == pending_.end()) return nullptr;
  auto sum = std::move(found->second);
  pending_.erase(found);
  return sum;
}

void Staging::Forget(int32_t run_id) {
  std::lock_guard lock(mutex_);
  std::erase_if(pending_, [&](const auto& entry) { return entry.second->run_id_ == run_id; });
}

void Staging::Write(CUstream stream, CUdeviceptr address, int value) {
  driver_.Enter(context_);
  driver_.Check(driver_.Fill(address, static_cast<unsigned>(value), 1, stream), "writing a number to the GPU");
}

void Staging::Reserve(const std::vector<size_t>& bytes) {
  const ContextKept kept(driver_);
  driver_.Enter(context_);
  pool_.Reserve(bytes);
}

void Staging::ReleaseIdle() {
  const ContextKept kept(driver_);
  if (driver_.ContextSetCurrent(context_) == 0) pool_.ReleaseIdle();
}

size_t Staging::pending_count() const {
  std::lock_guard lock(mutex_);
  return pending_.size();
}

}  // namespace passing
