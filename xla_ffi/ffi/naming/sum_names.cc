#include "ffi/naming/sum_names.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ffi/naming/hash.h"

namespace passing {
namespace {

Failure TooMany(const std::string& name, size_t max_names) {
  return {"UsageError", name + ": this session has run programs with " + std::to_string(max_names) +
                            " different sums, and can't count any more of them. Something compiles ever new "
                            "programs, of new shapes or new functions: reuse them, or now and then shut the "
                            "session down (session.shutdown()) and call jax_passing.init again, on all hosts"};
}

// Executions on CPU devices and on GPUs aren't in one order.
Failure OnBoth(const std::string& site_name) {
  return {"ProgramMismatchError",
          "the program of " + site_name +
              " ran on CPU devices of this host and on its GPUs in one session, and other hosts can't tell these "
              "executions apart. Run it on one kind, or give the function another name for the other"};
}

}  // namespace

Failure Overlapped(const std::string& site_name) {
  return {"ProgramMismatchError",
          "two executions of one program overlapped at " + site_name +
              ": its sums can't be told apart. Run a program that sums over hosts from one thread, and give each "
              "execution the last one's result"};
}

std::string Joined(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers) {
    if (!text.empty()) text += ',';
    text += std::to_string(number);
  }
  return text;
}

void SumNames::Executions::Begin(const Execution& execution) {
  if (last.executable) ++count;
  last = execution;
  sums = 0;
}

void SumNames::Visit(const std::shared_ptr<const Executable>& executable, int32_t run_id, int64_t device) {
  const std::pair key{executable->hash, device};
  if (with_visits_.size() >= max_names_ && !with_visits_.contains(key)) return;  // its sums will be refused
  const Execution now{executable, run_id};
  Executions& executions = with_visits_[key];
  if (executions.last != now) executions.Begin(now);  // else it has several loops, branches or sums
}

std::variant<SumKey, Failure> SumNames::Name(const SumSite& site, int32_t run_id, std::vector<int64_t> devices) {
  const Execution now{site.executable, run_id};
  const auto& executable = now.executable;
  std::sort(devices.begin(), devices.end());
  const int64_t first_device = devices.front();
  for (int64_t& device : devices) device -= first_device_id_;
  uint64_t name = site.hash;
  if (executable->program.devices.empty()) {  // else the hash covers what is said there
    Hash hash;
    hash.Add(site.hash);
    for (const int64_t device : devices) hash.Add(static_cast<uint64_t>(device));
    name = hash.value();
  }
  if (by_name_.size() >= max_names_ && !by_name_.contains(name)) return TooMany(site.spec->site_name, max_names_);
  const auto [found, is_new] = by_name_.try_emplace(name);
  if (is_new) {
    ProgramInfo program = executable->program;
    if (program.devices.empty()) program.devices = Joined(devices);
    Hash hash;
    hash.Add(executable->hash);
    hash.Add(program.devices);
    if (announced_.insert(hash.value()).second) session_.Announce(program);
  }
  Executions& executions = found->second;
  if (executions.last != now) {
    if (executions.last.executable && executions.last.executable->platform != executable->platform) {
      return OnBoth(site.spec->site_name);
    }
    if (executions.last.executable == executable && IsLater(executions.last.run_id, run_id)) {
      return Overlapped(site.spec->site_name);
    }
    executions.Begin(now);
    if (executable->visits) {
      // The visits of one device count: each device visits by itself.
      const auto visits = with_visits_.find({executable->hash, first_device});
      if (visits == with_visits_.end()) return TooMany(executable->program.name, max_names_);
      if (visits->second.last != now) return Overlapped(site.spec->site_name);
      executions.count = visits->second.count;
    }
  }
  return SumKey{name, executions.count, executions.sums++};
}

}  // namespace passing
