// Floats to 32-bit lanes and back, with one power-of-two scale for each block. Pure functions.
#ifndef XLA_FFI_HOST_NUMBERS_FIXED_POINT_H_
#define XLA_FFI_HOST_NUMBERS_FIXED_POINT_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "host/numbers/dtype.h"

namespace passing {

// The smallest number of elements that fill whole 32-bit lanes. An element has one lane, but two bfloat16 of up to 128
// ranks share one, a float64 has two, and an int64 or uint64 three (see the bounds in the .cc).
struct LaneGroup {
  uint32_t elements;
  uint32_t lanes;
};
LaneGroup LaneGroupOf(DType dtype, uint32_t headroom_bits);

// The number of lanes that carry `count` elements. The second half of a last, single bfloat16's lane is 0.
size_t LaneCount(DType dtype, size_t count, uint32_t headroom_bits);

// Elements that share one scale. Blocks restart at each leaf, so a leaf's bits don't depend on its bucket.
// 1440 = 4 x 360: a whole number of chunks at an MTU of 1500.
inline constexpr uint32_t kBlockElements = 1440;

// The exponent of a block whose finite elements are all zero. It is below every other exponent.
inline constexpr int32_t kNoExponent = -(1 << 20);

// The most ranks of a job. More would overflow a lane of a 64-bit integer; the other formats have more headroom (see
// the bounds in the .cc). A switch has fewer workers, so this many ranks need a tree of switches.
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

// Turns the sum's lanes into elements, rounded once (to nearest, ties to even), and writes them to every output. An
// output may be an input: no input is read.
void DecodeLanes(DType dtype, const uint8_t* lanes, size_t count, int32_t exponent, uint32_t headroom_bits,
                 std::span<void* const> outputs);

// Writes the lanes for a maximum of int32: element i of the host is the greatest inputs[k][i]. DecodeLanes takes the
// results.
void EncodeMaxima(std::span<const void* const> inputs, size_t count, uint8_t* lanes);

}  // namespace passing

#endif  // XLA_FFI_HOST_NUMBERS_FIXED_POINT_H_
