// Notices that a shard's results don't reach this rank by multicast any more, though the switch sends them so.
#ifndef XLA_FFI_HOST_GROUP_WATCH_H_
#define XLA_FFI_HOST_GROUP_WATCH_H_

#include <cstdint>

#include "wire/probe.h"

namespace passing {

// Of one shard that has a group. Only results that some sum waited for count.
class GroupWatch {
 public:
  void OnGroupResults(uint64_t results) {
    if (results > 0) unicast_results_ = 0;
  }
  // Results that were sent to this rank alone, as it had asked for them. True if the group is lost since these.
  bool OnOwnResults(uint64_t results) {
    if (unicast_results_ >= wire::kGroupLostResults) return false;
    unicast_results_ += results;
    return unicast_results_ >= wire::kGroupLostResults;
  }

 private:
  uint64_t unicast_results_ = 0;  // in a row
};

}  // namespace passing

#endif  // XLA_FFI_HOST_GROUP_WATCH_H_
