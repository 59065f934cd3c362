// Notices that results don't reach a member by multicast any more, though its switch sends them to the group.
#ifndef XLA_FFI_WIRE_GROUP_WATCH_H_
#define XLA_FFI_WIRE_GROUP_WATCH_H_

#include <cstdint>

namespace passing::wire {

// A result that was sent to one member alone.
struct OwnResult {
  bool is_for_all = false;     // all members are sent it alike, by the group, so this one had asked for it again
  bool is_header = false;      // it has no lanes, as this member needs none
  bool was_asked_for = false;  // the member has sent its contribution again
};

// Watches one switch's group, which the member (a host, or a switch below) has heard.
class GroupWatch {
 public:
  // A few results are lost now and then, and come to the member alone when it asks again. So many in a row show that an
  // Ethernet switch on the way forgot the membership.
  static constexpr uint32_t kLostResults = 64;
  // A host that is late makes others ask again for all that is in flight, headers too, which is less than this.
  static constexpr uint32_t kLostHeaders = 1024;

  void OnGroupResult() { for_all_ = headers_ = 0; }
  // True if the group is lost since then. Some headers come to a member alone although it hasn't asked: those show
  // nothing. Nor do lanes that others leave out.
  bool OnOwnResult(const OwnResult& result) {
    if (lost()) return false;
    if (result.is_for_all) ++for_all_;
    if (result.is_header) headers_ = result.was_asked_for ? headers_ + 1 : 0;
    return lost();
  }
  bool lost() const { return for_all_ == kLostResults || headers_ == kLostHeaders; }

 private:
  uint32_t for_all_ = 0;  // came to this member alone, in a row
  uint32_t headers_ = 0;  // that it had asked for, in a row
};

}  // namespace passing::wire

#endif  // XLA_FFI_WIRE_GROUP_WATCH_H_
