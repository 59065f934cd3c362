// One sum of one host, as the FFI layer hands it to the transport.
#ifndef XLA_FFI_HOST_SUMS_SUM_H_
#define XLA_FFI_HOST_SUMS_SUM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/sums/sum_spec.h"

namespace passing {

// Identifies a sum alike on every host, whatever order XLA issues sums in.
struct SumKey {
  uint64_t site = 0;       // hash of program, identity, look-alike, group, devices: docs/internals/identity.md
  uint32_t execution = 0;  // counts the program's executions on these devices since the session began
  uint32_t step = 0;       // counts the earlier calls of this site in this execution

  friend bool operator==(const SumKey&, const SumKey&) = default;
};

// Why sums fail. `kind` is the name of a Python exception in jax_passing.errors.
struct Failure {
  std::string kind;
  std::string message;
};

// A sum may go on piece by piece, as one on a GPU does. Elements are counted over the leaves of one device, end to end.
struct Pieces {
  // As many can be read when the sum starts, of each device; `Collective::Ready` tells of more. No other is read
  // before.
  uint64_t ready_elements = UINT64_MAX;
  // Called each time more of the first elements have their final sums in `outputs`, with their number. The call is left
  // out where `done` follows at once, and never comes after it. Must not block. Null if nobody asks.
  std::function<void(uint64_t elements)> written{};
};

// Where several transports share a sum, each has every `count`th of its segments (sum_plan.h), from number `index` on.
struct Stripe {
  uint32_t index = 0;
  uint32_t count = 1;
};

struct Sum {
  SumKey key;
  std::shared_ptr<const SumSpec> spec;
  // Device-major: pointer of (device, leaf) at [device * leaf_count + leaf]. Owned by the caller, valid until
  // `done` ran. An output is the same device's and leaf's input, or memory that no input overlaps.
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  // Empty, or memory for the residuals of floats (residuals.h), ordered alike, that overlaps with nothing else.
  std::vector<void*> residuals{};
  // Called exactly once; null when the sum succeeded. Must not block: it hands over to another thread.
  std::function<void(const Failure*)> done{};
  std::optional<Pieces> pieces{};  // none: all elements are there, and nobody asks for the first results
  // Marks the rows of each leaf that are this host's devices'; empty if all are moved. A row that is neither given nor
  // needed by others, or not needed here, may have anything in `outputs` afterwards.
  std::vector<bool> own_rows{};
  // The row of each device, where it brings that row of each leaf alone (Moves::kGather, of integers of 32 bits), or
  // takes it alone (Moves::kScatter): its inputs, or its outputs, are as long as a row then, and no output is an input.
  // Empty: all are whole.
  std::vector<uint64_t> rows{};
  // Whoever starts the sum has little else to do: Start may take until it is done, if that is soon.
  bool caller_waits = false;
  Stripe stripe{};

  // Whose buffers these are: not always all devices that the spec counts.
  // How long a row of a leaf is, where `own_rows` says how many there are.
  uint64_t row_elements(size_t leaf) const { return spec->leaf_elements[leaf] / own_rows.size(); }
  size_t device_count() const { return inputs.size() / spec->leaf_elements.size(); }
};

// The first element of a rank that isn't finite, before any result wasn't.
struct NonFinite {
  std::shared_ptr<const SumSpec> spec;
  SumKey key;
  uint32_t leaf = 0;
  uint64_t element = 0;  // in the leaf
  std::string what{};    // "NaN", "inf" or "-inf"
};

// A program on one set of devices. The hosts compare these before they sum.
struct ProgramInfo {
  std::string name;                     // module name and device count
  std::string devices;                  // "0,1": indices among this process's, ascending; else as the program says
  std::string fingerprint;              // hash of the compiled module; empty if no two of its sums look alike
  std::vector<std::string> identities;  // one for each sum, sorted
};

// Whatever can carry out a sum: the transport, or the host alone when the world has one rank.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual uint32_t world_size() const = 0;
  // From any thread; never blocks on the network for longer than Sum::caller_waits allows. After a failure `done` is
  // called with it at once.
  virtual void Start(Sum sum) = 0;
  // Tells that the first `elements` elements can be read now of a sum that was started with fewer: Sum::pieces. May be
  // called from any thread, but for one sum by one thread at a time. Ignored if the sum is over.
  virtual void Ready(const SumKey&, uint64_t /*elements*/) {}
  // Fails all sums, now and later. The first failure wins.
  virtual void Fail(const Failure&) {}
  // Announces a program before its first sum on these devices. Only takes note, so the caller may hold a lock.
  virtual void Announce(const ProgramInfo&) {}
};

}  // namespace passing

#endif  // XLA_FFI_HOST_SUMS_SUM_H_
