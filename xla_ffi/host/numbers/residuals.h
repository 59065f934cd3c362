// The residuals of a host's elements: what rounding keeps back of them. Pure.
#ifndef XLA_FFI_HOST_NUMBERS_RESIDUALS_H_
#define XLA_FFI_HOST_NUMBERS_RESIDUALS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "host/numbers/fixed_point.h"

namespace passing {

// The most lanes that `count` floats have.
inline constexpr size_t MaxFloatLanes(size_t count) { return 3 * count; }

// Writes the residual of each host element, the element minus what its lanes say, to every output; of L devices each
// gets the L-th part of it. No output may be an input. A residual that isn't finite, as that of NaN, is 0.
//
// `lanes`: as EncodeLanes wrote them of these `inputs`, which are as in fixed_point.h. For floats alone, and not for
// the wide types that no program names.
void WriteResiduals(const ElementFormat& format, std::span<const void* const> inputs, const uint8_t* lanes,
                    size_t count, int32_t exponent, std::span<void* const> outputs);

}  // namespace passing

#endif  // XLA_FFI_HOST_NUMBERS_RESIDUALS_H_
