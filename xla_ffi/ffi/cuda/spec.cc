#include "ffi/cuda/spec.h"

#include "host/sums/spec_lines.h"

namespace passing {

CudaSpec ParseCudaSpec(std::string_view sum, std::string_view gpu) {
  CudaSpec spec(ParseSumSpec(sum));
  SpecLines lines(gpu);
  lines.Take("overlap_group", spec.overlap_group);
  lines.Take("slice_elements", spec.slice_elements);
  lines.Take("gpus", spec.gpus);
  lines.Take("groups", spec.groups);
  lines.Take("members", spec.members);
  lines.Take("slices", spec.slices);
  lines.End();
  for (const auto* each : {&spec.groups, &spec.members, &spec.slices}) {
    if (each->size() != spec.gpus.size()) throw WrongSpec("as many groups, members and slices as GPUs", gpu);
  }
  return spec;
}

}  // namespace passing
