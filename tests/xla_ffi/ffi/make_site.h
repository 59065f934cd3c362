// Sites as an instance would make them, for tests of what happens when they are called.
#ifndef TESTS_XLA_FFI_FFI_MAKE_SITE_H_
#define TESTS_XLA_FFI_FFI_MAKE_SITE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "ffi/instance.h"

namespace passing {

// Of a mesh that spans processes, so that the site's hash is its sums' name.
inline std::shared_ptr<Site> MakeSite(uint64_t hash, uint32_t members, uint32_t replicas = 1) {
  auto site = std::make_shared<Site>();
  site->hash = hash;
  site->shape = std::make_shared<SumShape>(SumShape{"train.py:41", DType::kFloat32, {1}, members});
  site->executable = std::make_shared<Executable>();
  site->executable->hash = hash;
  site->executable->program.name = "program " + std::to_string(hash);
  site->executable->program.devices = "mesh";
  site->replica_count = replicas;
  site->world_size = 2;
  return site;
}

// Of a mesh inside this process: the devices that meet are part of the name.
inline std::shared_ptr<Site> MakeLocalSite(uint64_t hash, uint32_t members, uint32_t replicas = 1) {
  auto site = MakeSite(hash, members, replicas);
  site->executable->program.devices = "";
  return site;
}

}  // namespace passing

#endif  // TESTS_XLA_FFI_FFI_MAKE_SITE_H_
