// Sums that a program starts and finishes later, maybe in another program: this host keeps their values until then.
//
// What goes through the program in place of the values is a *token* for each handle: a small whole number, the same on
// all devices, held in a float32 so that tangents and cotangents have tokens too. JAX's rules may calculate with them,
// as with any number: they may halve them, or add them up over devices. So tokens lie so far apart that what comes of
// this is no token. 0 is the token of no sum.
#ifndef XLA_FFI_FFI_SUM_HANDLES_H_
#define XLA_FFI_FFI_SUM_HANDLES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "host/sums/sum.h"

namespace passing {

// An array: XLA's number of its type, its size, its elements.
struct HandleLeaf {
  int32_t type = 0;
  size_t bytes = 0;
  const void* data = nullptr;
};

// One device's part of a handle: a copy of its operands, which the sum takes place in.
class HandlePart {
 public:
  using Done = std::function<void(const Failure*)>;

  // Throws std::bad_alloc.
  explicit HandlePart(const std::vector<HandleLeaf>& leaves);

  const std::vector<void*>& leaves() const { return leaves_; }
  bool HasTypes(const std::vector<HandleLeaf>& leaves) const;
  // Copies the values into the outputs. They must be complete.
  void CopyTo(const std::vector<void*>& outputs) const;

  // The values are there, or never will be. Calls who waits for them.
  void Complete(const Failure* failure);
  // `done` is called once, maybe at once.
  void WhenComplete(Done done);

 private:
  struct Free {
    void operator()(void* memory) const;
  };

  std::vector<HandleLeaf> types_;
  std::unique_ptr<void, Free> memory_;
  std::vector<void*> leaves_;

  std::mutex mutex_;
  bool complete_ = false;
  std::optional<Failure> failure_;
  Done waiting_;
};

// One call in an executable that makes handles. It gives the same number to all devices of one execution, also of one
// that overlaps another one: where nothing is summed, nobody else tells them apart.
class HandleCall {
 public:
  // `name`: of what is kept, for people. `device_count`: devices of this host that run the executable.
  HandleCall(std::string name, uint32_t device_count) : name_(std::move(name)), device_count_(device_count) {}

  const std::string& name() const { return name_; }
  // `new_number` is called while this one's lock is held.
  uint32_t NumberFor(int32_t run_id, int64_t device, const std::function<uint32_t()>& new_number);

 private:
  struct Made {
    int32_t run_id = 0;
    uint32_t step = 0;
    uint32_t number = 0;
    uint32_t missing = 0;  // devices that are still to come
  };
  struct Steps {
    int32_t run_id = 0;
    uint32_t count = 0;  // calls in that execution
  };

  const std::string name_;
  const uint32_t device_count_;
  std::mutex mutex_;
  std::deque<Made> made_;
  std::map<int64_t, std::deque<Steps>> steps_;  // by device; several executions may overlap there
};

// The handles of this process. The numbers go on from one session to the next.
class SumHandles {
 public:
  // At most this number of handles of one call may be unfinished on a device: a program that loses its handles is
  // stopped before they fill the memory. A pipeline of sums that is deeper than this hides no more of the network.
  static constexpr size_t kUnfinishedMax = 64;
  // The distance of consecutive tokens. No k tokens add up to a token, and no k-th part of one is one, for k from 2 to
  // 24, or for any power of two.
  static constexpr uint32_t kTokenStep = 24;
  // A float32 holds all whole numbers up to 2^24.
  static constexpr uint32_t kNumbers = ((1u << 24) - 2) / kTokenStep;

  static float TokenOf(uint32_t number) { return static_cast<float>(1 + kTokenStep * number); }

  // A number that no unfinished handle has.
  uint32_t NewNumber();
  // Keeps a part until it is taken; or says why not.
  std::optional<Failure> Put(uint32_t number, int64_t device, std::shared_ptr<const HandleCall> call,
                             const std::shared_ptr<HandlePart>& part);
  // Forgets a part that nobody can take.
  void Drop(uint32_t number, int64_t device);
  // Takes this device's part out; or says why there is none. `name`: who asks.
  std::variant<std::shared_ptr<HandlePart>, Failure> Take(float token, int64_t device,
                                                          const std::vector<HandleLeaf>& leaves,
                                                          const std::string& name);
  // A session is over: its handles are.
  void EndSession();
  // Counts the handles that aren't finished, by the name of their sum.
  std::map<std::string, size_t> Unfinished();

 private:
  using Whose = std::pair<std::shared_ptr<const HandleCall>, int64_t>;  // and the device
  struct Kept {
    std::shared_ptr<HandlePart> part;
    Whose whose;
  };

  // With the lock.
  Failure Missing(uint32_t number, const std::string& name) const;
  void Erase(std::map<std::pair<uint32_t, int64_t>, Kept>::iterator kept);

  std::mutex mutex_;
  uint64_t count_ = 0;                                  // numbers given
  uint64_t count_at_session_ = 0;                       // of these, in earlier sessions
  std::map<std::pair<uint32_t, int64_t>, Kept> parts_;  // by number and device
  std::map<Whose, size_t> unfinished_;
};

}  // namespace passing

#endif  // XLA_FFI_FFI_SUM_HANDLES_H_
