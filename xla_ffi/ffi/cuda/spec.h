// The description of a sum on GPUs: what Python says of every sum, and which GPUs add up how.
#ifndef XLA_FFI_FFI_CUDA_SPEC_H_
#define XLA_FFI_FFI_CUDA_SPEC_H_

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/naming/instance.h"
#include "host/sums/sum_spec.h"

namespace passing {

// jax_passing/collective/lowering/gpu/gpu_spec.py says what each of these is. Its text has them in the same order.
struct CudaSpec : SumSpec {
  CudaSpec() = default;
  explicit CudaSpec(SumSpec sum) : SumSpec(std::move(sum)) {}

  int64_t overlap_group = 0;
  uint64_t slice_elements = 0;
  std::vector<int64_t> gpus{}, groups{}, members{}, slices{};

  // The type of the elements that GPUs bring: slices come with elements that are added up.
  DType dtype_brought() const { return slice_elements ? Widened(dtype) : dtype; }
};

// All sites of sums on GPUs have such a description.
inline const CudaSpec& CudaSpecOf(const SumSite& site) { return static_cast<const CudaSpec&>(*site.spec); }

// Throws std::invalid_argument if these aren't such texts.
CudaSpec ParseCudaSpec(std::string_view sum, std::string_view gpu);

}  // namespace passing

#endif  // XLA_FFI_FFI_CUDA_SPEC_H_
