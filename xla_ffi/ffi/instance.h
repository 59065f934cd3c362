// Which sum is which, alike on every host.
//
// A *site* is a psum in a lowered module; XLA may inline the jitted function that holds it several times, and each copy
// is an *instance*. Nothing names an instance but the order in which XLA instantiates the copies of one site, and
// that is the same wherever the same module is compiled. So the instances of an executable are gathered here until
// its compilation ends, or else until one of them is executed; then they are all known, and each gets its rank among
// those of its site.
//
// The name of a sum also covers the whole list of the executable's sites (the manifest): sums of different programs
// never match, and run into their deadline instead of adding up wrong things.
#ifndef XLA_FFI_FFI_INSTANCE_H_
#define XLA_FFI_FFI_INSTANCE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "client/sum.h"

namespace passing {

// What jax_passing/primitive.py writes into the custom call.
struct SiteInfo {
  std::string program;    // module name and device count
  int64_t ordinal = 0;    // tells this process's modules of one program apart; means nothing to other hosts
  int64_t site = 0;       // which psum of the module
  std::string site_name;  // for people
  DType dtype = DType::kFloat32;
  std::vector<uint64_t> leaf_elements;
  uint32_t member_count = 1;        // devices that are added up, over all hosts
  uint32_t local_member_count = 1;  // of these, in this process
  uint32_t replica_count = 1;       // devices of this process that make the same call for one member
  uint32_t world_size = 1;          // ranks at the switch that the program was compiled for
  bool local = false;               // no other host takes part
  bool flat = false;                // each device is a rank, not each host
};

// The executions of one executable; guarded by the rendezvous.
struct Executions {
  uint64_t attachment = 0;  // during which the last one was seen; 0: never any
  int32_t run_id = 0;       // the highest seen
};

// One instance's sums of one group of devices: all calls that ever meet.
struct Site {
  uint64_t hash = 0;
  std::shared_ptr<const SumShape> shape;  // device_count: the local members
  std::shared_ptr<Executions> executions;
  uint32_t replica_count = 1;
  uint32_t world_size = 1;
  bool local = false;
  bool flat = false;

  size_t call_count() const { return size_t{shape->device_count} * replica_count; }
};

class Program;

class Instance {
 public:
  explicit Instance(SiteInfo info);
  ~Instance();
  Instance(const Instance&) = delete;

  const SiteInfo& info() const { return info_; }
  // `group`: which of the groups of devices that sum separately. The first call completes the program's list of sites.
  std::shared_ptr<const Site> SiteOf(int64_t group);

 private:
  friend class Program;

  const SiteInfo info_;
  const std::shared_ptr<const SumShape> shape_;
  const std::shared_ptr<Program> program_;
  std::mutex mutex_;
  std::unordered_map<int64_t, std::shared_ptr<const Site>> sites_;  // by group
};

// What the calling thread compiled is complete. Without this, two executables of one module, both compiled before
// either runs, would be taken for one.
void EndCompilation();

}  // namespace passing

#endif  // XLA_FFI_FFI_INSTANCE_H_
