#include "cuda/driver.h"

#include <dlfcn.h>

namespace passing {

CudaDriver::CudaDriver(const std::string& library) {
  // Stays open: the driver has threads of its own.
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw CudaError("the CUDA driver can't be opened (" + std::string(dlerror()) +
                    "): sums of arrays on GPUs need NVIDIA's driver on this host, in a container too");
  }
#define PASSING_FIND(name, symbol, parameters)                            \
  name = reinterpret_cast<CUresult(*) parameters>(dlsym(handle, symbol)); \
  if (name == nullptr) throw CudaError("the CUDA driver (" + library + ") has no " symbol ": install a newer one");
  PASSING_CUDA_FUNCTIONS(PASSING_FIND)
#undef PASSING_FIND
  Check(Init(0), "starting the CUDA driver");
}

void CudaDriver::Check(CUresult result, const char* what) const {
  if (result == 0) return;
  const char* name = nullptr;
  if (GetErrorName(result, &name) != 0 || name == nullptr) name = "unknown error";
  throw CudaError(std::string(what) + " failed: " + name + " (" + std::to_string(result) +
                  " of the CUDA driver). What ran on the GPU before may be the cause; if it is memory, give XLA or "
                  "other processes less of it");
}

}  // namespace passing
