#include "ffi/rendezvous.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "net/clock.h"

namespace passing {
namespace {

// How soon open gatherings learn that the session failed, or are past their deadline.
constexpr auto kWatchInterval = std::chrono::milliseconds(200);

std::string Members(const std::vector<Call>& calls) {
  std::vector<int64_t> members;
  for (const Call& call : calls) members.push_back(call.member);
  return Joined(members);
}

// A device may compute for as long as it likes before it comes, by itself under lax.cond or in a host callback, and no
// device can tell that from one that never will. So this is the session's deadline and nothing shorter, even though
// XLA aborts the process 40 s after one of the devices began to wait in a collective of its own: only a deadline below
// that comes first.
Failure TooLate(const SumSite& site, const std::vector<Call>& calls, double deadline_s) {
  return {"DeadlineExceededError", site.shape->site_name + ": only " + std::to_string(calls.size()) + " of " +
                                       std::to_string(site.call_count()) + " devices of this host came within " +
                                       std::to_string(static_cast<int64_t>(deadline_s)) + " s (members " +
                                       Members(calls) + ")"};
}

std::atomic<bool> is_forked = false;

Failure ShutDown() { return {"ClosedError", "the session was shut down while sums were under way"}; }

}  // namespace

Failure NotInitialized(const std::string& what) {
  if (is_forked) {
    return {"PassingError",
            "this process was forked from one with a session, whose threads exist only there, and can't run " + what +
                ": start it with the method 'spawn' of multiprocessing instead"};
  }
  return {"NotInitializedError", "no session: call jax_passing.init() before running " + what};
}

Failure BeganBefore(const std::string& site_name) {
  return {"ClosedError", "this execution of " + site_name + " began before the session did"};
}

Rendezvous::~Rendezvous() { Detach(); }

Rendezvous& Rendezvous::Get() { return *OfProcess(); }

void Rendezvous::ForgetInChild() {
  is_forked = true;
  OfProcess() = new Rendezvous(CompletionPool::Get());
}

std::atomic<Rendezvous*>& Rendezvous::OfProcess() {
  static std::atomic<Rendezvous*> rendezvous = new Rendezvous(CompletionPool::Get());
  return rendezvous;
}

bool Rendezvous::Attach(Attachment attachment) {
  std::lock_guard lock(mutex_);
  if (attachment_) return false;
  attachment_ = std::move(attachment);
  names_.emplace(*attachment_->collective, attachment_->first_device_id);
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
    names_.reset();
    watch = std::move(watch_);
    wake_watch_.notify_all();
  }
  watch.join();
  const Failure failure = ShutDown();
  for (auto& gathering : open) Finish(std::move(gathering), &failure);
}

std::optional<Failure> Rendezvous::Refuse(const SumSite& site, const Call& call, bool& fatal) {
  const std::string& name = site.shape->site_name;
  const auto is_new = !last_executions_.contains(site.executable);
  if (is_new) std::erase_if(last_executions_, [](const auto& each) { return each.first.expired(); });
  LastExecution& last = last_executions_[site.executable];
  const bool seen = !is_new && !IsLater(call.run_id, last.run_id);
  if (!seen) last = {attachment_number_, call.run_id};  // without an attachment it is the number of the one before
  if (!attachment_) return NotInitialized(name);
  if (last.attachment != attachment_number_) return BeganBefore(name);
  if (site.flat && !attachment_->flat) {
    return Failure{"ConfigError", name +
                                      " was compiled for strategy 'flat', which this session doesn't know: call "
                                      "jax_passing.init(strategy='flat') again, or compile it again in this session"};
  }
  const uint32_t world_size = (site.flat ? attachment_->flat : attachment_->collective)->world_size();
  if (site.world_size != kAnyWorldSize && site.world_size != world_size) {
    return Failure{"ConfigError", name + " was compiled for " + std::to_string(site.world_size) +
                                      " ranks, but the session has " + std::to_string(world_size) +
                                      ": compile it again in this session"};
  }
  fatal = true;
  if (site.executable->refused) return site.executable->refused;
  const auto open = open_.find(site.hash);
  if (open == open_.end()) return std::nullopt;
  for (const auto& gathering : open->second) {
    const auto& calls = gathering->calls;
    if ((gathering->site.get() == &site && calls.front().run_id != call.run_id) ||
        std::any_of(calls.begin(), calls.end(), [&](const Call& other) { return other.device == call.device; })) {
      return Overlapped(name);
    }
  }
  return std::nullopt;
}

void Rendezvous::Arrive(const std::shared_ptr<const SumSite>& site, Call call) {
  std::unique_lock lock(mutex_);
  bool fatal = false;
  if (const auto failure = Refuse(*site, call, fatal)) {
    lock.unlock();
    if (fatal) FailSession(*failure);
    call.done(&*failure);
    return;
  }
  auto gathering = Join(site, std::move(call));
  if (!gathering) return;
  std::vector<int64_t> devices;
  for (const Call& each : gathering->calls) devices.push_back(each.device);
  // Under the lock, so that sums are counted, and programs announced, in the order in which they are complete.
  const auto name = names_->Name(*site, gathering->calls.front().run_id, std::move(devices));
  lock.unlock();
  if (const auto* failure = std::get_if<Failure>(&name)) {
    FailSession(*failure);
    Finish(std::move(gathering), failure);
  } else {
    StartSum(std::move(gathering), std::get<SumKey>(name));
  }
}

void Rendezvous::Visit(const std::shared_ptr<const Executable>& executable, int32_t run_id, int64_t device) {
  std::lock_guard lock(mutex_);
  if (names_) names_->Visit(executable, run_id, device);
}

std::shared_ptr<Rendezvous::Gathering> Rendezvous::Join(const std::shared_ptr<const SumSite>& site, Call call) {
  // A sum may come before all visits of its execution.
  if (site->executable->visits) names_->Visit(site->executable, call.run_id, call.device);
  auto& alike = open_[site->hash];  // one, or those of a program that was compiled for several sets of devices
  auto it = std::find_if(alike.begin(), alike.end(), [&](const auto& gathering) { return gathering->site == site; });
  if (it == alike.end()) {
    auto gathering = std::make_shared<Gathering>();
    gathering->site = site;
    gathering->collective = site->flat ? attachment_->flat : attachment_->collective;
    gathering->opened_us = MonotonicUs();
    gathering->calls.reserve(site->call_count());
    it = alike.insert(alike.end(), std::move(gathering));
  }
  (*it)->calls.push_back(std::move(call));
  if ((*it)->calls.size() < site->call_count()) {
    if (std::exchange(watch_idle_, false)) wake_watch_.notify_all();
    return nullptr;
  }
  auto complete = std::move(*it);
  alike.erase(it);
  if (alike.empty()) open_.erase(site->hash);
  return complete;
}

std::optional<Failure> Rendezvous::failure() {
  std::unique_lock lock(mutex_);
  if (!attachment_) return ShutDown();
  const auto session_failure = attachment_->failure;
  lock.unlock();
  return session_failure();
}

std::optional<Rendezvous::Attached> Rendezvous::attached() {
  std::lock_guard lock(mutex_);
  return attachment_ ? std::optional(Attached{attachment_number_, attachment_->first_device_id}) : std::nullopt;
}

std::optional<uint32_t> Rendezvous::rank() {
  std::lock_guard lock(mutex_);
  return attachment_ ? std::optional(attachment_->rank) : std::nullopt;
}

std::optional<uint32_t> Rendezvous::world_size() {
  std::lock_guard lock(mutex_);
  return attachment_ ? std::optional(attachment_->collective->world_size()) : std::nullopt;
}

void Rendezvous::StartSum(std::shared_ptr<Gathering> gathering, const SumKey& key) {
  const SumSite& site = *gathering->site;
  auto& calls = gathering->calls;
  std::stable_sort(calls.begin(), calls.end(), [](const Call& a, const Call& b) { return a.member < b.member; });
  Sum sum{.key = key, .shape = site.shape, .inputs = {}, .outputs = {}, .done = {}};
  const size_t leaf_count = site.shape->leaf_elements.size();
  sum.inputs.reserve(site.shape->device_count * leaf_count);
  sum.outputs.reserve(site.shape->device_count * leaf_count);
  for (size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    assert(call.inputs.size() == leaf_count && call.outputs.size() == leaf_count);
    if (call.member != calls[i - i % site.replica_count].member ||
        (i > 0 && i % site.replica_count == 0 && call.member == calls[i - 1].member) ||
        (site.slice_count > 1 && call.inputs != calls.front().inputs)) {
      const Failure failure{"ProgramMismatchError", "the devices that met at " + site.shape->site_name +
                                                        " don't belong together: members " + Members(calls)};
      FailSession(failure);
      Finish(std::move(gathering), &failure);
      return;
    }
    if (i % site.replica_count != 0) continue;  // carries the same data as the replica before it
    if (i % site.slice_count != 0) continue;    // its slice stands in the same buffers
    sum.inputs.insert(sum.inputs.end(), call.inputs.begin(), call.inputs.end());
    sum.outputs.insert(sum.outputs.end(), call.outputs.begin(), call.outputs.end());
  }
  // Each of the calls asks, or none; of replicas the first one alone is told.
  if (calls.front().written) {
    sum.written = [gathering](uint64_t elements) {
      const SumSite& site = *gathering->site;
      for (size_t i = 0; i < gathering->calls.size(); i += site.replica_count) {
        const uint64_t first = site.slice_elements * i;
        if (elements <= first) return;
        const uint64_t its_own = elements - first;
        gathering->calls[i].written(site.slice_count > 1 ? std::min(its_own, site.slice_elements) : its_own);
      }
    };
  }
  if (!calls.front().await_inputs) {
    sum.done = [this, gathering](const Failure* failure) { Finish(gathering, failure); };
    gathering->collective->Start(std::move(sum));
    return;
  }
  const auto started = std::make_shared<std::promise<void>>(), done = std::make_shared<std::promise<void>>();
  sum.done = [this, gathering, done](const Failure* failure) {
    Finish(gathering, failure);
    done->set_value();
  };
  auto before = TakeTurn(*gathering, {started->get_future().share(), done->get_future().share()});
  pool_.Run([this, gathering = std::move(gathering), sum = std::move(sum), before = std::move(before), started] {
    StartAsInputsCome(gathering, sum, before, *started);
  });
}

void Rendezvous::StartAsInputsCome(const std::shared_ptr<Gathering>& gathering, Sum sum,
                                   const std::vector<std::shared_future<void>>& before, std::promise<void>& started) {
  const SumSite& site = *gathering->site;
  auto& calls = gathering->calls;
  const uint64_t all = sum.shape->elements();
  std::vector<uint64_t> ready(calls.size());  // elements of each call
  // Where every call has all elements, what can be read is what has come from all of them. Slices follow one another,
  // so it ends in the first one that isn't there as a whole.
  const auto count = [&] {
    if (site.slice_count == 1) return *std::min_element(ready.begin(), ready.end());
    uint64_t elements = 0;
    for (const uint64_t its_own : ready) {
      elements += its_own;
      if (its_own < site.slice_elements) break;
    }
    return std::min(elements, all);
  };
  // Blocks until the call has more, if that is what the others wait for.
  const auto await_more = [&](uint64_t elements) -> std::optional<Failure> {
    for (size_t i = 0; i < ready.size(); ++i) {
      if (site.slice_count == 1 ? ready[i] > elements : elements / site.slice_elements != i) continue;
      if (auto failure = calls[i].await_inputs(ready[i])) return failure;
    }
    return std::nullopt;
  };
  std::optional<Failure> failure;
  for (size_t i = 0; i < ready.size() && !failure; ++i) failure = calls[i].await_inputs(ready[i]);
  for (const auto& each : before) each.wait();
  if (failure) {
    FailSession(*failure);
    sum.done(&*failure);
    started.set_value();
    return;
  }
  const SumKey key = sum.key;
  sum.ready_elements = count();
  gathering->collective->Start(std::move(sum));
  started.set_value();
  while (count() < all) {
    failure = await_more(count());
    if (failure) {
      FailSession(*failure);
      gathering->collective->Fail(*failure);  // the session may be over
      return;
    }
    gathering->collective->Ready(key, count());
  }
}

std::vector<std::shared_future<void>> Rendezvous::TakeTurn(const Gathering& gathering, const Turn& turn) {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_future<void>> before;
  for (const Call& call : gathering.calls) {
    Line& line = lines_[call.device];
    if (line.started.valid()) before.push_back(line.started);
    const bool same_execution =
        line.executable == gathering.site->executable.get() && line.run_id == gathering.calls.front().run_id;
    if (!same_execution || gathering.site->overlap_group != line.overlap_group) {
      if (same_execution) before.insert(before.end(), line.done.begin(), line.done.end());
      line.done.clear();
    }
    line.executable = gathering.site->executable.get();
    line.run_id = gathering.calls.front().run_id;
    line.overlap_group = gathering.site->overlap_group;
    line.started = turn.started;
    line.done.push_back(turn.done);
  }
  return before;
}

void Rendezvous::Finish(std::shared_ptr<Gathering> gathering, const Failure* failure) {
  auto complete_all = [this, gathering, failure = failure ? std::optional(*failure) : std::nullopt] {
    std::vector<std::function<void()>> tasks;
    for (Call& call : gathering->calls) {
      tasks.push_back([done = std::move(call.done), failure] { done(failure ? &*failure : nullptr); });
    }
    pool_.Run(std::move(tasks));
  };
  const SumSite& site = *gathering->site;
  if (failure || site.replica_count == 1) {
    complete_all();
    return;
  }
  pool_.Run([gathering, complete_all = std::move(complete_all)] {
    const SumSite& site = *gathering->site;
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
  for (auto& [hash, alike] : open_) open.insert(open.end(), alike.begin(), alike.end());
  open_.clear();
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
    if (open_.empty()) {
      watch_idle_ = true;
      wake_watch_.wait(lock);
      continue;
    }
    wake_watch_.wait_for(lock, kWatchInterval);
    if (!attachment_ || open_.empty()) continue;
    std::optional<Failure> failure;
    const int64_t due_us = MonotonicUs() - static_cast<int64_t>(attachment_->deadline_s * 1e6);
    for (const auto& [hash, alike] : open_) {
      for (const auto& late : alike) {
        if (late->opened_us <= due_us) failure = TooLate(*late->site, late->calls, attachment_->deadline_s);
      }
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
      // Not by FailSession, which fails all transports: under strategy flat the session does that, as only it knows
      // which host a rank is of.
      const auto open = TakeOpen();
      lock.unlock();
      for (const auto& gathering : open) Finish(gathering, &*failure);
      lock.lock();
    }
  }
}

}  // namespace passing
