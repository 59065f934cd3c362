// Sites as an instance would make them, for tests of what happens when they are called.
#ifndef TESTS_XLA_FFI_FFI_MAKE_SITE_H_
#define TESTS_XLA_FFI_FFI_MAKE_SITE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ffi/cuda/spec.h"
#include "ffi/naming/instance.h"

namespace passing {

// A test's own executable and description, to be changed before anything meets there.
inline Executable& Change(const std::shared_ptr<SumSite>& site) { return const_cast<Executable&>(*site->executable); }
inline SumSpec& ChangeSpec(const std::shared_ptr<SumSite>& site) { return const_cast<SumSpec&>(*site->spec); }

// Makes a site of a mesh that spans processes, so that the site's hash is its sums' name.
inline std::shared_ptr<SumSite> MakeSite(uint64_t hash, uint32_t members, uint32_t replicas = 1) {
  auto site = std::make_shared<SumSite>();
  site->hash = hash;
  site->spec = std::make_shared<SumSpec>(SumSpec{.site_name = "train.py:41",
                                                 .leaf_elements = {1},
                                                 .local_member_count = members,
                                                 .replica_count = replicas,
                                                 .world_size = 2});
  const auto executable = std::make_shared<Executable>();
  executable->hash = hash;
  executable->program.name = "program " + std::to_string(hash);
  executable->program.devices = "mesh";
  site->executable = executable;
  return site;
}

// Makes such a site of sums on GPUs, of these leaves.
inline std::shared_ptr<SumSite> MakeCudaSite(uint64_t hash, uint32_t members, std::vector<uint64_t> leaf_elements = {1},
                                             uint64_t slice_elements = 0, uint32_t replicas = 1) {
  auto site = MakeSite(hash, members, replicas);
  auto spec = std::make_shared<CudaSpec>(*site->spec);
  spec->leaf_elements = std::move(leaf_elements);
  spec->slice_elements = slice_elements;
  site->spec = std::move(spec);
  return site;
}

// Makes a site of a mesh inside this process: the devices that meet are part of the name.
inline std::shared_ptr<SumSite> MakeLocalSite(uint64_t hash, uint32_t members, uint32_t replicas = 1) {
  auto site = MakeSite(hash, members, replicas);
  Change(site).program.devices = "";
  return site;
}

}  // namespace passing

#endif  // TESTS_XLA_FFI_FFI_MAKE_SITE_H_
