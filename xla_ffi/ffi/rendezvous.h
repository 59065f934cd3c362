// Where the calls of one host's devices meet before the host's sum starts.
#ifndef XLA_FFI_FFI_RENDEZVOUS_H_
#define XLA_FFI_FFI_RENDEZVOUS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "ffi/completion_pool.h"
#include "ffi/instance.h"
#include "ffi/sum_names.h"
#include "host/sums/sum.h"

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
  // Null: the inputs can be read now. Else blocks until more than `elements` can, of the leaves end to end and from the
  // first on, and sets it to how many.
  std::function<std::optional<Failure>(uint64_t& elements)> await_inputs{};
  // Null, or told how many elements, counted alike, have their sums in the outputs already: Sum::written.
  std::function<void(uint64_t elements)> written{};
  std::function<void(const Failure*)> done;  // called exactly once; null when the sum succeeded
};

// Never blocks: the call that completes a gathering starts the sum, and all calls are completed on the pool, together.
//
// A site's calls come in order: a device can't reach a site again before its last sum there is done, as loops and
// executions run one after the other. So at most one gathering is open per site of an executable.
//
// `SumNames` gives the sum its key. It fails the session when two executions of one program overlap on a device; here
// the same is noticed by a device that stands in an open gathering, and so can't reach another one of the same name.
class Rendezvous {
 public:
  explicit Rendezvous(CompletionPool& pool) : pool_(pool) {}
  ~Rendezvous();  // detaches

  // The process's rendezvous; never destroyed, as XLA's threads may still call it when the process ends.
  static Rendezvous& Get();
  // In a child that was forked: from now on the process's is another one, to which nothing is attached. The parent's
  // threads aren't here, and one of them may have held its lock.
  static void ForgetInChild();

  // False if there is an attachment already.
  bool Attach(Attachment attachment);
  // Open gatherings fail with ClosedError. Executions seen until now are refused from now on, even by the next
  // attachment: the hosts may have lost different parts of them.
  void Detach();

  void Arrive(const std::shared_ptr<const SumSite>& site, Call call);
  // A device began an execution of a program whose sums stand in loops or branches.
  void Visit(const std::shared_ptr<const Executable>& executable, int32_t run_id, int64_t device);

  // Fails all sums, now and later, on all hosts.
  void FailSession(const Failure& failure);
  // Why no sum succeeds any more: the session failed, or is over.
  std::optional<Failure> failure();

  // Which attachment there is, if any: its number, which no other one has, and the first device.
  struct Attached {
    uint64_t number = 0;
    int64_t first_device_id = 0;
  };
  std::optional<Attached> attached();
  // Of this host in its session, if there is one.
  std::optional<uint32_t> rank();
  std::optional<uint32_t> world_size();  // hosts of that session

 private:
  static std::atomic<Rendezvous*>& OfProcess();

  struct Gathering {
    std::shared_ptr<const SumSite> site;
    std::shared_ptr<Collective> collective;
    int64_t opened_us = 0;
    std::vector<Call> calls;
  };

  // Sums that have to wait for their inputs start as XLA calls them on CPU, or hosts of both kinds might wait for each
  // other: in the order in which a device came to them, that of the program; and of one execution when those before are
  // done, unless the program lets them be under way beside each other.
  struct Turn {
    std::shared_future<void> started, done;
  };
  // Those of one device.
  struct Line {
    const Executable* executable = nullptr;  // of the last one
    int32_t run_id = 0;
    int64_t overlap_group = 0;
    std::shared_future<void> started;
    std::vector<std::shared_future<void>> done;  // of the last one, and of those before that may be beside it
  };

  // With the lock held.
  //
  // Why `call` can't join; the session fails too if `fatal`.
  std::optional<Failure> Refuse(const SumSite& site, const Call& call, bool& fatal);
  // The gathering that `call` completes, which isn't open any more.
  std::shared_ptr<Gathering> Join(const std::shared_ptr<const SumSite>& site, Call call);
  std::vector<std::shared_ptr<Gathering>> TakeOpen();

  // Without the lock.
  void StartSum(std::shared_ptr<Gathering> gathering, const SumKey& key);
  // Returns what the sum with this turn waits for.
  std::vector<std::shared_future<void>> TakeTurn(const Gathering& gathering, const Turn& turn);
  // Starts a sum when the first of its inputs are there, once those before are as far as it waits for, and tells of the
  // others.
  void StartAsInputsCome(const std::shared_ptr<Gathering>& gathering, Sum sum,
                         const std::vector<std::shared_future<void>>& before, std::promise<void>& started);
  void Finish(std::shared_ptr<Gathering> gathering, const Failure* failure);
  void Watch();

  // The execution of an executable with the highest run id that was seen.
  struct LastExecution {
    uint64_t attachment = 0;  // during which it was seen first
    int32_t run_id = 0;
  };

  CompletionPool& pool_;
  std::mutex mutex_;
  std::map<std::weak_ptr<const Executable>, LastExecution, std::owner_less<>> last_executions_;
  std::optional<Attachment> attachment_;
  std::optional<SumNames> names_;                                               // while there is an attachment
  std::unordered_map<uint64_t, std::vector<std::shared_ptr<Gathering>>> open_;  // by site hash
  std::unordered_map<int64_t, Line> lines_;                                     // by device
  uint64_t attachment_number_ = 1;                                              // before the first one

  std::condition_variable wake_watch_;
  std::thread watch_;        // fails gatherings that stay open
  bool watch_idle_ = false;  // it looks at none until it is woken; else every now and then
};

// `what` needs a session, which a process that was forked from one with a session can't have.
Failure NotInitialized(const std::string& what);
// An execution is older than the session.
Failure BeganBefore(const std::string& site_name);

}  // namespace passing

#endif  // XLA_FFI_FFI_RENDEZVOUS_H_
