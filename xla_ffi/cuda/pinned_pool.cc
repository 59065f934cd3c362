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
// Where there are as many blocks as a program needs, another one can only be missing because a GPU, or a thread of
// ours, isn't through with the last execution, or because another thread's program has it.
constexpr auto kPatience = std::chrono::seconds(1);

void ForEach(PinnedBlock::Events& events, const auto& f) {
  f(events.given);
  for (CUevent& event : events.there) f(event);
  for (CUevent& event : events.copied_there) f(event);
  for (CUevent& event : events.copied_back) f(event);
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
  std::unique_lock lock(mutex_);
  auto found = idle_.end();
  const auto find = [&] {
    found = std::find_if(idle_.begin(), idle_.end(), [&](const auto& block) { return block->bytes == size; });
    return found != idle_.end();
  };
  std::unique_ptr<PinnedBlock> block;
  const auto is_soon_back = [&] { return counts_[size] > 0 && counts_[size] <= reserved_[size]; };
  if (find() || (is_soon_back() && returned_.wait_for(lock, kPatience, find))) {
    block = std::move(*found);
    idle_.erase(found);
    if (block->used.exchange(false)) block->turn ^= 1;
  } else {
    MakeRoom(size, reserved_, bytes_in_use_ + size);
    try {
      block = Make(size);
    } catch (const CudaError&) {
      if (idle_.empty()) throw;
      FreeIdle();
      block = Make(size);
    }
  }
  bytes_in_use_ += size;
  most_in_use_ = std::max(most_in_use_, bytes_in_use_);
  return {block.release(), [this](PinnedBlock* block) { Return(block); }};
}

void PinnedPool::Reserve(const std::vector<size_t>& bytes) {
  Counts needed;
  for (const size_t each : bytes) ++needed[SizeClass(each)];
  std::lock_guard lock(mutex_);
  for (const auto& [size, count] : reserved_) needed[size] = std::max(needed[size], count);
  for (const auto& [size, count] : needed) {
    while (counts_[size] < count) {
      MakeRoom(size, needed, 0);
      idle_.push_back(Make(size));
      returned_.notify_all();
    }
  }
  reserved_ = std::move(needed);
}

void PinnedPool::MakeRoom(size_t bytes, const Counts& kept, size_t bytes_in_use) {
  size_t most = std::max(most_in_use_, bytes_in_use), kept_bytes = 0;
  for (const auto& [size, count] : kept) kept_bytes += size * count;
  most = std::max(most, kept_bytes);
  const auto can_go = [&](const auto& block) {
    const auto found = kept.find(block->bytes);
    return found == kept.end() || counts_[block->bytes] > found->second;
  };
  while (pinned_bytes_ + bytes > most) {
    const auto oldest = std::find_if(idle_.begin(), idle_.end(), can_go);
    if (oldest == idle_.end()) return;
    auto block = std::move(*oldest);
    idle_.erase(oldest);
    Free(std::move(block));
  }
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
  pinned_bytes_ += bytes;
  ++counts_[bytes];
  return block;
}

void PinnedPool::Free(std::unique_ptr<PinnedBlock> block) {
  // Where the GPU has failed, so do these; then nothing is copied any more, either.
  Enter(contexts_.front());
  for (PinnedBlock::Events& events : block->gpus) {
    for (const CUevent event : events.copied_there) driver_.EventSynchronize(event);
    for (const CUevent event : events.copied_back) driver_.EventSynchronize(event);
  }
  DestroyEvents(*block);
  driver_.HostFree(block->memory);
  pinned_bytes_ -= block->bytes;
  --counts_[block->bytes];
}

void PinnedPool::DestroyEvents(PinnedBlock& block) {
  for (PinnedBlock::Events& events : block.gpus) {
    ForEach(events, [this](CUevent event) {
      if (event != nullptr) driver_.EventDestroy(event);
    });
  }
}

void PinnedPool::FreeIdle() {
  while (!idle_.empty()) {
    Free(std::move(idle_.front()));
    idle_.pop_front();
  }
}

void PinnedPool::ReleaseIdle() {
  std::lock_guard lock(mutex_);
  FreeIdle();
  most_in_use_ = bytes_in_use_;
  reserved_.clear();
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
