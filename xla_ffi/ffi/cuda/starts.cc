#include "ffi/cuda/starts.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "ffi/cuda/spec.h"

namespace passing {

namespace {

StagedInputs& StagedOf(const Call& call) { return static_cast<StagedInputs&>(*call.staged); }

// Tells each call what of its own is written; of replicas the first one alone. They follow one another if they are
// slices.
void TellWritten(const Gathering& gathering, uint64_t elements) {
  const CudaSpec& spec = CudaSpecOf(*gathering.site);
  for (size_t i = 0; i < gathering.calls.size(); i += spec.replica_count) {
    const uint64_t first = spec.slice_elements * i;
    if (elements <= first) return;
    const uint64_t its_own = elements - first;
    StagedOf(gathering.calls[i]).written(spec.slice_elements ? std::min(its_own, spec.slice_elements) : its_own);
  }
}

// Makes a sum of slices that of one device, whose buffers they share. Returns whether they do.
bool JoinSlices(const Gathering& gathering, Sum& sum) {
  const auto& calls = gathering.calls;
  const CudaSpec& spec = CudaSpecOf(*gathering.site);
  if (spec.slice_elements == 0) return true;
  sum.inputs = calls.front().inputs;
  sum.outputs = calls.front().outputs;
  if (spec.dtype_brought() != spec.dtype) {
    auto widened = std::make_shared<SumSpec>(spec);
    widened->dtype = spec.dtype_brought();
    sum.spec = std::move(widened);
  }
  return std::all_of(calls.begin(), calls.end(), [&](const Call& call) { return call.inputs == sum.inputs; });
}

}  // namespace

void StagedInputs::Start(std::shared_ptr<Gathering> gathering, Sum sum) {
  starts->Start(std::move(gathering), std::move(sum));
}

void StagedStarts::Start(std::shared_ptr<Gathering> gathering, Sum sum) {
  if (!JoinSlices(*gathering, sum)) {
    const Failure failure = DontBelongTogether(*gathering);
    fail_session_(failure);
    sum.done(&failure);
    return;
  }
  sum.pieces.emplace().written = [gathering](uint64_t elements) { TellWritten(*gathering, elements); };
  const auto started = std::make_shared<std::promise<void>>(), done = std::make_shared<std::promise<void>>();
  sum.done = [its_own = std::move(sum.done), done](const Failure* failure) {
    its_own(failure);
    done->set_value();
  };
  auto before = TakeTurn(*gathering, {started->get_future().share(), done->get_future().share()});
  pool_.Run([self = shared_from_this(), gathering = std::move(gathering), sum = std::move(sum),
             before = std::move(before), started] { self->StartAsInputsCome(*gathering, sum, before, *started); });
}

void StagedStarts::StartAsInputsCome(const Gathering& gathering, Sum sum,
                                     const std::vector<std::shared_future<void>>& before, std::promise<void>& started) {
  const CudaSpec& spec = CudaSpecOf(*gathering.site);
  auto& calls = gathering.calls;
  const uint64_t all = sum.spec->elements();
  std::vector<uint64_t> ready(calls.size());  // elements of each call
  // Where every call has all elements, what can be read is what has come from all of them. Slices follow one another,
  // so it ends in the first one that isn't there as a whole.
  const auto count = [&] {
    if (spec.slice_elements == 0) return *std::min_element(ready.begin(), ready.end());
    uint64_t elements = 0;
    for (const uint64_t its_own : ready) {
      elements += its_own;
      if (its_own < spec.slice_elements) break;
    }
    return std::min(elements, all);
  };
  // Blocks until the call has more, if that is what the others wait for.
  const auto await_more = [&](uint64_t elements) -> std::optional<Failure> {
    for (size_t i = 0; i < ready.size(); ++i) {
      if (spec.slice_elements == 0 ? ready[i] > elements : elements / spec.slice_elements != i) continue;
      if (auto failure = StagedOf(calls[i]).await(ready[i])) return failure;
    }
    return std::nullopt;
  };
  std::optional<Failure> failure;
  for (size_t i = 0; i < ready.size() && !failure; ++i) failure = StagedOf(calls[i]).await(ready[i]);
  for (const auto& each : before) each.wait();
  if (failure) {
    fail_session_(*failure);
    sum.done(&*failure);
    started.set_value();
    return;
  }
  const SumKey key = sum.key;
  sum.pieces->ready_elements = count();
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
  const int64_t overlap_group = CudaSpecOf(*gathering.site).overlap_group;
  std::lock_guard lock(mutex_);
  std::vector<std::shared_future<void>> before;
  for (const Call& call : gathering.calls) {
    DeviceQueue& queue = queues_[call.device];
    if (queue.started.valid()) before.push_back(queue.started);
    const bool same_execution =
        queue.executable == gathering.site->executable.get() && queue.run_id == gathering.calls.front().run_id;
    if (!same_execution || overlap_group != queue.overlap_group) {
      if (same_execution) before.insert(before.end(), queue.done.begin(), queue.done.end());
      queue.done.clear();
    }
    queue.executable = gathering.site->executable.get();
    queue.run_id = gathering.calls.front().run_id;
    queue.overlap_group = overlap_group;
    queue.started = turn.started;
    queue.done.push_back(turn.done);
  }
  return before;
}

}  // namespace passing
