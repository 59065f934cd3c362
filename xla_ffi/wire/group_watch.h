// Notices that results don't reach a member by multicast any more, though its switch sends them to the group.
#ifndef XLA_FFI_WIRE_GROUP_WATCH_H_
#define XLA_FFI_WIRE_GROUP_WATCH_H_

#include <cstdint>

namespace passing::wire {

// Watches one switch's group, which the member (a host, or a switch below) has heard.
class GroupWatch {
 public:
  // A few results are lost now and then, and come to the member alone when it asks again. So many in a row show that an
  // Ethernet switch on the way forgot the membership.
  static constexpr uint32_t kLostResults = 64;

  void OnGroupResult() { own_results_ = 0; }
  // A result that was sent to this member alone, as it had asked for it. True if the group is lost since then.
  bool OnOwnResult() { return !lost() && ++own_results_ == kLostResults; }
  bool lost() const { return own_results_ == kLostResults; }

 private:
  uint32_t own_results_ = 0;  // in a row
};

}  // namespace passing::wire

#endif  // XLA_FFI_WIRE_GROUP_WATCH_H_
