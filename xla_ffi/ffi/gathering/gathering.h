// The calls of one host's devices that meet at a site, and the sum that they make.
#ifndef XLA_FFI_FFI_GATHERING_GATHERING_H_
#define XLA_FFI_FFI_GATHERING_GATHERING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "ffi/gathering/completion_pool.h"
#include "ffi/naming/instance.h"
#include "host/sums/sum.h"

namespace passing {

struct Gathering;

// Calls come with this if their inputs are still to come, from a GPU (ffi/cuda/starts.h).
class Staged {
 public:
  virtual ~Staged() = default;
  // Starts the sum of a gathering when its inputs come.
  virtual void Start(std::shared_ptr<Gathering> gathering, Sum sum) = 0;
};

// One device's call of a site. Buffers by leaf, valid until `done` ran; outputs[i] is inputs[i] or disjoint from all.
struct Call {
  int32_t run_id = 0;  // XLA's number of this execution of the executable; wraps
  int64_t device = 0;  // XLA's number of it
  int64_t member = 0;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::vector<void*> residuals{};  // Sum::residuals; each of the calls asks for them, or none
  // Only the first call of its name in a session is summed; later ones end at once, with what they had in `outputs`.
  bool once = false;
  std::shared_ptr<Staged> staged{};  // null: the inputs can be read now
  // Null, or called on the pool once all calls have come and the sum has its name, before `done`.
  std::function<void()> started{};
  std::function<void(const Failure*)> done;  // called exactly once; null when the sum succeeded
};

struct Gathering {
  std::shared_ptr<const SumSite> site;
  std::shared_ptr<Collective> collective;
  uint32_t rank = 0;  // of this host
  int64_t opened_us = 0;
  std::vector<Call> calls;

  bool is_complete() const { return calls.size() == site->call_count(); }
};

// The sum of all calls, without `done`; or why they don't belong together. Puts the calls into the order of members.
std::variant<Sum, Failure> MakeSum(const std::shared_ptr<Gathering>& gathering, const SumKey& key);

// Says so.
Failure DontBelongTogether(const Gathering& gathering);

// Completes all calls, on the pool; but that of device `here`, whose handler hasn't returned yet, on this thread.
// Nothing follows its future before it returns, so nothing that could block is carried out here.
void Finish(CompletionPool& pool, const std::shared_ptr<Gathering>& gathering, const Failure* failure,
            std::optional<int64_t> here = std::nullopt);

// Not all devices came in time.
Failure TooLate(const Gathering& gathering, double deadline_s);

}  // namespace passing

#endif  // XLA_FFI_FFI_GATHERING_GATHERING_H_
