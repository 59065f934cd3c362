// The description of a sum, which Python writes into a program as one text.
#ifndef XLA_FFI_FFI_SUM_SPEC_H_
#define XLA_FFI_FFI_SUM_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "host/sums/sum.h"

namespace passing {

// The world size of a program that was compiled in an elastic session: as many as the session has when it runs.
inline constexpr uint32_t kAnyWorldSize = 0;

// jax_passing/collective/naming/sum_spec.py says what each of these is. The text has them in the same order.
struct SumSpec {
  int64_t ordinal = 0;
  std::string program{};
  int64_t site = 0;
  std::string identity{};
  std::string site_name{};
  DType dtype = DType::kFloat32;
  Op op = Op::kSum;
  Wire wire = Wire::kFull;
  std::vector<uint64_t> leaf_elements{};
  uint32_t member_count = 1;
  uint32_t local_member_count = 1;
  uint32_t replica_count = 1;
  uint32_t world_size = 1;
  bool flat = false;
  bool conditional = false;
  std::string devices{};
  bool on_gpu = false;
  int64_t overlap_group = 0;
  uint64_t slice_elements = 0;
  bool residuals = false;
  std::vector<int64_t> gpus{}, gpu_groups{}, gpu_members{}, gpu_slices{};

  bool is_visit() const { return identity.empty(); }
};

// Throws std::invalid_argument if it isn't such a text.
SumSpec ParseSumSpec(std::string_view text);

}  // namespace passing

#endif  // XLA_FFI_FFI_SUM_SPEC_H_
