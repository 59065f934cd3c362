// Where the calls of one host's devices meet before the host's sum starts.
#ifndef XLA_FFI_FFI_GATHERING_RENDEZVOUS_H_
#define XLA_FFI_FFI_GATHERING_RENDEZVOUS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ffi/attachment.h"
#include "ffi/gathering/completion_pool.h"
#include "ffi/gathering/gathering.h"
#include "ffi/naming/instance.h"
#include "ffi/naming/sum_names.h"
#include "ffi/sum_handles.h"
#include "host/sums/sum.h"

namespace passing {

// The call that completes a gathering starts the sum, and all calls are completed on the pool, together. But that call
// itself is completed before it returns if the sum is done so soon; else nothing blocks.
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

  // Describes the attachment, if there is one.
  struct Attached {
    uint64_t number = 0;  // no other attachment has it
    int64_t first_device_id = 0;
    uint32_t rank = 0;
    uint32_t world_size = 0;  // hosts
  };
  std::optional<Attached> attached();

  // Describes a sum to which devices of this host are still to come.
  struct OpenGathering {
    std::string site_name;
    size_t calls = 0;       // those that came
    size_t call_count = 0;  // those that there are
    int64_t opened_us = 0;
  };
  // Returns them; or the ones that a failure ended, if none is open.
  std::vector<OpenGathering> open();

  CompletionPool& pool() { return pool_; }
  // Sums whose calls ended when they had started. They end with the attachment.
  SumHandles& handles() { return handles_; }

 private:
  static std::atomic<Rendezvous*>& OfProcess();

  // With the lock held.
  //
  // Why `call` isn't let in; the session fails too if `fatal`.
  std::optional<Failure> Refuse(const SumSite& site, const Call& call, bool& fatal);
  // The gathering that `call` completes, which isn't open any more.
  std::shared_ptr<Gathering> Add(const std::shared_ptr<const SumSite>& site, Call call);
  std::vector<std::shared_ptr<Gathering>> TakeOpen();
  std::vector<OpenGathering> DescribeOpen() const;

  // Without the lock.
  //
  // `device` called last; its handler waits for the start.
  void StartSum(const std::shared_ptr<Gathering>& gathering, const SumKey& key, int64_t device);
  void Watch();

  CompletionPool& pool_;
  SumHandles handles_;
  std::mutex mutex_;
  std::optional<Attachment> attachment_;
  std::optional<SumNames> names_;                                               // while there is an attachment
  std::unordered_map<uint64_t, std::vector<std::shared_ptr<Gathering>>> open_;  // by site hash
  std::vector<OpenGathering> failed_;                                           // of this attachment
  SeenExecutions seen_;
  uint64_t attachment_number_ = 1;         // before the first one
  std::unordered_set<uint64_t> had_once_;  // the names of this attachment's sums that come only once

  std::condition_variable wake_watch_;
  std::thread watch_;        // fails gatherings that stay open
  bool watch_idle_ = false;  // it looks at none until it is woken; else every now and then
};

}  // namespace passing

#endif  // XLA_FFI_FFI_GATHERING_RENDEZVOUS_H_
