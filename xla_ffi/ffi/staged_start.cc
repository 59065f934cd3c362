#include "ffi/staged_start.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace passing {

void StagedStarts::Start(std::shared_ptr<Gathering> gathering, Sum sum) {
  const auto started = std::make_shared<std::promise<void>>(), done = std::make_shared<std::promise<void>>();
  sum.done = [its_own = std::move(sum.done), done](const Failure* failure) {
    its_own(failure);
    done->set_value();
  };
  auto before = TakeTurn(*gathering, {started->get_future().share(), done->get_future().share()});
  pool_.Run([this, gathering = std::move(gathering), sum = std::move(sum), before = std::move(before), started] {
    StartAsInputsCome(*gathering, sum, before, *started);
  });
}

void StagedStarts::StartAsInputsCome(const Gathering& gathering, Sum sum,
                                     const std::vector<std::shared_future<void>>& before, std::promise<void>& started) {
  const SumSite& site = *gathering.site;
  auto& calls = gathering.calls;
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
    fail_session_(*failure);
    sum.done(&*failure);
    started.set_value();
    return;
  }
  const SumKey key = sum.key;
  sum.ready_elements = count();
  gathering.collective->Start(std::move(sum));
  started.set_value();
  while (count() < all) {
    failure = await_more(count());
    if (failure) {
      fail_session_(*failure);
      gathering.collective->Fail(*failure);  // the session may be over
      return;
    }
    gathering.collective->Ready(key, count());
  }
}

std::vector<std::shared_future<void>> StagedStarts::TakeTurn(const Gathering& gathering, const Turn& turn) {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_future<void>> before;
  for (const Call& call : gathering.calls) {
    DeviceQueue& queue = queues_[call.device];
    if (queue.started.valid()) before.push_back(queue.started);
    const bool same_execution =
        queue.executable == gathering.site->executable.get() && queue.run_id == gathering.calls.front().run_id;
    if (!same_execution || gathering.site->overlap_group != queue.overlap_group) {
      if (same_execution) before.insert(before.end(), queue.done.begin(), queue.done.end());
      queue.done.clear();
    }
    queue.executable = gathering.site->executable.get();
    queue.run_id = gathering.calls.front().run_id;
    queue.overlap_group = gathering.site->overlap_group;
    queue.started = turn.started;
    queue.done.push_back(turn.done);
  }
  return before;
}

}  // namespace passing
