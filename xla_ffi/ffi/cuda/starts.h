// Sums whose inputs are still to come, from GPUs: when they start, and what they are told.
#ifndef XLA_FFI_FFI_CUDA_STARTS_H_
#define XLA_FFI_FFI_CUDA_STARTS_H_

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ffi/gathering/completion_pool.h"
#include "ffi/gathering/gathering.h"
#include "host/sums/sum.h"

namespace passing {

class StagedStarts;

// A GPU's call brings these.
struct StagedInputs : Staged {
  // Blocks until more than `elements` can be read, of the leaves end to end and from the first on, and sets it to how
  // many.
  using Await = std::function<std::optional<Failure>(uint64_t& elements)>;
  // Told how many elements, counted alike, have their sums in the outputs already.
  using Written = std::function<void(uint64_t elements)>;

  StagedInputs(std::shared_ptr<StagedStarts> starts, Await await, Written written)
      : starts(std::move(starts)), await(std::move(await)), written(std::move(written)) {}
  void Start(std::shared_ptr<Gathering> gathering, Sum sum) override;

  const std::shared_ptr<StagedStarts> starts;
  const Await await;
  const Written written;
};

// These sums start in the order in which XLA calls those on CPU: a CPU host and a GPU host with different orders would
// wait for each other. A device comes to them in the order of its program, and within one execution each starts when
// those before are done, unless the program lets them be under way together.
class StagedStarts : public std::enable_shared_from_this<StagedStarts> {
 public:
  // `fail_session` is called with what keeps inputs from coming.
  StagedStarts(CompletionPool& pool, std::function<void(const Failure&)> fail_session)
      : pool_(pool), fail_session_(std::move(fail_session)) {}

  // Starts the sum of a gathering when its turn comes, and tells the collective of the inputs as they come.
  void Start(std::shared_ptr<Gathering> gathering, Sum sum);

 private:
  struct Turn {
    std::shared_future<void> started, done;
  };
  // The sums that a device came to.
  struct DeviceQueue {
    const Executable* executable = nullptr;  // of the last one
    int32_t run_id = 0;
    int64_t overlap_group = 0;
    std::shared_future<void> started;
    std::vector<std::shared_future<void>> done;  // of the last one, and of those before that may overlap with it
  };

  // Returns what the sum with this turn waits for.
  std::vector<std::shared_future<void>> TakeTurn(const Gathering& gathering, const Turn& turn);
  // Starts the sum when its first inputs are there and what it waits for is over; blocks until all inputs are there.
  void StartAsInputsCome(const Gathering& gathering, Sum sum, const std::vector<std::shared_future<void>>& before,
                         std::promise<void>& started);

  CompletionPool& pool_;
  const std::function<void(const Failure&)> fail_session_;
  std::mutex mutex_;
  std::unordered_map<int64_t, DeviceQueue> queues_;  // by device
};

}  // namespace passing

#endif  // XLA_FFI_FFI_CUDA_STARTS_H_
