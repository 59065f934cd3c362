#include "ffi/gathering/rendezvous.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "ffi/flight_recorder.h"
#include "net/clock.h"

namespace passing {
namespace {

// How soon open gatherings learn that the session failed, or are past their deadline.
constexpr auto kWatchInterval = std::chrono::milliseconds(200);
// When that takes so long instead, the process stood still (SIGSTOP, a paused machine), and no device could come.
constexpr int64_t kStoodStillUs = 1'200'000;

// The sum that this thread is starting. It may be done before its start returns; then the call that completed the
// gathering ends at once, too.
struct Starting {
  const Gathering* gathering;
  bool done = false;
  std::optional<Failure> failure{};
};
thread_local Starting* starting = nullptr;

}  // namespace

Rendezvous::~Rendezvous() { Detach(); }

Rendezvous& Rendezvous::Get() { return *OfProcess(); }

void Rendezvous::ForgetInChild() {
  NoteFork();
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
  FlightRecorder::OfProcess().BeginSession();
  had_once_.clear();
  failed_.clear();
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
  for (auto& gathering : open) Finish(pool_, gathering, &failure);
  handles_.EndSession();
}

std::optional<Failure> Rendezvous::Refuse(const SumSite& site, const Call& call, bool& fatal) {
  const std::string& name = site.spec->site_name;
  const bool is_of_this_session = seen_.Note(site.executable, call.run_id, attachment_number_);
  if (!attachment_) return NotInitialized(name);
  if (!is_of_this_session) return BeganBefore(name);
  if (const auto failure = RefuseSite(site, *attachment_)) return failure;
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
  const int64_t device = call.device;
  auto gathering = Add(site, std::move(call));
  if (!gathering) return;
  std::vector<int64_t> devices;
  for (const Call& each : gathering->calls) devices.push_back(each.device);
  // Under the lock, so that sums are counted, and programs announced, in the order in which they are complete.
  const auto name = names_->Name(*site, gathering->calls.front().run_id, std::move(devices));
  // By name, not by executable: a host may compile a program anew that the others go on with.
  const auto* key = std::get_if<SumKey>(&name);
  const bool is_over = key && gathering->calls.front().once && !had_once_.insert(key->site).second;
  lock.unlock();
  if (const auto* failure = std::get_if<Failure>(&name)) {
    FailSession(*failure);
    Finish(pool_, gathering, failure);
  } else if (is_over) {
    Finish(pool_, gathering, nullptr);
  } else {
    StartSum(gathering, std::get<SumKey>(name), device);
  }
}

void Rendezvous::Visit(const std::shared_ptr<const Executable>& executable, int32_t run_id, int64_t device) {
  std::lock_guard lock(mutex_);
  if (names_) names_->Visit(executable, run_id, device);
}

std::shared_ptr<Gathering> Rendezvous::Add(const std::shared_ptr<const SumSite>& site, Call call) {
  // A sum may come before all visits of its execution.
  if (site->executable->visits) names_->Visit(site->executable, call.run_id, call.device);
  auto& alike = open_[site->hash];  // one, or those of a program that was compiled for several sets of devices
  auto it = std::find_if(alike.begin(), alike.end(), [&](const auto& gathering) { return gathering->site == site; });
  if (it == alike.end()) {
    auto gathering = std::make_shared<Gathering>();
    gathering->site = site;
    gathering->collective = attachment_->CollectiveOf(*site);
    gathering->rank = attachment_->rank;
    gathering->opened_us = MonotonicUs();
    gathering->calls.reserve(site->call_count());
    it = alike.insert(alike.end(), std::move(gathering));
  }
  (*it)->calls.push_back(std::move(call));
  if (!(*it)->is_complete()) {
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
  if (!attachment_) return std::nullopt;
  return Attached{.number = attachment_number_,
                  .first_device_id = attachment_->first_device_id,
                  .rank = attachment_->rank,
                  .world_size = attachment_->collective->world_size()};
}

std::vector<Rendezvous::OpenGathering> Rendezvous::open() {
  std::lock_guard lock(mutex_);
  return open_.empty() ? failed_ : DescribeOpen();
}

std::vector<Rendezvous::OpenGathering> Rendezvous::DescribeOpen() const {
  std::vector<OpenGathering> found;
  for (const auto& [hash, alike] : open_) {
    for (const auto& each : alike) {
      found.push_back({each->site->spec->site_name, each->calls.size(), each->site->call_count(), each->opened_us});
    }
  }
  return found;
}

void Rendezvous::StartSum(const std::shared_ptr<Gathering>& gathering, const SumKey& key, int64_t device) {
  auto made = MakeSum(gathering, key);
  if (const auto* failure = std::get_if<Failure>(&made)) {
    FailSession(*failure);
    Finish(pool_, gathering, failure);
    return;
  }
  Sum& sum = std::get<Sum>(made);
  const auto staged = gathering->calls.front().staged;
  sum.caller_waits = !staged;
  for (Call& call : gathering->calls) {
    if (!call.started) continue;
    sum.caller_waits = false;
    pool_.Run(std::exchange(call.started, nullptr));
  }
  const uint64_t recorded =
      FlightRecorder::OfProcess().Start(key, *sum.spec, gathering->collective->world_size(), gathering->opened_us);
  sum.done = [this, gathering, recorded](const Failure* failure) {
    FlightRecorder::OfProcess().End(recorded, failure);
    if (starting == nullptr || starting->gathering != gathering.get()) return Finish(pool_, gathering, failure);
    starting->done = true;
    if (failure) starting->failure = *failure;
  };
  if (staged) return staged->Start(gathering, std::move(sum));
  Starting here{.gathering = gathering.get()};
  starting = &here;
  gathering->collective->Start(std::move(sum));
  starting = nullptr;
  if (here.done) Finish(pool_, gathering, here.failure ? &*here.failure : nullptr, device);
}

std::vector<std::shared_ptr<Gathering>> Rendezvous::TakeOpen() {
  if (!open_.empty()) failed_ = DescribeOpen();
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
  for (const auto& gathering : open) Finish(pool_, gathering, &failure);
}

void Rendezvous::Watch() {
  std::unique_lock lock(mutex_);
  int64_t looked_us = 0;
  while (attachment_) {
    if (open_.empty()) {
      watch_idle_ = true;
      wake_watch_.wait(lock);
      continue;
    }
    wake_watch_.wait_for(lock, kWatchInterval);
    if (!attachment_ || open_.empty()) continue;
    std::optional<Failure> failure;
    // It was to look soon after the last time, or after the first of these was opened while it was idle.
    int64_t since_us = INT64_MAX;
    for (const auto& [hash, alike] : open_) {
      for (const auto& gathering : alike) since_us = std::min(since_us, gathering->opened_us);
    }
    since_us = std::max(since_us, looked_us);
    const int64_t now_us = looked_us = MonotonicUs();
    const int64_t passed_us = now_us - since_us;
    if (passed_us > kStoodStillUs) {
      for (const auto& [hash, alike] : open_) {
        // Some may have been opened after that time.
        for (const auto& gathering : alike) gathering->opened_us = std::min(gathering->opened_us + passed_us, now_us);
      }
    }
    const int64_t due_us = MonotonicUs() - static_cast<int64_t>(attachment_->deadline_s * 1e6);
    for (const auto& [hash, alike] : open_) {
      for (const auto& late : alike) {
        if (late->opened_us <= due_us) failure = TooLate(*late, attachment_->deadline_s);
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
      for (const auto& gathering : open) Finish(pool_, gathering, &*failure);
      lock.lock();
    }
  }
}

}  // namespace passing
