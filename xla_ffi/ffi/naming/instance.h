// Sums get names here that are alike on every host.
//
// A *site* is a psum in a lowered module; XLA may copy it (with a jitted function that has shardings of its own, say),
// and each copy is an *instance*. What the program says about a sum is its identity; Python writes it, and it is the
// same on all hosts, whatever work of its own a host does around the sum. Numbers that depend on that work (which site
// of the module this is, which of this process's modules) never get into a sum's name.
//
// Instances of one executable with equal identities are *look-alikes*: nothing but XLA's order tells them apart, and
// that is the same on two hosts only if the whole compiled module is. So look-alikes are numbered in that order, and
// the name of every sum of their executable covers a fingerprint of the compiled module. Without one they aren't
// summed.
//
// The instances of an executable are gathered here until its compilation ends, or else until one of them is executed;
// then they are all known. A *visit* is an instance, too: it stands beside a loop or branch with sums, and tells of
// each execution, also of those that come to no sum. The name of a sum also covers their whole list (the manifest), in
// an order that isn't XLA's: sums of different programs never match.
#ifndef XLA_FFI_FFI_NAMING_INSTANCE_H_
#define XLA_FFI_FFI_NAMING_INSTANCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "host/sums/sum.h"
#include "host/sums/sum_spec.h"

namespace passing {

// The sums of one executable share this.
struct Executable {
  uint64_t hash = 0;     // of `program` but its devices
  ProgramInfo program;   // its devices are those of SumSpec
  bool visits = false;   // it tells of each execution: not each may come to a sum
  std::string platform;  // of the devices that it runs on
  std::vector<std::shared_ptr<const SumSpec>> sums;
  std::optional<Failure> refused;  // why its sums can't be told apart
};

// One instance's sums of one group of devices: all calls that ever meet.
struct SumSite {
  uint64_t hash = 0;  // the devices are still to be added, unless the mesh spans processes
  std::shared_ptr<const SumSpec> spec;
  std::shared_ptr<const Executable> executable;

  size_t call_count() const { return size_t{spec->local_member_count} * spec->replica_count; }
};

class OpenExecutable;

class Instance {
 public:
  explicit Instance(SumSpec spec) : Instance(std::make_shared<const SumSpec>(std::move(spec)), "cpu") {}
  Instance(std::shared_ptr<const SumSpec> spec, std::string platform);
  ~Instance();
  Instance(const Instance&) = delete;

  const SumSpec& spec() const { return *spec_; }
  // `group`: which of the groups of devices that sum separately. The first call completes the executable's list of
  // instances.
  std::shared_ptr<const SumSite> SiteOf(int64_t group);
  // Returns the executable, which is complete from now on; null if it has no sums.
  std::shared_ptr<const Executable> executable();

 private:
  friend class OpenExecutable;

  const std::shared_ptr<const SumSpec> spec_;
  const std::string platform_;
  const uint64_t hash_;  // equal for look-alikes
  uint64_t nth_ = 0;     // which one of its look-alikes it is, once the executable is complete
  // The last of these: from here on, other threads may complete the executable.
  const std::shared_ptr<OpenExecutable> open_executable_;
  std::mutex mutex_;
  std::unordered_map<int64_t, std::shared_ptr<const SumSite>> sites_;  // by group
};

using ModuleId = std::pair<std::string, int64_t>;  // program and ordinal

// Executables of these modules that have instances by now are complete. Without this, two executables of one module,
// both compiled before either runs, would be taken for one: so it is with programs on two local devices, for which JAX
// lowers one module. Whoever compiles must say which modules, as other threads may be in the midst of theirs: XLA
// instantiates on threads of its own, so nothing here tells whose an instance is.
//
// Returns those that need a fingerprint.
std::vector<ModuleId> EndCompilation(const std::vector<ModuleId>& modules);

// Gives a fingerprint to the executable for which EndCompilation asked last under this id. It has no effect once that
// was executed.
void SetFingerprint(const ModuleId& module, std::string_view fingerprint);

}  // namespace passing

#endif  // XLA_FFI_FFI_NAMING_INSTANCE_H_
