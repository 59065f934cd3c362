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

// Which sum this is, alike on every host whatever order XLA issues them in.
struct SumKey {
  uint64_t site = 0;       // hash of program, identity, look-alike, group, devices: docs/internals/identity.md
  uint32_t execution = 0;  // of the program on these devices, since the session began
  uint32_t step = 0;       // how often this site was called before in this execution

  friend bool operator==(const SumKey&, const SumKey&) = default;
};

// Why sums fail. `kind` is the name of a Python exception in jax_passing.errors.
struct Failure {
  std::string kind;
  std::string message;
};

enum class Op : uint8_t { kSum, kMax };  // what is done with the elements

// What is the same each time a site is called.
struct SumShape {
  std::string site_name;  // for people: "train.py:41:9 in step psum of float32[128,10] over d"
  DType dtype = DType::kFloat32;
  std::vector<uint64_t> leaf_elements;  // complex counted twice; none is 0
  uint32_t device_count = 1;            // L
  Op op = Op::kSum;                     // kMax: of int32 alone

  // Of one device's elements, as the program has them.
  uint64_t elements() const {
    uint64_t elements = 0;
    for (const uint64_t leaf : leaf_elements) elements += leaf;
    return elements;
  }
  uint64_t bytes() const { return elements() * SizeOf(Narrowed(dtype)); }
};

// Of a sum whose elements are all there when it starts.
inline constexpr uint64_t kAllElements = UINT64_MAX;

struct Sum {
  SumKey key;
  std::shared_ptr<const SumShape> shape;
  // Device-major: pointer of (device, leaf) at [device * leaf_count + leaf]. Owned by the caller, valid until
  // `done` ran. An output is the same device's and leaf's input, or memory that no input overlaps.
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  // Called exactly once; null when the sum succeeded. Must not block: it hands over to another thread.
  std::function<void(const Failure*)> done{};
  // How many elements of each device can be read when the sum starts: of its leaves end to end, from the first on.
  // `Collective::Ready` tells when more have come from a GPU. Nothing else is read before.
  uint64_t ready_elements = kAllElements;
  // Told each time that so many elements, counted alike, have their sums in `outputs` for good; not needed for those
  // that are there only when `done` is called, nor called after that. Must not block. Null: nobody asks.
  std::function<void(uint64_t elements)> written{};
};

// What the hosts compare before they sum: a program that runs on one set of devices.
struct ProgramInfo {
  std::string name;                     // module name and device count
  std::string devices;                  // "0,1": indices among this process's, ascending; else as the program says
  std::string fingerprint;              // of the compiled module; empty: no two sums of it look alike
  std::vector<std::string> identities;  // of its sums, sorted, with repetition
};

// Whatever can carry out a sum: the transport, or the host alone when the world has one rank.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual uint32_t world_size() const = 0;
  // From any thread; never blocks on the network. After a failure `done` is called with it at once.
  virtual void Start(Sum sum) = 0;
  // Of a sum that was started with fewer: so many can be read now. From any thread; of one sum, one call after the
  // other. Means nothing for a sum that is over.
  virtual void Ready(const SumKey&, uint64_t /*elements*/) {}
  // All sums, now and later. The first failure wins.
  virtual void Fail(const Failure&) {}
  // Before the first sum of a program on these devices. From any thread, which may hold a lock: only takes note.
  virtual void Announce(const ProgramInfo&) {}
};

}  // namespace passing

#endif  // XLA_FFI_HOST_SUMS_SUM_H_
