// Elements to 32-bit lanes and back, floats with one scale for each block. Pure functions.
#ifndef XLA_FFI_HOST_NUMBERS_FIXED_POINT_H_
#define XLA_FFI_HOST_NUMBERS_FIXED_POINT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "host/numbers/dtype.h"
#include "host/numbers/rounding.h"

namespace passing {

// Says how elements travel, alike on all ranks. A wire that isn't kFull has at most MaxRanksOf(wire) ranks.
struct ElementFormat {
  DType dtype;
  WireDtype wire_dtype = WireDtype::kFull;
  uint32_t world_size = 1;
  bool precise = false;  // floats of a small sum, on any wire: several lanes each (precise_lanes.h)

  bool is_narrow() const { return wire_dtype != WireDtype::kFull && MayBeNarrow(dtype) && !precise; }
};

// The smallest number of elements that fill whole 32-bit lanes. An element has one lane; but two bfloat16 of up to 128
// ranks share one, as do 2, 4 or 8 floats of a narrow wire and three int8 or two; three int16 have two lanes, a float64
// has two, and an int64 or uint64 three (see the bounds in the .cc). Where floats travel precisely, each has two lanes,
// a float64 three.
struct LaneGroup {
  uint32_t elements;
  uint32_t lanes;
};
LaneGroup LaneGroupOf(const ElementFormat& format);

// The number of lanes that carry `count` elements. What the last group has no elements for is 0.
size_t LaneCount(const ElementFormat& format, size_t count);

// The number of elements that share one scale, for a leaf of this many elements. Blocks restart at each leaf and follow
// its size alone, so a leaf's bits depend neither on its bucket nor on the size of packets (but those of narrow wires,
// as rounding.h names a block by its number in the sum; and small sums are precise). A leaf of up to 120 elements has
// one for each, or one for those that share a lane; it has at most 120 until they have 256 elements. With two lanes for
// each block (segment_exponents.h) its exponents are one packet at most, or 0.8 % of its data, but where sums are
// checked. A power of two divides most rows of tables: where each rank sends some rows and zeros for the others, a
// block has one rank's elements.
//
// A narrow wire's blocks have kMaxBlockElements: their lanes hold more elements, and the scales only one lane. So have
// those of integers, which have no scale.
uint32_t BlockElements(const ElementFormat& format, uint64_t leaf_elements);

// 4 x 360: a whole number of chunks at an MTU of 1500.
inline constexpr uint32_t kMaxBlockElements = 1440;

// The exponent, or code, of a block that has nothing but +0 on any rank. It is below every other one.
inline constexpr int32_t kNoExponent = -(1 << 20);

// Takes the place of a block's exponent where only one rank has anything but +0 in it: then the elements' bits travel
// as they are (moved_bits.h).
inline constexpr int32_t kMovedBits = 1 << 20;
inline bool HaveMovedBits(std::span<const int32_t> exponents) {
  return std::find(exponents.begin(), exponents.end(), kMovedBits) != exponents.end();
}

// BlockExponent returns a number between these, or kNoExponent; codes of narrow wires lie between 0 and 2040.
inline constexpr int32_t kMinExponent = -1074, kMaxExponent = 1024;

// The most ranks of a job. More would overflow a lane of a 64-bit integer; the other formats have more headroom (see
// the bounds in the .cc). A switch has fewer workers, so this many ranks need a tree of switches.
inline constexpr uint32_t kMaxWorldSize = 1024;

// Bits kept free for the sum of `world_size` hosts, 1 to kMaxWorldSize: ceil(log2(world_size)).
uint32_t HeadroomBits(uint32_t world_size);

// In all that follows `inputs` holds one pointer per local device, each to the same `count` elements of a
// leaf (at most kMaxBlockElements of one block); element i of the host is inputs[0][i] + inputs[1][i] + ...,
// in that order, float16 and bfloat16 widened to float32 first. Any alignment; the thread's floating-point mode
// (rounding, flushed denormals) doesn't matter. A zero is +0 after EncodeLanes and DecodeLanes, but of moved bits.

// The smallest E with |x| < 2^E for every finite host element x; kNoExponent if all are +0, and kMinExponent if they
// aren't, but all are zero or not finite. On a narrow wire it is the code of the smallest M of 4 significant bits with
// |x| <= M instead: the upper 12 bits of M as a float32, where infinity stands for 2^128; kNoExponent if all are zero
// or not finite. Codes compare as the numbers do.
int32_t BlockExponent(const ElementFormat& format, std::span<const void* const> inputs, size_t count);

// Writes LaneCount(format, count) lanes in network order. Integers ignore `exponent`, and all but narrow wires ignore
// `rounding`. Non-finite elements become 0 and set their wire::Flag in the value returned, but not as moved bits.
uint8_t EncodeLanes(const ElementFormat& format, std::span<const void* const> inputs, size_t count, int32_t exponent,
                    uint8_t* lanes, const Rounding& rounding = {});

// Turns the sum's lanes into elements, rounded once (to nearest, ties to even), and writes them to every output. An
// output may be an input: no input is read.
void DecodeLanes(const ElementFormat& format, const uint8_t* lanes, size_t count, int32_t exponent,
                 std::span<void* const> outputs);

// Turns the lanes of floats that EncodeLanes wrote on this host into float32, or float64 for float64, without rounding
// to the dtype: what the host adds to the sum.
void DecodeOwnLanes(const ElementFormat& format, const uint8_t* lanes, size_t count, int32_t exponent, void* elements);

// Writes the lanes for a maximum of int32: element i of the host is the greatest inputs[k][i]. DecodeLanes takes the
// results.
void EncodeMaxima(std::span<const void* const> inputs, size_t count, uint8_t* lanes);

}  // namespace passing

#endif  // XLA_FFI_HOST_NUMBERS_FIXED_POINT_H_
