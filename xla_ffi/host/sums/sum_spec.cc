#include "host/sums/sum_spec.h"

#include "host/sums/spec_lines.h"

namespace passing {

SumSpec ParseSumSpec(std::string_view text) {
  SumSpec spec;
  SpecLines lines(text);
#define PASSING_TAKE(type, name, value) lines.Take(#name, spec.name);
  PASSING_SUM_SPEC(PASSING_TAKE)
#undef PASSING_TAKE
  lines.End();
  if (spec.op == Op::kMax && spec.dtype != DType::kInt32) throw WrongSpec("maxima of int32", text);
  if (spec.wire_dtype != WireDtype::kFull && !MayBeNarrow(spec.dtype))
    throw WrongSpec("floats on a narrow wire_dtype", text);
  return spec;
}

}  // namespace passing
