#include "ffi/rendezvous.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "net/clock.h"

namespace passing {
namespace {

// How soon open gatherings learn that the session failed, or are past their deadline.
constexpr auto kWatchInterval = std::chrono::milliseconds(200);

// Run ids wrap.
bool IsLater(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b)) > 0;
}

std::string Members(const std::vector<Call>& calls) {
  std::string text;
  for (const Call& call : calls) text += (text.empty() ? "" : ", ") + std::to_string(call.member);
  return text;
}

}  // namespace

Rendezvous::Rendezvous(CompletionPool& pool) : pool_(pool), local_(std::make_shared<LocalCollective>()) {}

Rendezvous::~Rendezvous() { Detach(); }

Rendezvous& Rendezvous::Get() {
  static auto& rendezvous = *new Rendezvous(CompletionPool::Get());
  return rendezvous;
}

bool Rendezvous::Attach(Attachment attachment) {
  std::lock_guard lock(mutex_);
  if (attachment_) return false;
  attachment_ = std::move(attachment);
  ++attachment_number_;
  watch_ = std::thread(&Rendezvous::Watch, this);
  return true;
}

void Rendezvous::Detach() {
  std::vector<std::shared_ptr<Gathering>> open;
  std::thread watch;
  std::optional<Attachment> attachment;  // let go of without the lock
  {
    std::lock_guard lock(mutex_);
    if (!attachment_) return;
    attachment.swap(attachment_);
    open = TakeOpen();
    progress_.clear();
    watch = std::move(watch_);
    wake_watch_.notify_all();
  }
  watch.join();
  const Failure failure{"ClosedError", "the session was shut down while sums were under way"};
  for (auto& gathering : open) Finish(std::move(gathering), &failure);
}

std::optional<Failure> Rendezvous::Refuse(const Site& site, const Call& call, bool& fatal) {
  const std::string& name = site.shape->site_name;
  Executions& executions = *site.executions;
  const bool seen = executions.attachment != 0 && !IsLater(call.run_id, executions.run_id);
  if (!seen) executions.run_id = call.run_id;
  if (!attachment_) {
    if (!seen) executions.attachment = attachment_number_;  // the one before
    return Failure{"NotInitializedError", "no session: call jax_passing.init() before running " + name};
  }
  if (seen && executions.attachment != attachment_number_) {
    return Failure{"ClosedError", "this execution of " + name + " began before the session did"};
  }
  executions.attachment = attachment_number_;
  if (site.flat && !attachment_->flat) {
    return Failure{"ConfigError", name +
                                      " was compiled for strategy 'flat', which this session doesn't know: call "
                                      "jax_passing.init(strategy='flat') again, or jax.clear_caches()"};
  }
  const uint32_t world_size = (site.flat ? attachment_->flat : attachment_->collective)->world_size();
  if (site.world_size != world_size && !site.local) {
    return Failure{"ConfigError", name + " was compiled for " + std::to_string(site.world_size) +
                                      " ranks, but the session has " + std::to_string(world_size) +
                                      ": call jax.clear_caches() after init() with another world size"};
  }
  const auto progress = progress_.find(site.hash);
  if (progress == progress_.end()) return std::nullopt;
  const Progress& last = progress->second;
  const bool same_executable = last.executions == site.executions;
  if (last.open ? !same_executable || call.run_id != last.run_id
                : same_executable && IsLater(last.run_id, call.run_id)) {
    fatal = true;
    return Failure{"ProgramMismatchError",
                   "two executions of one program overlapped at " + name +
                       ": its sums can't be told apart. Run a program that sums over hosts from one thread, and give "
                       "each execution the last one's result"};
  }
  return std::nullopt;
}

void Rendezvous::Arrive(const std::shared_ptr<const Site>& site, Call call) {
  std::unique_lock lock(mutex_);
  bool fatal = false;
  if (const auto failure = Refuse(*site, call, fatal)) {
    lock.unlock();
    if (fatal) FailSession(*failure);
    call.done(&*failure);
    return;
  }
  Progress& progress = progress_[site->hash];
  if (!progress.open) {
    if (progress.executions != site->executions || progress.run_id != call.run_id) progress.next_step = 0;
    progress.executions = site->executions;
    progress.run_id = call.run_id;
    auto gathering = std::make_shared<Gathering>();
    gathering->site = site;
    gathering->collective = site->local ? local_ : site->flat ? attachment_->flat : attachment_->collective;
    gathering->key = {site->hash, progress.next_occurrence++, progress.next_step++};
    gathering->opened_us = MonotonicUs();
    gathering->calls.reserve(site->call_count());
    progress.open = std::move(gathering);
    if (open_count_++ == 0) wake_watch_.notify_all();
  }
  progress.open->calls.push_back(std::move(call));
  if (progress.open->calls.size() < site->call_count()) return;
  auto gathering = std::exchange(progress.open, nullptr);
  --open_count_;
  lock.unlock();
  StartSum(std::move(gathering));
}

void Rendezvous::StartSum(std::shared_ptr<Gathering> gathering) {
  const Site& site = *gathering->site;
  auto& calls = gathering->calls;
  std::stable_sort(calls.begin(), calls.end(), [](const Call& a, const Call& b) { return a.member < b.member; });
  Sum sum{.key = gathering->key, .shape = site.shape, .inputs = {}, .outputs = {}, .done = {}};
  const size_t leaf_count = site.shape->leaf_elements.size();
  sum.inputs.reserve(site.shape->device_count * leaf_count);
  sum.outputs.reserve(site.shape->device_count * leaf_count);
  for (size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    assert(call.inputs.size() == leaf_count && call.outputs.size() == leaf_count);
    if (call.member != calls[i - i % site.replica_count].member ||
        (i > 0 && i % site.replica_count == 0 && call.member == calls[i - 1].member)) {
      const Failure failure{"ProgramMismatchError", "the devices that met at " + site.shape->site_name +
                                                        " don't belong together: members " + Members(calls)};
      FailSession(failure);
      Finish(std::move(gathering), &failure);
      return;
    }
    if (i % site.replica_count != 0) continue;  // carries the same data as the replica before it
    sum.inputs.insert(sum.inputs.end(), call.inputs.begin(), call.inputs.end());
    sum.outputs.insert(sum.outputs.end(), call.outputs.begin(), call.outputs.end());
  }
  Collective& collective = *gathering->collective;
  sum.done = [this, gathering = std::move(gathering)](const Failure* failure) { Finish(gathering, failure); };
  collective.Start(std::move(sum));
}

void Rendezvous::Finish(std::shared_ptr<Gathering> gathering, const Failure* failure) {
  auto complete_all = [this, gathering, failure = failure ? std::optional(*failure) : std::nullopt] {
    std::vector<std::function<void()>> tasks;
    for (Call& call : gathering->calls) {
      tasks.push_back([done = std::move(call.done), failure] { done(failure ? &*failure : nullptr); });
    }
    pool_.Run(std::move(tasks));
  };
  const Site& site = *gathering->site;
  if (failure || site.replica_count == 1) {
    complete_all();
    return;
  }
  pool_.Run([gathering, complete_all = std::move(complete_all)] {
    const Site& site = *gathering->site;
    const size_t element_size = SizeOf(site.shape->dtype);
    auto& calls = gathering->calls;
    for (size_t i = 0; i < calls.size(); ++i) {
      const Call& source = calls[i - i % site.replica_count];
      for (size_t leaf = 0; i % site.replica_count != 0 && leaf < source.outputs.size(); ++leaf) {
        std::memcpy(calls[i].outputs[leaf], source.outputs[leaf], site.shape->leaf_elements[leaf] * element_size);
      }
    }
    complete_all();
  });
}

std::vector<std::shared_ptr<Rendezvous::Gathering>> Rendezvous::TakeOpen() {
  std::vector<std::shared_ptr<Gathering>> open;
  for (auto& [hash, progress] : progress_) {
    if (progress.open) open.push_back(std::exchange(progress.open, nullptr));
  }
  open_count_ = 0;
  return open;
}

void Rendezvous::FailSession(const Failure& failure) {
  std::unique_lock lock(mutex_);
  const auto fail = attachment_ ? attachment_->fail : nullptr;
  const auto open = TakeOpen();
  lock.unlock();
  if (fail) fail(failure);
  for (const auto& gathering : open) Finish(gathering, &failure);
}

void Rendezvous::Watch() {
  std::unique_lock lock(mutex_);
  while (attachment_) {
    if (open_count_ == 0) {
      wake_watch_.wait(lock);
      continue;
    }
    wake_watch_.wait_for(lock, kWatchInterval);
    if (!attachment_ || open_count_ == 0) continue;
    std::optional<Failure> failure;
    const int64_t due_us = MonotonicUs() - static_cast<int64_t>(attachment_->deadline_s * 1e6);
    for (const auto& [hash, progress] : progress_) {
      if (!progress.open || progress.open->opened_us > due_us) continue;
      const Gathering& late = *progress.open;
      failure = Failure{"DeadlineExceededError",
                        late.site->shape->site_name + ": only " + std::to_string(late.calls.size()) + " of " +
                            std::to_string(late.site->call_count()) + " devices of this host came within " +
                            std::to_string(static_cast<int64_t>(attachment_->deadline_s)) + " s (members " +
                            Members(late.calls) + ")"};
      break;
    }
    if (failure) {
      lock.unlock();
      FailSession(*failure);
      lock.lock();
      continue;
    }
    const auto session_failure = attachment_->failure;
    lock.unlock();
    failure = session_failure();
    lock.lock();
    if (failure && attachment_) {
      const auto open = TakeOpen();
      lock.unlock();
      for (const auto& gathering : open) Finish(gathering, &*failure);
      lock.lock();
    }
  }
}

}  // namespace passing
