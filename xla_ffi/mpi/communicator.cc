#include "mpi/communicator.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>

#include "ffi/flight_recorder.h"
#include "ffi/naming/hash.h"
#include "host/huge_pages.h"
#include "mpi/exchange.h"
#include "mpi/failures.h"
#include "mpi/work.h"

namespace passing::mpi {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kLook{1};
// A process that looks so rarely instead stood still (SIGSTOP, a paused machine): its patience begins anew.
constexpr std::chrono::seconds kStoodStill{3};
// A transport whose sum stalls knows more than we do: its own deadline comes first.
constexpr double kGrace_s = 2;
// In place of a call's number.
constexpr int64_t kMessage = -1;

std::string Suffix(const std::optional<Origin>& origin) { return origin ? ", which is " + NameOf(*origin) : ""; }

// 31 bits.
int32_t TagOf(Hash& hash) { return static_cast<int32_t>(hash.value() & INT32_MAX); }

// A device waits in a call. It looks now and then whether that is in vain.
class Patience {
 public:
  Patience(Server& server, const Group& group, int32_t index, int64_t number, const std::string& what)
      : server_(server), group_(group), index_(index), number_(number), what_(what) {}

  // Returns why to wait no longer, if so. `call_progress`: when the call itself went on last. Messages that move are
  // progress for whoever waits: one that is to come may be behind them, and so may another device of this host be.
  std::optional<Failure> Look(Clock::time_point call_progress = {}) {
    try {
      const uint64_t moved_bytes = server_.MovedBytes();
      const Clock::time_point looked = std::exchange(looked_, Clock::now());
      if (moved_bytes != moved_bytes_ || looked_ - looked > kStoodStill) progress_ = looked_;
      moved_bytes_ = moved_bytes;
      progress_ = std::max(progress_, call_progress);
      const double still_s = std::chrono::duration<double>(Clock::now() - progress_).count();
      std::optional<Failure> failure = server_.Stalled(group_.id, index_, number_, what_, still_s);
      if (failure || still_s <= group_.deadline_s + kGrace_s) return failure;
      return Failure{"DeadlineExceededError", what_ + " has waited " + std::to_string(static_cast<int>(still_s)) +
                                                  " s without progress. Other devices may have called something else, "
                                                  "or a process may hang: look at the logs of all hosts."};
    } catch (const std::exception&) {
      return CurrentFailure(what_);
    }
  }

 private:
  Server& server_;
  const Group& group_;
  const int32_t index_;
  const int64_t number_;
  const std::string& what_;
  Clock::time_point progress_ = Clock::now();
  Clock::time_point looked_ = progress_;
  uint64_t moved_bytes_ = 0;
};

}  // namespace

struct Communicator::Gathering {
  // For people: "all_reduce sum of float32[1024], call 7 of the 4 devices, from device 0 on, of ranks 0, 1, which is
  // call 0 of execution 3 of program 1".
  std::string what;
  uint64_t number = 0;
  std::optional<uint64_t> recorded;  // the starter's
  std::optional<Origin> origin;
  std::vector<Call> calls;  // by local device; of those that came
  std::vector<bool> came;
  size_t missing = 0;
  bool started = false;
  bool ended = false;                   // the sum or exchange, or it has failed
  bool done = false;                    // all outputs are written, or it has failed
  std::optional<Failure> failure;       // once it has started
  std::optional<Work> work;             // the starter's
  std::atomic<Clock::rep> progress{0};  // Clock's time of it

  void Progress() { progress = Clock::now().time_since_epoch().count(); }
};

struct Communicator::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<uint64_t, std::shared_ptr<Gathering>> gatherings;  // by number
  std::optional<Failure> failure;                             // of the communicator, for good
};

Communicator::Communicator(Server& server, Group group, int32_t rank)
    : server_(server), group_(std::move(group)), shared_(std::make_shared<Shared>()) {
  for (int32_t index = 0; index < size(); ++index) {
    if (group_.hosts[index] == rank) local_devices_.push_back(index);
  }
  host_count_ = static_cast<int32_t>(std::set(group_.hosts.begin(), group_.hosts.end()).size());
}

void Communicator::Collect(int32_t index, uint64_t number, const std::optional<Origin>& origin, const Call& call) {
  const auto found = std::find(local_devices_.begin(), local_devices_.end(), index);
  assert(found != local_devices_.end());
  const auto local = static_cast<size_t>(found - local_devices_.begin());
  const std::string name = NameOf(call.signature);

  std::unique_lock lock(shared_->mutex);
  if (shared_->failure) throw Failed(*shared_->failure);
  std::shared_ptr<Gathering>& known = shared_->gatherings[number];
  if (!known) {
    known = std::make_shared<Gathering>();
    known->what = name + ", call " + std::to_string(number) + " of the " + group_.name + Suffix(origin);
    known->number = number;
    known->origin = origin;
    known->calls.resize(local_devices_.size());
    known->came.resize(local_devices_.size());
    known->missing = local_devices_.size();
  }
  const std::shared_ptr<Gathering> gathering = known;
  for (size_t other = 0; other < gathering->calls.size(); ++other) {
    if (!gathering->came[other]) continue;
    if (gathering->calls[other].signature == call.signature && gathering->origin == origin) continue;
    const Failure failure{"ProgramMismatchError",
                          "Devices of this host called different things as call " + std::to_string(number) +
                              " of the " + group_.name + ": device " + std::to_string(local_devices_[other]) +
                              " called " + NameOf(gathering->calls[other].signature) + Suffix(gathering->origin) +
                              ", device " + std::to_string(index) + " called " + name + Suffix(origin) +
                              ". Dispatch programs with collectives from one thread."};
    lock.unlock();
    Fail(failure);
    throw Failed(failure);
  }
  gathering->calls[local] = call;
  gathering->came[local] = true;
  const bool starter = --gathering->missing == 0;
  if (starter) {
    gathering->started = true;
    gathering->Progress();
    shared_->gatherings.erase(number);
  }
  lock.unlock();
  if (starter) Start(gathering);
  Wait(*gathering, index, starter);
}

uint64_t Communicator::SiteOf(uint64_t number, const std::string& name, uint32_t program) {
  Hash site;
  site.Add("MPI");
  site.Add(static_cast<uint64_t>(group_.id));
  site.Add(name);
  site.Add(program);
  for (size_t i = 0; i < earlier_.size(); ++i) site.Add(earlier_[(number + i) % earlier_.size()]);  // the oldest first
  Hash own;
  own.Add(name);
  own.Add(program);
  earlier_[number % earlier_.size()] = own.value();
  return site.value();
}

void Communicator::Start(const std::shared_ptr<Gathering>& gathering) {
  const auto end = [shared = shared_, gathering](const Failure* failure) {
    const std::lock_guard lock(shared->mutex);
    if (gathering->recorded) FlightRecorder::OfProcess().End(*gathering->recorded, failure);
    if (failure) gathering->failure = *failure;
    gathering->ended = true;
    shared->changed.notify_all();
  };
  try {
    const Signature& signature = gathering->calls[0].signature;
    const auto step = static_cast<uint32_t>(gathering->number);
    const Origin origin = gathering->origin.value_or(Origin{.step = step});
    const uint64_t site = SiteOf(gathering->number, NameOf(signature), origin.program);
    if (signature.count == 0) return end(nullptr);
    Work& work = gathering->work.emplace(WorkFor(gathering->calls, local_devices_, size(), host_count_));
    work.spec.site_name = gathering->what;
    const SumKey key{.site = site, .execution = origin.execution, .step = origin.step};
    gathering->recorded = FlightRecorder::OfProcess().Start(key, work.spec, static_cast<uint32_t>(host_count_));
    if (!work.parts.empty()) {
      Hash tag;  // hosts that differ never meet
      for (const uint64_t each : {site, gathering->number, uint64_t{origin.execution}, uint64_t{origin.step}})
        tag.Add(each);
      const int32_t own_host = group_.hosts[static_cast<size_t>(local_devices_[0])];
      if (const auto failure = Exchange(server_, group_, own_host, work.parts, TagOf(tag), end)) Fail(*failure);
      return;
    }
    group_.collective->Start({
        .key = key,
        .spec = std::make_shared<SumSpec>(work.spec),
        .inputs = work.inputs,
        .outputs = work.outputs,
        .done = end,
        .pieces = Pieces{.written = [gathering](uint64_t) { gathering->Progress(); }},
        .own_rows = work.own_rows,
        .caller_waits = true,
    });
  } catch (const std::exception&) {
    const Failure failure = CurrentFailure(gathering->what);
    Fail(failure);  // the other hosts shall not wait for us
    end(&failure);
  }
}

void Communicator::Wait(Gathering& gathering, int32_t index, bool starter) {
  const auto over = [&] {
    return starter ? gathering.ended : gathering.done || (shared_->failure && !gathering.started);
  };
  Patience patience(server_, group_, index, static_cast<int64_t>(gathering.number), gathering.what);
  std::unique_lock lock(shared_->mutex);
  // Also after a failure: until the collective, or the server, says otherwise, it reads and writes the callers' memory.
  while (!shared_->changed.wait_for(lock, kLook, over)) {
    lock.unlock();
    if (const auto failure = patience.Look(Clock::time_point(Clock::duration(gathering.progress)))) Fail(*failure);
    lock.lock();
  }
  if (starter) {
    if (!gathering.failure && gathering.work && gathering.work->finish) {
      lock.unlock();
      gathering.work->finish();
      lock.lock();
    }
    gathering.work.reset();
    if (gathering.failure && !shared_->failure) shared_->failure = gathering.failure;
    gathering.done = true;
    shared_->changed.notify_all();
  }
  if (gathering.failure || !gathering.done) throw Failed(*shared_->failure);  // the first of all
}

void Communicator::Fail(const Failure& failure) {
  {
    const std::lock_guard lock(shared_->mutex);
    if (!shared_->failure) shared_->failure = failure;
    shared_->changed.notify_all();
  }
  group_.collective->Fail(failure);
}

void Device::CheckIndex(int32_t other) const {
  if (other >= 0 && other < size()) return;
  throw Failed("PassingError", "XLA named device " + std::to_string(other) + " of the " + communicator_->group().name +
                                   ", which have " + std::to_string(size()) + ".");
}

PendingMessage Device::NewMessage(const char* kind, size_t bytes, const char* direction, int32_t other) const {
  CheckIndex(other);
  PendingMessage pending;
  pending.communicator_ = communicator_;
  pending.index_ = index_;
  pending.what_ = std::string(kind) + " of " + std::to_string(bytes) + " bytes " + direction + " device " +
                  std::to_string(other) + " of the " + communicator_->group().name + Suffix(origin_);
  pending.message_ = std::make_shared<Message>(bytes);
  return pending;
}

// Messages of calls that differ never meet.
int32_t Device::Tag(int32_t tag) const {
  if (!origin_) return tag;
  Hash hash;
  for (const uint32_t each : {static_cast<uint32_t>(tag), origin_->program, origin_->execution, origin_->step}) {
    hash.Add(each);
  }
  return TagOf(hash);
}

PendingMessage Device::Send(const void* data, size_t bytes, int32_t to, int32_t tag) {
  PendingMessage pending = NewMessage("send", bytes, "to", to);
  if (bytes > 0) std::memcpy(pending.message_->bytes().data(), data, bytes);
  communicator_->server().Send(communicator_->group().id, index_, to, Tag(tag), pending.message_);
  return pending;
}

PendingMessage Device::Receive(void* data, size_t bytes, int32_t from, int32_t tag) {
  PendingMessage pending = NewMessage("receive", bytes, "from", from);
  pending.destination_ = data;
  PreferHugePages(data, bytes);
  communicator_->server().Receive(communicator_->group().id, index_, from, Tag(tag), pending.message_);
  return pending;
}

void PendingMessage::Wait() {
  Patience patience(communicator_->server(), communicator_->group(), index_, kMessage, what_);
  while (!message_->Wait(std::chrono::duration<double>(kLook).count())) {
    if (auto failure = patience.Look()) throw Failed(std::move(*failure));
  }
  if (message_->failure()) throw Failed(*message_->failure());
  const std::span<uint8_t> bytes = message_->bytes();
  if (destination_ && !bytes.empty()) std::memcpy(destination_, bytes.data(), bytes.size());
}

}  // namespace passing::mpi
