#include "ffi/sum_handles.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <set>

namespace passing {
namespace {

constexpr size_t kAlignment = 64;  // as XLA's buffers

// Executions of one call that are noted: more than may overlap on a host's devices.
constexpr size_t kMadeMax = 1024;

constexpr size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

void HandlePart::Free::operator()(void* memory) const { std::free(memory); }

HandlePart::HandlePart(const std::vector<HandleLeaf>& leaves) : types_(leaves) {
  size_t bytes = 0;
  for (const HandleLeaf& leaf : leaves) bytes += Aligned(leaf.bytes);
  memory_.reset(std::aligned_alloc(kAlignment, std::max(bytes, kAlignment)));
  if (!memory_) throw std::bad_alloc();
  auto* place = static_cast<uint8_t*>(memory_.get());
  for (HandleLeaf& leaf : types_) {
    std::memcpy(place, leaf.data, leaf.bytes);
    leaf.data = nullptr;  // XLA's buffers last only as long as the call
    leaves_.push_back(place);
    place += Aligned(leaf.bytes);
  }
}

bool HandlePart::HasTypes(const std::vector<HandleLeaf>& leaves) const {
  return std::equal(leaves.begin(), leaves.end(), types_.begin(), types_.end(),
                    [](const HandleLeaf& a, const HandleLeaf& b) { return a.type == b.type && a.bytes == b.bytes; });
}

void HandlePart::CopyTo(const std::vector<void*>& outputs) const {
  for (size_t i = 0; i < outputs.size(); ++i) std::memcpy(outputs[i], leaves_[i], types_[i].bytes);
}

void HandlePart::Complete(const Failure* failure) {
  Done waiting;
  {
    std::lock_guard lock(mutex_);
    if (complete_) return;
    complete_ = true;
    if (failure) failure_ = *failure;
    waiting.swap(waiting_);
  }
  if (waiting) waiting(failure);
}

void HandlePart::WhenComplete(Done done) {
  {
    std::lock_guard lock(mutex_);
    if (!complete_) {
      waiting_ = std::move(done);
      return;
    }
  }
  done(failure_ ? &*failure_ : nullptr);
}

uint32_t HandleCall::NumberFor(int32_t run_id, int64_t device, const std::function<uint32_t()>& new_number) {
  std::lock_guard lock(mutex_);
  std::deque<Steps>& executions = steps_[device];
  auto steps =
      std::find_if(executions.rbegin(), executions.rend(), [&](const Steps& each) { return each.run_id == run_id; });
  if (steps == executions.rend()) {
    if (executions.size() == kMadeMax) executions.pop_front();
    executions.push_back({run_id, 0});
    steps = executions.rbegin();
  }
  const uint32_t step = steps->count++;
  const auto found = std::find_if(made_.begin(), made_.end(),
                                  [&](const Made& made) { return made.run_id == run_id && made.step == step; });
  if (found != made_.end()) {
    const uint32_t number = found->number;
    if (--found->missing == 0) made_.erase(found);
    return number;
  }
  const uint32_t number = new_number();
  if (device_count_ > 1) made_.push_back({run_id, step, number, device_count_ - 1});
  // Devices that take different branches may never come. Who comes too late gets another number.
  if (made_.size() > kMadeMax) made_.pop_front();
  return number;
}

uint32_t SumHandles::NewNumber() {
  std::lock_guard lock(mutex_);
  for (;;) {
    const auto number = static_cast<uint32_t>(count_++ % kNumbers);
    const auto found = parts_.lower_bound({number, INT64_MIN});
    if (found == parts_.end() || found->first.first != number) return number;
  }
}

std::optional<Failure> SumHandles::Put(uint32_t number, int64_t device, std::shared_ptr<const HandleCall> call,
                                       const std::shared_ptr<HandlePart>& part) {
  std::lock_guard lock(mutex_);
  const std::string& name = call->name();
  const Whose whose{std::move(call), device};
  if (parts_.contains({number, device})) {  // two calls would be taken for one, and a value would be another's
    return Failure{"UsageError", name +
                                     ": more than a thousand executions of this program overlap on a device, and "
                                     "their handles can't be told apart. Wait for the results of some of them"};
  }
  size_t& unfinished = unfinished_[whose];
  if (unfinished >= kUnfinishedMax) {
    return Failure{"UsageError", name + ": " + std::to_string(kUnfinishedMax) +
                                     " handles of this call aren't finished, and each keeps its arrays. Finish each "
                                     "of them once (jax_passing.psum_done, whose result must be used, or the compiler "
                                     "removes it), in the order in which they are started"};
  }
  ++unfinished;
  parts_[{number, device}] = {part, whose};
  return std::nullopt;
}

void SumHandles::Erase(std::map<std::pair<uint32_t, int64_t>, Kept>::iterator kept) {
  const auto unfinished = unfinished_.find(kept->second.whose);
  if (--unfinished->second == 0) unfinished_.erase(unfinished);
  parts_.erase(kept);
}

void SumHandles::Drop(uint32_t number, int64_t device) {
  std::lock_guard lock(mutex_);
  const auto found = parts_.find({number, device});
  if (found != parts_.end()) Erase(found);
}

std::variant<std::shared_ptr<HandlePart>, Failure> SumHandles::Take(float token, int64_t device,
                                                                    const std::vector<HandleLeaf>& leaves,
                                                                    const std::string& name) {
  const bool whole = token >= 1 && token <= TokenOf(kNumbers - 1) && token == std::floor(token);
  if (!whole || static_cast<uint32_t>(token) % kTokenStep != 1) {
    return Failure{"UsageError", name + ": " + std::to_string(token) +
                                     " is no handle's number: something was calculated with it. Carry and store "
                                     "handles as they are: leave them out of casts, averages, sums and random "
                                     "initial values, and of gradients taken from outside of "
                                     "jax.shard_map(check_vma=False)"};
  }
  const uint32_t number = static_cast<uint32_t>(token) / kTokenStep;
  std::lock_guard lock(mutex_);
  const auto found = parts_.find({number, device});
  if (found == parts_.end()) return Missing(number, name);
  auto part = found->second.part;
  if (!part->HasTypes(leaves)) {
    return Failure{"UsageError", name + ": this handle is that of " + found->second.whose.first->name() +
                                     ", whose arrays have other shapes or dtypes. Finish each handle with the "
                                     "structure that psum_start returned it in"};
  }
  Erase(found);
  return part;
}

Failure SumHandles::Missing(uint32_t number, const std::string& name) const {
  const auto same = parts_.lower_bound({number, INT64_MIN});
  if (same != parts_.end() && same->first.first == number) {
    return {"UsageError", name + ": this handle of " + same->second.whose.first->name() +
                              " was finished on this device already, or was started on others. Finish it once, on "
                              "the mesh on which it was started"};
  }
  // The last one that had this number.
  const uint64_t back = (count_ % kNumbers + kNumbers - number - 1) % kNumbers;  // numbers given since
  if (back < count_ - count_at_session_) {
    return {"UsageError", name +
                              ": this handle was finished already. A handle is finished once: keep what psum_done "
                              "returned, and carry on the next sum's handle, or jax_passing.no_sum(tree, axis_name)"};
  }
  return {"UsageError", name +
                            ": this handle was started in a former session, or by another process, and its sum is "
                            "gone. Put jax_passing.no_sum(tree, axis_name) in the place of handles that a rejoin, "
                            "another jax_passing.init or a checkpoint left over"};
}

void SumHandles::EndSession() {
  std::map<std::pair<uint32_t, int64_t>, Kept> parts;  // let go of without the lock
  std::lock_guard lock(mutex_);
  parts.swap(parts_);
  unfinished_.clear();
  count_at_session_ = count_;
}

std::map<std::string, size_t> SumHandles::Unfinished() {
  std::lock_guard lock(mutex_);
  std::map<std::string, std::set<uint32_t>> numbers;
  for (const auto& [key, kept] : parts_) numbers[kept.whose.first->name()].insert(key.first);
  std::map<std::string, size_t> counts;
  for (const auto& [name, each] : numbers) counts[name] = each.size();
  return counts;
}

}  // namespace passing
