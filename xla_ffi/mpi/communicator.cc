#include "mpi/communicator.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>

#include "ffi/hash.h"
#include "mpi/exchange.h"
#include "mpi/host_sum.h"
#include "mpi/huge_pages.h"

namespace passing::mpi {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kLook{1};
// A transport whose sum stalls knows more than we do: its own deadline comes first.
constexpr double kGrace_s = 2;
// In place of a call's number.
constexpr int64_t kTransfer = -1;

double Since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

Failure TooLate(const std::string& what, double waited_s) {
  return {"DeadlineExceededError", what + " has waited " + std::to_string(static_cast<int>(waited_s)) +
                                       " s without progress. Other devices may have called something else, or a "
                                       "process may hang: look at the logs of all hosts."};
}

}  // namespace

struct Communicator::Meeting {
  uint64_t number = 0;
  std::vector<Call> calls;  // by local member; of those that came
  std::vector<bool> came;
  size_t missing = 0;
  bool started = false;
  bool summed = false;                  // by the collective
  bool done = false;                    // all outputs are written, or it has failed
  std::optional<Failure> failure;       // once it has started
  std::optional<HostSum> sum;           // the starter's
  std::atomic<Clock::rep> progress{0};  // Clock's time of it
};

struct Communicator::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<uint64_t, std::shared_ptr<Meeting>> gathering;  // by number
  std::optional<Failure> failure;                          // of the communicator, for good
};

Communicator::Communicator(Server& server, Group group, int32_t rank)
    : server_(server), group_(std::move(group)), shared_(std::make_shared<Shared>()) {
  for (int32_t member = 0; member < size(); ++member) {
    if (group_.hosts[member] == rank) local_members_.push_back(member);
  }
}

void Communicator::Join(int32_t member, uint64_t number, const Call& call) {
  const auto found = std::find(local_members_.begin(), local_members_.end(), member);
  assert(found != local_members_.end());
  const auto local = static_cast<size_t>(found - local_members_.begin());

  std::unique_lock lock(shared_->mutex);
  if (shared_->failure) throw Failed(*shared_->failure);
  std::shared_ptr<Meeting>& place = shared_->gathering[number];
  if (!place) {
    place = std::make_shared<Meeting>();
    place->number = number;
    place->calls.resize(local_members_.size());
    place->came.resize(local_members_.size());
    place->missing = local_members_.size();
    place->progress = Clock::now().time_since_epoch().count();
  }
  const std::shared_ptr<Meeting> meeting = place;
  for (size_t other = 0; other < meeting->calls.size(); ++other) {
    if (!meeting->came[other] || meeting->calls[other].signature == call.signature) continue;
    const Failure failure{"ProgramMismatchError",
                          "Devices of this host called different things as call " + std::to_string(number) +
                              " of the " + group_.name + ": member " + std::to_string(local_members_[other]) +
                              " called " + NameOf(meeting->calls[other].signature) + ", member " +
                              std::to_string(member) + " called " + NameOf(call.signature) + "."};
    lock.unlock();
    Fail(failure);
    throw Failed(failure);
  }
  meeting->calls[local] = call;
  meeting->came[local] = true;
  const bool starter = --meeting->missing == 0;
  if (starter) {
    meeting->started = true;
    shared_->gathering.erase(number);
  }
  lock.unlock();
  if (starter) Start(meeting);
  Wait(*meeting, member, NameOf(call.signature), starter);
}

uint64_t Communicator::SiteOf(uint64_t number, const std::string& name) {
  Hash site;
  site.Add("MPI");
  site.Add(static_cast<uint64_t>(group_.id));
  site.Add(name);
  for (size_t i = 0; i < earlier_.size(); ++i) site.Add(earlier_[(number + i) % earlier_.size()]);  // the oldest first
  Hash own;
  own.Add(name);
  earlier_[number % earlier_.size()] = own.value();
  return site.value();
}

void Communicator::Start(const std::shared_ptr<Meeting>& meeting) {
  const auto end = [shared = shared_, meeting](const Failure* failure) {
    const std::lock_guard lock(shared->mutex);
    if (failure) meeting->failure = *failure;
    meeting->summed = true;
    shared->changed.notify_all();
  };
  try {
    const Signature& signature = meeting->calls[0].signature;
    const uint64_t site = SiteOf(meeting->number, NameOf(signature));
    if (signature.count == 0) return end(nullptr);
    HostSum& sum = meeting->sum.emplace(Prepare(meeting->calls, local_members_, size(), group_.host_count));
    const auto progress = [meeting] { meeting->progress = Clock::now().time_since_epoch().count(); };
    if (!sum.parts.empty()) {
      const auto tag = static_cast<int32_t>((site ^ meeting->number) & INT32_MAX);  // hosts that differ never meet
      const int32_t own_host = group_.hosts[static_cast<size_t>(local_members_[0])];
      const auto failure = Exchange(server_, group_, own_host, sum.parts, tag, progress, end);
      if (failure) Fail(*failure);
      return;
    }
    sum.shape.site_name = NameOf(signature) + ", call " + std::to_string(meeting->number) + " of the " + group_.name;
    group_.collective->Start({
        .key = {.site = site, .execution = 0, .step = static_cast<uint32_t>(meeting->number)},
        .shape = std::make_shared<SumShape>(sum.shape),
        .inputs = sum.inputs,
        .outputs = sum.outputs,
        .done = end,
        .written = [progress](uint64_t) { progress(); },
    });
  } catch (const Failed& failed) {
    end(&failed.failure());
  } catch (const std::bad_alloc&) {
    const Failure failure{"PassingError", "This host has too little memory for " + NameOf(meeting->calls[0].signature) +
                                              " over the " + group_.name + "."};
    Fail(failure);  // the other hosts shall not wait for us
    end(&failure);
  }
}

void Communicator::Wait(Meeting& meeting, int32_t member, const std::string& name, bool starter) {
  const std::string what = name + ", call " + std::to_string(meeting.number) + " of the " + group_.name;
  const auto over = [&] { return starter ? meeting.summed : meeting.done || (shared_->failure && !meeting.started); };
  const Clock::time_point begin = Clock::now();
  std::unique_lock lock(shared_->mutex);
  // Also after a failure: until the collective, or the server, says otherwise, it reads and writes the callers' memory.
  while (!shared_->changed.wait_for(lock, kLook, over)) {
    lock.unlock();
    std::optional<Failure> failure;
    try {
      failure = server_.Stalled(group_.id, member, static_cast<int64_t>(meeting.number), what, Since(begin));
    } catch (const Failed& unable) {
      failure = unable.failure();
    }
    const double still_s = Since(Clock::time_point(Clock::duration(meeting.progress)));
    if (!failure && still_s > group_.deadline_s + kGrace_s) failure = TooLate(what, still_s);
    if (failure) Fail(*failure);
    lock.lock();
  }
  if (starter) {
    if (!meeting.failure && meeting.sum && meeting.sum->finish) {
      lock.unlock();
      meeting.sum->finish();
      lock.lock();
    }
    meeting.sum.reset();
    if (meeting.failure && !shared_->failure) shared_->failure = meeting.failure;
    meeting.done = true;
    shared_->changed.notify_all();
  }
  if (meeting.failure || !meeting.done) throw Failed(*shared_->failure);  // the first of all
}

void Communicator::Fail(const Failure& failure) {
  {
    const std::lock_guard lock(shared_->mutex);
    if (!shared_->failure) shared_->failure = failure;
    shared_->changed.notify_all();
  }
  group_.collective->Fail(failure);
}

void Device::CheckMember(int32_t other) const {
  if (other >= 0 && other < size()) return;
  throw Failed("PassingError", "XLA named device " + std::to_string(other) + " of the " + communicator_->group().name +
                                   ", which have " + std::to_string(size()) + ".");
}

PendingTransfer Device::Send(const void* data, size_t bytes, int32_t to, int32_t tag) {
  CheckMember(to);
  PendingTransfer pending;
  pending.communicator_ = communicator_;
  pending.index_ = index_;
  pending.what_ = "send of " + std::to_string(bytes) + " bytes to device " + std::to_string(to) + " of the " +
                  communicator_->group().name;
  pending.transfer_ = std::make_shared<Transfer>(bytes);
  if (bytes > 0) std::memcpy(pending.transfer_->bytes().data(), data, bytes);
  communicator_->server().Send(communicator_->group().id, index_, to, tag, pending.transfer_);
  return pending;
}

PendingTransfer Device::Receive(void* data, size_t bytes, int32_t from, int32_t tag) {
  CheckMember(from);
  PendingTransfer pending;
  pending.communicator_ = communicator_;
  pending.index_ = index_;
  pending.what_ = "receive of " + std::to_string(bytes) + " bytes from device " + std::to_string(from) + " of the " +
                  communicator_->group().name;
  pending.destination_ = data;
  pending.transfer_ = std::make_shared<Transfer>(bytes);
  PreferHugePages(data, bytes);
  communicator_->server().Receive(communicator_->group().id, index_, from, tag, pending.transfer_);
  return pending;
}

void PendingTransfer::Wait() {
  const Group& group = communicator_->group();
  const Clock::time_point begin = Clock::now();
  while (!transfer_->Wait(std::chrono::duration<double>(kLook).count())) {
    const double waited_s = Since(begin);
    auto failure = communicator_->server().Stalled(group.id, index_, kTransfer, what_, waited_s);
    if (!failure && waited_s > group.deadline_s + kGrace_s) failure = TooLate(what_, waited_s);
    if (failure) throw Failed(std::move(*failure));
  }
  if (transfer_->failure()) throw Failed(*transfer_->failure());
  if (destination_) std::memcpy(destination_, transfer_->bytes().data(), transfer_->bytes().size());
}

}  // namespace passing::mpi
