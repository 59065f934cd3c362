// Which sum is which, alike on every host.
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
#ifndef XLA_FFI_FFI_INSTANCE_H_
#define XLA_FFI_FFI_INSTANCE_H_

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

namespace passing {

// The world size of a program that was compiled in an elastic session: as many as the session has when it runs.
inline constexpr uint32_t kAnyWorldSize = 0;

// What jax_passing/collective/lowering/cpu.py writes into the custom call.
struct SiteInfo {
  std::string program;    // module name and device count
  int64_t ordinal = 0;    // tells this process's modules of one program apart; means nothing to other hosts
  int64_t site = 0;       // which psum of the module; orders look-alikes, means nothing else to other hosts
  std::string identity;   // what the program says about this sum; empty: this is no sum, but a visit
  std::string site_name;  // for people
  DType dtype = DType::kFloat32;
  Op op = Op::kSum;
  std::vector<uint64_t> leaf_elements;
  uint32_t member_count = 1;        // devices that are added up, over all hosts; with any world size, of each host
  uint32_t local_member_count = 1;  // of these, in this process
  uint32_t replica_count = 1;       // devices of this process that make the same call for one member
  uint32_t world_size = 1;          // ranks at the switch that the program was compiled for, or kAnyWorldSize
  bool flat = false;                // each device is a rank, not each host
  bool conditional = false;         // in a loop or branch, which not every execution may come to
  std::string devices;              // of a mesh that spans processes; empty: this process's, known when they meet
  bool on_gpu = false;              // means nothing to other hosts
  // The first of the sums that may be under way beside each other, as their program has them in one call: its `site`.
  // XLA may call them in any order. Means nothing to other hosts, either: on CPU XLA calls sums when they may start.
  int64_t beside = 0;
  // Not 0: this host's members add up their elements before they come, and each comes with a shard of so many, widened.
  // Means nothing to other hosts, either.
  uint64_t shard_elements = 0;
  uint32_t group_count = 1;  // groups of this process's devices that sum separately; asked for only on GPU
};

// What the sums of one executable share.
struct Executable {
  uint64_t hash = 0;                            // of `program` but its devices
  ProgramInfo program;                          // devices: as SiteInfo says
  bool visits = false;                          // it tells of each execution: not each may come to a sum
  bool on_gpu = false;                          // runs on this host's GPUs, not its CPU devices
  std::vector<std::vector<size_t>> leaf_bytes;  // there, that each device brings to each sum
  std::vector<size_t> shard_bytes;              // that devices bring to each sum together, where these bring shards
  std::optional<Failure> refused;               // why its sums can't be told apart

  // Its executions; guarded by the rendezvous.
  uint64_t attachment = 0;  // during which the last one was seen; 0: never any
  int32_t run_id = 0;       // the highest seen
};

// One instance's sums of one group of devices: all calls that ever meet.
struct Site {
  uint64_t hash = 0;                      // the devices are still to be added, unless the mesh spans processes
  std::shared_ptr<const SumShape> shape;  // device_count: the local members, 1 if these have shards
  std::shared_ptr<Executable> executable;
  uint32_t replica_count = 1;
  uint32_t world_size = 1;
  bool flat = false;
  int64_t beside = 0;           // SiteInfo's, on GPU
  uint32_t shard_count = 1;     // calls that bring the elements of one device together: their buffers are the same
  uint64_t shard_elements = 0;  // that each of them brings, if they are several

  size_t call_count() const { return size_t{shape->device_count} * replica_count * shard_count; }
};

class OpenExecutable;

class Instance {
 public:
  explicit Instance(SiteInfo info);
  ~Instance();
  Instance(const Instance&) = delete;

  const SiteInfo& info() const { return info_; }
  bool is_visit() const { return info_.identity.empty(); }
  // `group`: which of the groups of devices that sum separately. The first call completes the executable's list of
  // instances.
  std::shared_ptr<const Site> SiteOf(int64_t group);
  // Which a visit belongs to; null if it has no sums.
  std::shared_ptr<Executable> executable();
  // One of the executable's sums. Once that is complete.
  bool is_first() const { return is_first_; }

 private:
  friend class OpenExecutable;

  void TellBytes(Executable& executable) const;

  const SiteInfo info_;
  const uint64_t hash_;  // equal for look-alikes
  const std::shared_ptr<const SumShape> shape_;
  uint64_t nth_ = 0;  // which one of its look-alikes it is, once the executable is complete
  bool is_first_ = false;
  // The last of these: from here on, other threads may complete the executable.
  const std::shared_ptr<OpenExecutable> open_executable_;
  std::mutex mutex_;
  std::unordered_map<int64_t, std::shared_ptr<const Site>> sites_;  // by group
};

using ModuleId = std::pair<std::string, int64_t>;  // program and ordinal

// Executables of these modules that have instances by now are complete. Without this, two executables of one module,
// both compiled before either runs, would be taken for one: so it is with programs on two local devices, for which JAX
// lowers one module. Whoever compiles must say which modules, as other threads may be in the midst of theirs: XLA
// instantiates on threads of its own, so nothing here tells whose an instance is.
//
// Returns those that need a fingerprint.
std::vector<ModuleId> EndCompilation(const std::vector<ModuleId>& modules);

// Of the executable for which EndCompilation asked last under this id. It has no effect once that was executed.
void SetFingerprint(const ModuleId& module, std::string_view fingerprint);

}  // namespace passing

#endif  // XLA_FFI_FFI_INSTANCE_H_
