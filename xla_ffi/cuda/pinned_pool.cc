#include "cuda/pinned_pool.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <chrono>
#include <utility>

namespace passing {
namespace {

constexpr size_t kSmallest = 4096;  // less than a page can't be pinned
constexpr unsigned kPortable = 1;   // pinned for all GPUs (CU_MEMHOSTALLOC_PORTABLE)
// Where there are as many blocks as a program needs, another one is missing because a GPU, or a thread of ours, isn't
// through with the last execution, or one that broke off, or because another thread's program has it.
constexpr auto kPatience = std::chrono::seconds(1);

void ForEach(PinnedBlock::Events& events, const auto& f) {
  f(events.given);
  for (CUevent& event : events.there) f(event);
  for (CUevent& event : events.copied_there) f(event);
  for (CUevent& event : events.copied_back) f(event);
}

size_t BytesOf(const std::map<size_t, size_t>& counts) {
  size_t bytes = 0;
  for (const auto& [size, count] : counts) bytes += size * count;
  return bytes;
}

}  // namespace

size_t PinnedPool::SizeClass(size_t bytes) {
  bytes = std::max(bytes, kSmallest);
  const size_t step = std::bit_floor(bytes) / 4;
  return (bytes + step - 1) / step * step;
}

PinnedPool::~PinnedPool() {
  assert(bytes_in_use_ == 0);
  ReleaseIdle();
}

std::shared_ptr<PinnedBlock> PinnedPool::Acquire(size_t bytes) {
  const size_t size = SizeClass(bytes);
  Lock lock(mutex_);
  std::unique_ptr<PinnedBlock> block;
  const auto take = [&] {
    const auto found = std::find_if(idle_.begin(), idle_.end(), [&](const auto& each) { return each->bytes == size; });
    if (found == idle_.end()) return false;
    block = std::move(*found);
    idle_.erase(found);
    return true;
  };
  const auto is_soon_back = [&] { return counts_[size] > 0 && counts_[size] <= reserved_[size]; };
  if (!take() && !(is_soon_back() && returned_.wait_for(lock, kPatience, take))) {
    try {
      block = Pin(lock, size, reserved_, std::max({most_in_use_, bytes_in_use_ + size, BytesOf(reserved_)}));
    } catch (const CudaError&) {
      returned_.wait_for(lock, kPatience, [&] { return take() || freeing_count_ == 0; });
      if (!block) block = Pin(lock, size, {}, 0);
    }
  }
  if (block->used.exchange(false)) block->turn ^= 1;
  bytes_in_use_ += size;
  most_in_use_ = std::max(most_in_use_, bytes_in_use_);
  return {block.release(), [this](PinnedBlock* block) { Return(block); }};
}

void PinnedPool::Reserve(const std::vector<size_t>& bytes) {
  Counts needed;
  for (const size_t each : bytes) ++needed[SizeClass(each)];
  std::lock_guard only_one(reserving_);
  Lock lock(mutex_);
  for (const auto& [size, count] : needed) reserved_[size] = std::max(reserved_[size], count);
  try {
    PinMissing(lock, needed);
  } catch (const CudaError&) {
    reserved_ = needed;
    Shrink(lock, needed, 0);
    returned_.wait_for(lock, kPatience, [&] { return freeing_count_ == 0; });
    try {
      PinMissing(lock, needed);
    } catch (const CudaError&) {
      reserved_.clear();
      throw;
    }
  }
}

void PinnedPool::PinMissing(Lock& lock, const Counts& needed) {
  for (const auto& [size, count] : needed) {
    while (counts_[size] < count) {
      idle_.push_back(Pin(lock, size, reserved_, std::max(most_in_use_, BytesOf(reserved_))));
      returned_.notify_all();
    }
  }
}

std::unique_ptr<PinnedBlock> PinnedPool::Pin(Lock& lock, size_t bytes, const Counts& kept, size_t most_bytes) {
  pinned_bytes_ += bytes;
  ++counts_[bytes];
  Shrink(lock, kept, most_bytes);
  lock.unlock();
  std::unique_ptr<PinnedBlock> block;
  try {
    block = Make(bytes);
  } catch (...) {
    lock.lock();
    pinned_bytes_ -= bytes;
    --counts_[bytes];
    throw;
  }
  lock.lock();
  return block;
}

void PinnedPool::Shrink(Lock& lock, const Counts& kept, size_t most_bytes) {
  const auto can_go = [&](const auto& block) {
    const auto found = kept.find(block->bytes);
    return found == kept.end() || counts_[block->bytes] > found->second;
  };
  std::vector<std::unique_ptr<PinnedBlock>> blocks;
  while (pinned_bytes_ > most_bytes) {
    const auto oldest = std::find_if(idle_.begin(), idle_.end(), can_go);
    if (oldest == idle_.end()) break;
    pinned_bytes_ -= (*oldest)->bytes;
    --counts_[(*oldest)->bytes];
    blocks.push_back(std::move(*oldest));
    idle_.erase(oldest);
  }
  if (blocks.empty()) return;
  ++freeing_count_;
  lock.unlock();
  for (const auto& block : blocks) Free(*block);
  lock.lock();
  --freeing_count_;
  returned_.notify_all();
}

CUresult PinnedPool::Enter(CUcontext context) const {
  return context == nullptr ? 0 : driver_.ContextSetCurrent(context);
}

void PinnedPool::Return(PinnedBlock* block) {
  std::lock_guard lock(mutex_);
  bytes_in_use_ -= block->bytes;
  idle_.emplace_back(block);
  returned_.notify_all();
}

std::unique_ptr<PinnedBlock> PinnedPool::Make(size_t bytes) {
  auto block = std::make_unique<PinnedBlock>();
  block->bytes = bytes;
  driver_.Check(Enter(contexts_.front()), "entering a GPU's context");
  driver_.Check(driver_.HostAlloc(&block->memory, bytes, kPortable), "pinning host memory for a sum");
  CUresult result = 0;
  for (const CUcontext context : contexts_) {
    PinnedBlock::Events& events = block->gpus.emplace_back();
    events.there.resize((bytes + PinnedBlock::kPieceBytes - 1) / PinnedBlock::kPieceBytes);
    if (result == 0) result = Enter(context);
    ForEach(events, [&](CUevent& event) {
      if (result == 0) result = driver_.EventCreate(&event, CudaDriver::kEventForWaiting);
    });
  }
  if (result != 0) {
    DestroyEvents(*block);
    driver_.HostFree(block->memory);
  }
  driver_.Check(result, "making an event");
  return block;
}

void PinnedPool::Free(PinnedBlock& block) {
  // Where the GPU has failed, so do these; then nothing is copied any more, either.
  Enter(contexts_.front());
  for (PinnedBlock::Events& events : block.gpus) {
    for (const CUevent event : events.copied_there) driver_.EventSynchronize(event);
    for (const CUevent event : events.copied_back) driver_.EventSynchronize(event);
  }
  DestroyEvents(block);
  driver_.HostFree(block.memory);
}

void PinnedPool::DestroyEvents(PinnedBlock& block) {
  for (PinnedBlock::Events& events : block.gpus) {
    ForEach(events, [this](CUevent event) {
      if (event != nullptr) driver_.EventDestroy(event);
    });
  }
}

void PinnedPool::ReleaseIdle() {
  Lock lock(mutex_);
  most_in_use_ = bytes_in_use_;
  reserved_.clear();
  Shrink(lock, {}, 0);
}

size_t PinnedPool::pinned_bytes() const {
  std::lock_guard lock(mutex_);
  return pinned_bytes_;
}

size_t PinnedPool::bytes_in_use() const {
  std::lock_guard lock(mutex_);
  return bytes_in_use_;
}

}  // namespace passing
