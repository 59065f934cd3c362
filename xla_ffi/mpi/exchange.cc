#include "mpi/exchange.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "mpi/failures.h"
#include "mpi/message.h"

namespace passing::mpi {
namespace {

// Devices of one host that follow one another: their parts lie together.
struct Run {
  int32_t host;
  int32_t first;
  int32_t end;
};

std::vector<Run> RunsOf(const std::vector<int32_t>& hosts) {
  std::vector<Run> runs;
  for (int32_t index = 0; index < static_cast<int32_t>(hosts.size()); ++index) {
    if (runs.empty() || runs.back().host != hosts[index]) runs.push_back({hosts[index], index, index});
    runs.back().end = index + 1;
  }
  return runs;
}

// Counts the messages that aren't done, and is done with the last of them.
class Countdown {
 public:
  explicit Countdown(std::function<void(const Failure*)> done) : done_(std::move(done)) {}

  std::shared_ptr<Message> Add(const std::shared_ptr<Countdown>& self, std::span<uint8_t> bytes) {
    const std::lock_guard lock(mutex_);
    ++count_;
    return std::make_shared<Message>(bytes, [self](const std::optional<Failure>& failure) { self->Done(failure); });
  }
  void Done(const std::optional<Failure>& failure) {
    {
      const std::lock_guard lock(mutex_);
      if (failure && !failure_) failure_ = failure;
      if (--count_ > 0) return;
    }
    done_(failure_ ? &*failure_ : nullptr);
  }

 private:
  const std::function<void(const Failure*)> done_;
  std::mutex mutex_;
  size_t count_ = 1;  // the one who adds
  std::optional<Failure> failure_;
};

}  // namespace

std::optional<Failure> Exchange(Server& server, const Group& group, int32_t own_host, std::span<uint8_t> whole,
                                int32_t tag, std::function<void(const Failure*)> done) {
  const std::vector<Run> runs = RunsOf(group.hosts);
  const uint64_t part = whole.size() / group.hosts.size();
  // A host's first device stands for it. The hosts after this one come first, so that no host is sent to by all at
  // once.
  std::map<int64_t, int32_t> others;
  int32_t own_first = -1;
  for (const Run& run : runs) {
    if (run.host != own_host) others.emplace(run.host + (run.host < own_host ? int64_t{1} << 32 : 0), run.first);
    if (run.host == own_host && own_first < 0) own_first = run.first;
  }
  const auto countdown = std::make_shared<Countdown>(std::move(done));
  const auto message_of = [&](const Run& run) {
    return countdown->Add(countdown, whole.subspan(run.first * part, (run.end - run.first) * part));
  };
  std::optional<Failure> failure;
  try {
    for (const Run& run : runs) {
      if (run.host != own_host) server.Receive(group.id, own_first, run.first, tag, message_of(run));
    }
    for (const auto& [_, to] : others) {
      for (const Run& run : runs) {
        if (run.host == own_host) server.Send(group.id, run.first, to, tag, message_of(run));
      }
    }
  } catch (const std::exception&) {
    failure = CurrentFailure("an exchange over the " + group.name);
  }
  countdown->Done(failure);
  return failure;
}

}  // namespace passing::mpi
