// A session lends an attachment to this process's handlers; a call that can't have it is told why.
#ifndef XLA_FFI_FFI_ATTACHMENT_H_
#define XLA_FFI_FFI_ATTACHMENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "ffi/naming/instance.h"
#include "host/sums/sum.h"

namespace passing {

struct Attachment {
  std::shared_ptr<Collective> collective;
  std::shared_ptr<Collective> flat{};               // null: no device has a rank of its own
  std::function<std::optional<Failure>()> failure;  // why the session failed, if it did
  std::function<void(const Failure&)> fail;
  double deadline_s = 60;
  uint32_t rank = 0;            // of this host
  int64_t first_device_id = 0;  // XLA's number of this process's first device: the processes may count as one

  const std::shared_ptr<Collective>& CollectiveOf(const SumSite& site) const {
    return site.spec->flat ? flat : collective;
  }
};

// Tells the executions of this process apart by the attachment during which they were seen first. It has no lock.
class SeenExecutions {
 public:
  // Notes that the execution with this run id makes a call during this attachment. Returns whether it made none before:
  // the hosts may have lost different parts of an execution that did.
  bool Note(const std::shared_ptr<const Executable>& executable, int32_t run_id, uint64_t attachment);

 private:
  // The execution with the highest run id.
  struct Last {
    uint64_t attachment = 0;
    int32_t run_id = 0;
  };
  std::map<std::weak_ptr<const Executable>, Last, std::owner_less<>> last_;
};

// `what` needs a session, which a process that was forked from one with a session can't have.
Failure NotInitialized(const std::string& what);
// Has NotInitialized say so from now on.
void NoteFork();
// An execution is older than the session.
Failure BeganBefore(const std::string& site_name);
// The attachment is gone.
Failure ShutDown();
// Why this session can't sum at a site that was compiled for another one.
std::optional<Failure> RefuseSite(const SumSite& site, const Attachment& attachment);

}  // namespace passing

#endif  // XLA_FFI_FFI_ATTACHMENT_H_
