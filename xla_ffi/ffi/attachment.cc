#include "ffi/attachment.h"

#include <atomic>
#include <string>

#include "ffi/naming/sum_names.h"

namespace passing {
namespace {

std::atomic<bool> is_forked = false;

}  // namespace

bool SeenExecutions::Note(const std::shared_ptr<const Executable>& executable, int32_t run_id, uint64_t attachment) {
  auto last = last_.find(executable);
  if (last == last_.end()) {
    std::erase_if(last_, [](const auto& each) { return each.first.expired(); });
    last = last_.emplace(executable, Last{attachment, run_id}).first;
  } else if (IsLater(run_id, last->second.run_id)) {
    last->second = {attachment, run_id};
  }
  return last->second.attachment == attachment;
}

Failure NotInitialized(const std::string& what) {
  if (is_forked) {
    return {"PassingError",
            "this process was forked from one with a session, whose threads exist only there, and can't run " + what +
                ": start it with the method 'spawn' of multiprocessing instead"};
  }
  return {"UsageError", "no session: call jax_passing.init() before running " + what};
}

Failure BeganBefore(const std::string& site_name) {
  return {"ClosedError", "this execution of " + site_name + " began before the session did"};
}

void NoteFork() { is_forked = true; }

Failure ShutDown() { return {"ClosedError", "the session was shut down while sums were under way"}; }

std::optional<Failure> RefuseSite(const SumSite& site, const Attachment& attachment) {
  const std::string& name = site.spec->site_name;
  const auto& collective = attachment.CollectiveOf(site);
  if (!collective) {
    return Failure{"ConfigError", name +
                                      " was compiled for strategy 'flat', which this session doesn't know: call "
                                      "jax_passing.init(strategy='flat') again, or compile it again in this session"};
  }
  const uint32_t world_size = collective->world_size();
  if (site.spec->world_size != kAnyWorldSize && site.spec->world_size != world_size) {
    return Failure{"ConfigError", name + " was compiled for " + std::to_string(site.spec->world_size) +
                                      " ranks, but the session has " + std::to_string(world_size) +
                                      ": compile it again in this session"};
  }
  const uint32_t most = MaxRanksOf(site.spec->wire_dtype);
  if (world_size > most) {
    return Failure{"ConfigError", name + ": with wire_dtype='" + std::string(NameOf(site.spec->wire_dtype)) +
                                      "' at most " + std::to_string(most) +
                                      " ranks can be summed, and the session has " + std::to_string(world_size) +
                                      ". Use a wire_dtype of more bits, or 'full', for a sum over all of them"};
  }
  return std::nullopt;
}

}  // namespace passing
