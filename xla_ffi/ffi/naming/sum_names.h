// Gives each sum of this host a key that is the same on all hosts.
#ifndef XLA_FFI_FFI_NAMING_SUM_NAMES_H_
#define XLA_FFI_FFI_NAMING_SUM_NAMES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "ffi/naming/instance.h"
#include "host/sums/sum.h"

namespace passing {

// The names and counts of one session's sums. It has no lock: its users hold one.
//
// Sums are counted by their full name, which covers the devices that met: programs on other devices run beside each
// other, in any order, and each set of devices has a count of its own. A sum is counted when all its devices have come,
// as only then they are known. All sums of one name meet on the same devices, which run one execution after the other,
// be it of the same executable or of another one of the same program: so they are complete in the order in which the
// program issued them, and the count of executions, with that of the sums since one began, numbers them alike on all
// hosts. Where sums stand in loops and branches, a host may skip those of an execution, and the next execution's must
// not meet what another host skips later: so there a visit counts the execution, on each device by itself, as one may
// be ahead of another.
//
// Two executions of one program that overlap on a device would break this. Often their run ids tell, which rise from
// one execution of an executable to the next; those of two executables can't be compared.
class SumNames {
 public:
  // A session tells at most this number of sums apart, and as many pairs of a program and a device that it visits. A
  // program that is compiled again keeps its names, so only one who traces ever new programs comes that far.
  static constexpr size_t kMaxNames = 1 << 20;

  // `first_device_id`: XLA's number of this process's first device. The host's session, which hears of the programs,
  // must outlive this.
  SumNames(Collective& session, int64_t first_device_id, size_t max_names = kMaxNames)
      : session_(session), first_device_id_(first_device_id), max_names_(max_names) {}

  // Notes that a device is in this execution of an executable that has visits.
  void Visit(const std::shared_ptr<const Executable>& executable, int32_t run_id, int64_t device);

  // The key of a sum at which these devices, of XLA's numbers, met in this execution; or why it can't have one.
  // Announces the program to the session if it is new on these devices.
  std::variant<SumKey, Failure> Name(const SumSite& site, int32_t run_id, std::vector<int64_t> devices);

 private:
  struct Execution {
    std::shared_ptr<const Executable> executable;
    int32_t run_id = 0;
    friend bool operator==(const Execution&, const Execution&) = default;
  };
  struct Executions {
    uint32_t count = 0;  // of those before the last one
    Execution last;      // its executable is null if there was none
    uint32_t sums = 0;   // of one name, in the last one until now

    void Begin(const Execution& execution);
  };

  Collective& session_;
  const int64_t first_device_id_;
  const size_t max_names_;
  // These two count executions, alike on all hosts, and hosts run on at their own pace. A host that forgot a count
  // would begin at 0 again, and its sums could meet other hosts' sums of another execution, or none. So nothing is
  // forgotten before the session ends, and what doesn't fit fails it.
  std::unordered_map<uint64_t, Executions> by_name_;                // SumKey::site
  std::map<std::pair<uint64_t, int64_t>, Executions> with_visits_;  // by Executable::hash and device
  std::unordered_set<uint64_t> announced_;  // hashes of program and devices: no more than by_name_ has
};

// Two executions of the program ran at the same time.
Failure Overlapped(const std::string& site_name);

// Tells whether run id `a` was given after `b`. Run ids wrap.
inline bool IsLater(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b)) > 0;
}

// "0,1,2", for messages and names.
std::string Joined(const std::vector<int64_t>& numbers);

}  // namespace passing

#endif  // XLA_FFI_FFI_NAMING_SUM_NAMES_H_
