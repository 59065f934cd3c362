// One sum of one host, as the FFI layer hands it to the transport.
#ifndef XLA_FFI_HOST_SUMS_SUM_H_
#define XLA_FFI_HOST_SUMS_SUM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/numbers/dtype.h"

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

enum class Op : uint8_t { kSum, kMax };

// The properties of a sum that are the same each time its site is called.
struct SumShape {
  std::string site_name;  // for people: "train.py:41:9 in step psum of float32[128,10] over d"
  DType dtype = DType::kFloat32;
  std::vector<uint64_t> leaf_elements;  // complex counted twice; none is 0
  uint32_t device_count = 1;            // L
  Op op = Op::kSum;                     // kMax: of int32 alone
  Wire wire = Wire::kFull;              // how floats travel

  // Count of one device's elements.
  uint64_t elements() const {
    uint64_t elements = 0;
    for (const uint64_t leaf : leaf_elements) elements += leaf;
    return elements;
  }
  uint64_t bytes() const { return elements() * SizeOf(Narrowed(dtype)); }
};

// Sum::ready_elements of a sum whose elements are all there when it starts.
inline constexpr uint64_t kAllElements = UINT64_MAX;

struct Sum {
  SumKey key;
  std::shared_ptr<const SumShape> shape;
  // Device-major: pointer of (device, leaf) at [device * leaf_count + leaf]. Owned by the caller, valid until
  // `done` ran. An output is the same device's and leaf's input, or memory that no input overlaps.
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  // Empty, or memory for the residuals of floats (residuals.h), ordered alike, that overlaps with nothing else.
  std::vector<void*> residuals{};
  // Called exactly once; null when the sum succeeded. Must not block: it hands over to another thread.
  std::function<void(const Failure*)> done{};
  // The number of elements of each device that can be read when the sum starts, counted over its leaves end to end.
  // `Collective::Ready` tells when more have come from a GPU. No other element is read before.
  uint64_t ready_elements = kAllElements;
  // Called each time the first so many elements, counted alike, have their final sums in `outputs`. The call is left
  // out where `done` follows at once, and never comes after it. Must not block. Null if nobody asks.
  std::function<void(uint64_t elements)> written{};
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
  // From any thread; never blocks on the network. After a failure `done` is called with it at once.
  virtual void Start(Sum sum) = 0;
  // Tells that so many elements of a sum, which was started with fewer, can be read now. May be called from any thread,
  // but for one sum by one thread at a time. Ignored if the sum is over.
  virtual void Ready(const SumKey&, uint64_t /*elements*/) {}
  // Fails all sums, now and later. The first failure wins.
  virtual void Fail(const Failure&) {}
  // Announces a program before its first sum on these devices. Only takes note, so the caller may hold a lock.
  virtual void Announce(const ProgramInfo&) {}
};

}  // namespace passing

#endif  // XLA_FFI_HOST_SUMS_SUM_H_
