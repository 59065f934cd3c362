// Sites as an instance would make them, for tests of what happens when they are called.
#ifndef TESTS_XLA_FFI_FFI_MAKE_SITE_H_
#define TESTS_XLA_FFI_FFI_MAKE_SITE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "ffi/instance.h"

namespace passing {

// A test's own executable, to be changed before anything meets there.
inline Executable& Change(const std::shared_ptr<SumSite>& site) { return const_cast<Executable&>(*site->executable); }

// Makes a site of a mesh that spans processes, so that the site's hash is its sums' name.
inline std::shared_ptr<SumSite> MakeSite(uint64_t hash, uint32_t members, uint32_t replicas = 1) {
  auto site = std::make_shared<SumSite>();
  site->hash = hash;
  site->shape = std::make_shared<SumShape>(SumShape{"train.py:41", DType::kFloat32, {1}, members});
  const auto executable = std::make_shared<Executable>();
  executable->hash = hash;
  executable->program.name = "program " + std::to_string(hash);
  executable->program.devices = "mesh";
  site->executable = executable;
  site->replica_count = replicas;
  site->world_size = 2;
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
