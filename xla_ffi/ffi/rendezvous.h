// Where the calls of one host's devices meet before the host's sum starts.
#ifndef XLA_FFI_FFI_RENDEZVOUS_H_
#define XLA_FFI_FFI_RENDEZVOUS_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ffi/completion_pool.h"
#include "ffi/instance.h"
#include "host/sum.h"

namespace passing {

// What a session lends to the process's handlers.
struct Attachment {
  std::shared_ptr<Collective> collective;
  std::shared_ptr<Collective> flat{};               // null: no device has a rank of its own
  std::function<std::optional<Failure>()> failure;  // why the session failed, if it did
  std::function<void(const Failure&)> fail;
  double deadline_s = 60;
  uint32_t rank = 0;            // of this host
  int64_t first_device_id = 0;  // XLA's number of this process's first device: the processes may count as one
};

// One device's call of a site. Buffers by leaf, valid until `done` ran; outputs[i] is inputs[i] or disjoint from all.
struct Call {
  int32_t run_id = 0;  // XLA's number of this execution of the executable; wraps
  int64_t device = 0;  // XLA's number of it
  int64_t member = 0;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::function<void(const Failure*)> done;  // called exactly once; null when the sum succeeded
};

// Never blocks: the call that completes a gathering starts the sum, and all calls are completed on the pool, together.
//
// A site's calls come in order: a device can't reach a site again before its last sum there is done, as loops and
// executions run one after the other. So at most one gathering is open per site of an executable.
//
// Sums are counted by their full name, which covers the devices that met: programs on other devices run beside each
// other, in any order, and each set of devices has a count of its own. A sum is counted when its gathering is complete,
// as all its devices are known then. All sums of one name meet on the same devices, which run one execution after the
// other, be it of the same executable or of another one of the same program: so they are complete in the order in which
// the program issued them, and the count of executions, with that of the sums since one began, numbers them alike on
// all hosts. Where sums stand in loops and branches, a host may skip those of an execution, and the next execution's
// must not meet what another host skips later: so there a visit counts the execution, on each device by itself, as one
// may be ahead of another.
//
// Two executions of one program that overlap on a device would break this. Two things give them away. The run id rises
// from one execution of an executable to the next (but those of two executables can't be compared). And a device that
// stands in an open gathering can't reach another one of the same name.
class Rendezvous {
 public:
  // So many sums can be told apart in a session, and so many pairs of a program and a device that it visits. A program
  // that is compiled again keeps its names, so only one who traces ever new programs comes that far.
  static constexpr size_t kMaxNames = 1 << 20;

  explicit Rendezvous(CompletionPool& pool, size_t max_names = kMaxNames);
  ~Rendezvous();  // detaches

  // The process's rendezvous; never destroyed, as XLA's threads may still call it when the process ends.
  static Rendezvous& Get();

  // False if there is an attachment already.
  bool Attach(Attachment attachment);
  // Open gatherings fail with ClosedError. Executions seen until now are refused from now on, even by the next
  // attachment: the hosts may have lost different parts of them.
  void Detach();

  void Arrive(const std::shared_ptr<const Site>& site, Call call);
  // A device began an execution of a program whose sums stand in loops or branches.
  void Visit(const std::shared_ptr<const Executable>& executable, int32_t run_id, int64_t device);

  // Of this host in its session, if there is one.
  std::optional<uint32_t> rank();

 private:
  struct Gathering {
    std::shared_ptr<const Site> site;
    std::shared_ptr<Collective> collective;
    SumKey key;  // once complete
    int64_t opened_us = 0;
    std::vector<Call> calls;
  };
  struct Progress {  // of the sums of one name since attach
    uint32_t execution = 0;
    uint32_t next_step = 0;
    std::shared_ptr<const Executable> executable;  // of the last sum; null: there was none
    int32_t run_id = 0;
  };
  struct Visits {  // of one device to one program since attach
    uint32_t count = 0;
    std::shared_ptr<const Executable> executable;  // of the last one
    int32_t run_id = 0;
  };

  // The first five need the lock, the next three take it.
  //
  // Why `call` can't join; the session fails too if `fatal`.
  std::optional<Failure> Refuse(const Site& site, const Call& call, bool& fatal);
  // The gathering that `call` completes, which isn't open any more.
  std::shared_ptr<Gathering> Join(const std::shared_ptr<const Site>& site, Call call);
  // Gives a complete gathering its key, and announces its program if it is new on these devices; or why it can't.
  std::optional<Failure> Name(Gathering& gathering);
  // That a device is in this execution.
  void Count(const std::shared_ptr<const Executable>& executable, int32_t run_id, int64_t device);
  std::vector<std::shared_ptr<Gathering>> TakeOpen();
  void StartSum(std::shared_ptr<Gathering> gathering);
  void Finish(std::shared_ptr<Gathering> gathering, const Failure* failure);
  void FailSession(const Failure& failure);
  void Watch();

  CompletionPool& pool_;
  const size_t max_names_;
  std::mutex mutex_;
  std::optional<Attachment> attachment_;
  std::unordered_map<uint64_t, std::vector<std::shared_ptr<Gathering>>> open_;  // by site hash
  // These two count executions, alike on all hosts, and hosts run on at their own pace. A host that forgot a count
  // would begin at 0 again, and its sums could meet other hosts' sums of another execution, or none. So nothing is
  // forgotten before the session ends, and what doesn't fit fails it.
  std::unordered_map<uint64_t, Progress> progress_;        // by name: SumKey::site
  std::map<std::pair<uint64_t, int64_t>, Visits> visits_;  // by Executable::hash and device
  std::unordered_set<uint64_t> announced_;                 // hashes of program and devices: no more than progress_ has
  uint64_t attachment_number_ = 1;                         // before the first one

  std::condition_variable wake_watch_;
  std::thread watch_;  // fails gatherings that stay open
};

// `what` needs a session.
Failure NotInitialized(const std::string& what);

}  // namespace passing

#endif  // XLA_FFI_FFI_RENDEZVOUS_H_
