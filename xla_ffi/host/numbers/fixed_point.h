// Floats to 32-bit lanes and back, with one power-of-two scale for each block. Pure functions.
#ifndef XLA_FFI_HOST_NUMBERS_FIXED_POINT_H_
#define XLA_FFI_HOST_NUMBERS_FIXED_POINT_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "host/numbers/dtype.h"

namespace passing {

// What shares 32-bit lanes: one element a lane, but two bfloat16 (of up to 128 ranks), and two lanes for a float64,
// three for an int64 or uint64 (see the bounds in the .cc).
struct LaneGroup {
  uint32_t elements;
  uint32_t lanes;
};
LaneGroup LaneGroupOf(DType dtype, uint32_t headroom_bits);

// Lanes that carry `count` elements. The second half of a last, single bfloat16's lane is 0.
size_t LaneCount(DType dtype, size_t count, uint32_t headroom_bits);

// Elements that share one scale. Blocks restart at each leaf, so a leaf's bits don't depend on its bucket.
// 1440 = 4 x 360: a whole number of chunks at an MTU of 1500.
inline constexpr uint32_t kBlockElements = 1440;

// The exponent lane of a block without a finite element other than zero. Below every other exponent.
inline constexpr int32_t kNoExponent = -(1 << 20);

// Ranks of a job. More would overflow a lane of a 64-bit integer; the other formats would hold on (see the bounds in
// the .cc). A switch has fewer workers: this many ranks are a tree of switches.
inline constexpr uint32_t kMaxWorldSize = 1024;

// Bits kept free for the sum of `world_size` hosts, 1 to kMaxWorldSize: ceil(log2(world_size)).
uint32_t HeadroomBits(uint32_t world_size);

// In all that follows `inputs` holds one pointer per local device, each to the same `count` elements of a
// leaf (at most kBlockElements of one block); element i of the host is inputs[0][i] + inputs[1][i] + ...,
// in that order, float16 and bfloat16 widened to float32 first. Any alignment; the thread's floating-point mode
// (rounding, flushed denormals) doesn't matter. A zero is +0 after EncodeLanes and DecodeLanes.

// The smallest E with |x| < 2^E for every finite host element x; kNoExponent if all are zero or not finite.
int32_t BlockExponent(DType dtype, std::span<const void* const> inputs, size_t count);

// Writes LaneCount(dtype, count, headroom_bits) lanes in network order. Integers ignore `exponent` and
// `headroom_bits`. Non-finite elements become 0 and set their wire::Flag in the value returned.
uint8_t EncodeLanes(DType dtype, std::span<const void* const> inputs, size_t count, int32_t exponent,
                    uint32_t headroom_bits, uint8_t* lanes);

// The sum's lanes to elements, rounded once (to nearest, ties to even), written to every output. An output
// may be an input: nothing of `inputs` is read.
void DecodeLanes(DType dtype, const uint8_t* lanes, size_t count, int32_t exponent, uint32_t headroom_bits,
                 std::span<void* const> outputs);

// The same for the maximum of int32: element i of the host is the greatest inputs[k][i]. DecodeLanes takes results.
void EncodeMaxima(std::span<const void* const> inputs, size_t count, uint8_t* lanes);

}  // namespace passing

#endif  // XLA_FFI_HOST_NUMBERS_FIXED_POINT_H_
