// The bounds. Notation: H ranks, h = ceil(log2 H), E the exponent agreed for a block, so |x| < 2^E for each finite
// host element x of each rank. Each lane is summed over the ranks modulo 2^32, in any order.
//
// float32, float16 (host elements are float32): one lane, q = x * 2^s rounded to an integer,
// s = min(30-h-E, 149).
//   Range. |q| <= 2^(30-h), as 2^(30-h) is itself an integer; so |sum of q| <= 2^h * 2^(30-h) = 2^30 < 2^31: the sum
//   modulo 2^32, read as int32, is the sum, with a bit to spare.
//   Error. The product is exact in float32, or its integer is 0: x has 24 bits, and is multiplied by 2^a, then 2^b, s =
//   a + b, each about half of s. s lies between -108 and 149 (E up to 128, h to 10), so both are normal numbers. If s
//   is positive no product is less than x, nor more than 2^30; else what falls below 2^-126, and may lose bits, is 0
//   rounded. Rounding to an integer is off by 1/2 at most, each rank by 2^(E-31+h), the sum by H * 2^(E-31+h); by 0
//   where s = 149, as every float is a multiple of 2^-149.
//   Decoding: the sum is rounded once to the dtype's 24 or 11 bits, half a step more. The product with 2^-s is
//   exact, since s <= 149 leaves no bit below the last of a denormal; or infinite.
//   Exact. An element of 24 bits and |x| >= 2^(E-7+h) has its last bit at 2^(E-30+h) or above, so q is exact.
//
// bfloat16 up to h = 7 (host elements are float32): half a lane, q = x * 2^s rounded to an integer, s = min(15-h-E,
// 126), and cut off at L = 2^(15-h) - 1 in magnitude. Two elements' q are a lane as hi * 2^16 + lo.
//   Range. |sum of q| <= 2^h * L = 2^15 - 2^h < 2^15, for hi and lo alike. So the sum of the lanes modulo 2^32 has the
//   sum of lo in its low 16 bits, read as int16, and without that the sum of hi in its high 16 bits, read likewise.
//   Cut off. An x of one device has 8 bits: |x| <= 2^E - 2^(E-8), so |q| <= 2^(15-h) - 2^(7-h) <= L. Only a sum over
//   devices may lie within half a unit below 2^E: it is off by less than a unit. From h = 8 on, 129 ranks, the largest
//   elements would be cut off as well, and be left with fewer than 8 bits: there a bfloat16 is sent as a float16 is.
//   Error. Else each rank is off by 1/2 at most, the sum by H * 2^(E-16+h), or by H * 2^-127 where s = 126 (elements
//   below half of the smallest normal bfloat16 become 0; XLA has no denormals either).
//   The product is exact in float32, as 2^s is a normal power of two; or, if s < 0, so small that its integer is 0.
//   Decoding: the sum has 16 bits, so its product with 2^-s >= 2^-126 is exact, or infinite; rounded once to 8 bits.
//   Exact. An x of 8 bits and |x| >= 2^(E-8+h) has its last bit at 2^(E-15+h) or above.
//
// float64: two lanes, q = x * 2^s rounded to an integer, s = min(61-2h-E, 1074), as
//   hi = x * 2^(s-k) rounded to an integer, k = 31-h;  lo = (x * 2^(s-k) - hi) * 2^k rounded to an integer.
//   One rounding. With y = x * 2^(s-k), y - hi is exact: it is a multiple of y's last bit and, if hi is not 0, no more
//   in magnitude than y; if hi is 0 it is y. So hi * 2^k + lo is x * 2^s rounded to nearest, ties to even since 2^k is
//   even. (y itself is exact unless it falls below 2^-1022, where q is 0 either way.)
//   Range. s - k <= 30-h-E, so |hi| <= 2^(30-h) as above, and |lo| <= 2^(k-1) = 2^(30-h): each lane's sum is at most
//   2^30 in magnitude.
//   Error. H * 2^(-s-1), that is H * 2^(E-62+2h), or 0 where s = 1074 (every double is a multiple of 2^-1074).
//   Decoding: sum of hi times 2^k is exact, adding the sum of lo rounds once to 53 bits, and the product with 2^-s is
//   exact, as above.
//
// Narrow wires of float32, float16 and bfloat16: narrow_lanes.h. Floats of small sums: precise_lanes.h. Elements that
// one rank alone has: moved_bits.h.
//
// int32 and uint32: one lane; exact modulo 2^32.
// int8, uint8: three a lane at bits 0, 12 and 24 for H <= 16 (16 * 255 < 2^12), two at bits 0 and 16 for H <= 257 (257
// * 255 < 2^16), else one. The highest may wrap: only its 8 bits count. int16, uint16: three in two lanes for H <= 257,
// else one. The first and second are the upper halves, and may wrap; the third one's bytes are below them, and sum to
// less than 2^16 each. int64 and uint64: three lanes of at most 22 unsigned bits: 2^10 ranks sum to less than 2^32.
//
// The number of ranks: kMaxWorldSize = 2^10. One more could overflow the lowest lane of an int64, (2^10 + 1) (2^22 - 1)
// > 2^32. The floats would go on: at h = 10 the largest float32 of a block keeps 20 bits, a float64 41.
//
// Negative zeros come out as +0 once a switch has summed them: integers have one zero.
#include "host/numbers/fixed_point.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>
#include <type_traits>
#include <vector>

#include "host/numbers/float_mode.h"
#include "host/numbers/formats.h"
#include "host/numbers/host_elements.h"
#include "host/numbers/lane_kernels.h"
#include "host/numbers/moved_bits.h"
#include "host/numbers/narrow_kernels.h"
#include "host/numbers/narrow_lanes.h"
#include "host/numbers/precise_lanes.h"
#include "wire/header.h"

namespace passing {
namespace {

using kernels::Bits;
using kernels::PowerOfTwo;
using kernels::WithFormat;

constexpr uint32_t kMaxRanksOfThreeBytes = 16, kMaxRanksOfBytes = 257;
static_assert(kMaxRanksOfThreeBytes * 0xFF < 1 << 12 && kMaxRanksOfBytes * 0xFF < 1 << 16);

// Two elements may share a lane.
template <typename Format>
constexpr bool kMayBePacked =
    std::is_same_v<Format, kernels::BFloat16> || std::is_same_v<Format, kernels::Wider<kernels::BFloat16>>;
constexpr uint32_t kMaxPackedHeadroomBits = 7;
bool IsPacked(const ElementFormat& format) {
  return !format.precise && HeadroomBits(format.world_size) <= kMaxPackedHeadroomBits;
}

// The flags of elements that aren't all finite.
template <typename Wide>
uint8_t FlagsOf(const void* elements, size_t count) {
  uint8_t flags = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto bits = kernels::Load<typename Bits<Wide>::Int>(elements, i);
    const auto magnitude = bits & Bits<Wide>::kMagnitude;
    if (magnitude < Bits<Wide>::kInfinity) continue;
    flags |= magnitude > Bits<Wide>::kInfinity ? wire::kFlagNaN : bits < 0 ? wire::kFlagNegInf : wire::kFlagPosInf;
  }
  return flags;
}

bool IsZero(const void* bytes, size_t count) {
  const auto* first = static_cast<const uint8_t*>(bytes);
  return count == 0 || (*first == 0 && std::memcmp(first, first + 1, count - 1) == 0);
}

constexpr uint32_t kMaxHeadroomBits = std::bit_width(kMaxWorldSize - 1);
static_assert(uint64_t{kMaxWorldSize} * kernels::kInteger64Mask < uint64_t{1} << 32);

// The s of the bounds. The agreed exponent comes from the network: whatever it says, the arithmetic stays defined.
int Shift32(int32_t exponent, uint32_t headroom_bits) {
  assert(headroom_bits <= kMaxHeadroomBits);
  return std::min(30 - static_cast<int>(headroom_bits) - std::clamp(exponent, -148, 128), 149);
}
int Shift16(int32_t exponent, uint32_t headroom_bits) {
  assert(headroom_bits <= kMaxHeadroomBits);
  return std::min(15 - static_cast<int>(headroom_bits) - std::clamp(exponent, -132, 128), 126);
}
int Shift64(int32_t exponent, uint32_t headroom_bits) {
  assert(headroom_bits <= kMaxHeadroomBits);
  return std::min(61 - 2 * static_cast<int>(headroom_bits) - std::clamp(exponent, -1073, 1024), 1074);
}

// 2^shift as two factors, since it may be no normal number. 0 for kNoExponent: then all elements are 0 or not finite,
// and so every lane and the sum are 0.
struct Scale {
  double a, b;

  Scale(int32_t exponent, int shift)
      : a(exponent == kNoExponent ? 0 : PowerOfTwo(shift / 2)), b(PowerOfTwo(shift - shift / 2)) {}
};

// The same for bfloat16, whose shifts are those of normal floats.
float Scale16(int32_t exponent, int shift) {
  return exponent == kNoExponent ? 0 : static_cast<float>(PowerOfTwo(shift));
}

// The smallest E with |x| < 2^E, where `bits` are those of the finite |x|.
int32_t ExponentOf(int32_t bits) {
  if (bits == 0) return kNoExponent;
  return bits >> 23 ? (bits >> 23) - 126 : std::bit_width(static_cast<uint32_t>(bits)) - 149;
}
int32_t ExponentOf(int64_t bits) {
  if (bits == 0) return kNoExponent;
  const auto field = static_cast<int32_t>(bits >> 52);
  return field ? field - 1022 : std::bit_width(static_cast<uint64_t>(bits)) - 1074;
}

// Turns lanes of `Format` into elements of `Result`, which is the same format or what its elements are added up as.
template <typename Format, typename Result>
void DecodeFloats(const ElementFormat& format, const uint8_t* lanes, size_t count, int32_t exponent, void* out) {
  const uint32_t headroom_bits = HeadroomBits(format.world_size);
  if (exponent == kMovedBits) return DecodeMovedAs<Format, Result>(format, lanes, count, out);
  if (format.precise) {
    const DType dtype = std::is_same_v<Format, Result>                  ? format.dtype
                        : std::is_same_v<typename Format::Wide, double> ? DType::kFloat64
                                                                        : DType::kFloat32;
    return DecodePrecise(dtype, headroom_bits, lanes, count, exponent, out);
  }
  if constexpr (std::is_same_v<typename Format::Wide, double>) {
    const Scale scale(exponent, -Shift64(exponent, headroom_bits));
    kernels::DecodeFloat64(lanes, count, scale.a, scale.b, PowerOfTwo(31 - static_cast<int>(headroom_bits)), out);
  } else {
    if (format.is_narrow()) {
      return WithBits(format.wire_dtype, [&]<uint32_t kBits>(std::integral_constant<uint32_t, kBits>) {
        DecodeNarrow<Result, kBits>(lanes, count, exponent, format.world_size, out);
      });
    }
    if constexpr (kMayBePacked<Format>) {
      if (IsPacked(format)) {
        const float scale = Scale16(exponent, -Shift16(exponent, headroom_bits));
        return kernels::DecodePairs<Result>(lanes, count, scale, out);
      }
    }
    const Scale scale(exponent, -Shift32(exponent, headroom_bits));
    kernels::DecodeFloat32<Result>(lanes, count, static_cast<float>(scale.a), static_cast<float>(scale.b), out);
  }
}

}  // namespace

LaneGroup LaneGroupOf(const ElementFormat& format) {
  const DType dtype = format.dtype;
  const uint32_t ranks = format.world_size;
  if (format.is_narrow()) return {.elements = 32 / BitsOf(format.wire_dtype), .lanes = 1};
  if (format.precise) return {.elements = 1, .lanes = PreciseLanesOf(dtype)};
  if (Narrowed(dtype) == DType::kBFloat16 && IsPacked(format)) return {.elements = 2, .lanes = 1};
  if (SizeOf(dtype) == 1) {
    return {.elements = ranks <= kMaxRanksOfThreeBytes ? 3u : ranks <= kMaxRanksOfBytes ? 2u : 1u, .lanes = 1};
  }
  if (SizeOf(dtype) == 2 && !IsFloat(dtype) && ranks <= kMaxRanksOfBytes) return {.elements = 3, .lanes = 2};
  if (SizeOf(dtype) < 8) return {.elements = 1, .lanes = 1};
  return {.elements = 1, .lanes = IsFloat(dtype) ? 2u : 3u};
}

uint32_t BlockElements(const ElementFormat& format, uint64_t leaf_elements) {
  constexpr uint64_t kMaxBlocksOfSmallLeaf = 120, kElements = 256;
  if (format.is_narrow() || !IsFloat(format.dtype)) return kMaxBlockElements;
  const uint64_t at_least = (leaf_elements + kMaxBlocksOfSmallLeaf - 1) / kMaxBlocksOfSmallLeaf;
  const auto elements = static_cast<uint32_t>(std::min(std::bit_ceil(at_least), kElements));
  return std::max(elements, LaneGroupOf(format).elements);
}

size_t LaneCount(const ElementFormat& format, size_t count) {
  const LaneGroup group = LaneGroupOf(format);
  return (count + group.elements - 1) / group.elements * group.lanes;
}

uint32_t HeadroomBits(uint32_t world_size) {
  assert(world_size >= 1 && world_size <= kMaxWorldSize);
  return static_cast<uint32_t>(std::bit_width(world_size - 1));
}

int32_t BlockExponent(const ElementFormat& format, std::span<const void* const> inputs, size_t count) {
  const DefaultFloatMode mode;
  return WithFormat(format.dtype, [&]<typename Format>(Format) -> int32_t {
    using Wide = typename Format::Wide;
    if constexpr (std::is_floating_point_v<Wide>) {
      using Int = typename Bits<Wide>::Int;
      Scratch<Format> scratch;
      const void* elements = nullptr;
      const auto largest = [&]() -> Int {
        if constexpr (std::is_same_v<Format, kernels::BFloat16>) {
          // The high half of a float32, and compared as such.
          if (inputs.size() == 1) return Int{kernels::LargestMagnitude<int16_t>(elements = inputs[0], count)} << 16;
        }
        return kernels::LargestMagnitude<Wide>(elements = HostElements<Format>(inputs, count, scratch), count);
      }();
      if constexpr (std::is_same_v<Wide, float>) {
        if (format.is_narrow()) return CodeOf(largest);
      }
      if (largest != 0) return ExponentOf(largest);
      const size_t bytes = elements == inputs[0] ? sizeof(typename Format::Stored) : sizeof(Wide);
      return IsZero(elements, count * bytes) ? kNoExponent : kMinExponent;
    }
    return kNoExponent;
  });
}

uint8_t EncodeLanes(const ElementFormat& format, std::span<const void* const> inputs, size_t count, int32_t exponent,
                    uint8_t* lanes, const Rounding& rounding) {
  const DefaultFloatMode mode;
  const uint32_t headroom_bits = HeadroomBits(format.world_size);
  if (format.precise && exponent != kMovedBits) {
    std::vector<double> elements;
    AppendHostElements(format.dtype, inputs, count, elements);
    return EncodePrecise(format.dtype, headroom_bits, elements, exponent, lanes);
  }
  return WithFormat(format.dtype, [&]<typename Format>(Format) -> uint8_t {
    using Wide = typename Format::Wide;
    Scratch<Format> scratch;
    if constexpr (std::is_floating_point_v<Wide>) {
      if (exponent == kMovedBits) {
        EncodeMovedElements<Format>(format, inputs, count, lanes);
        return 0;
      }
    }
    if constexpr (kMayBePacked<Format>) {
      if (!format.is_narrow() && IsPacked(format)) {
        const float scale = Scale16(exponent, Shift16(exponent, headroom_bits));
        const auto limit = static_cast<float>((1 << (15 - headroom_bits)) - 1);
        // A single device's elements need no scratch.
        if (inputs.size() == 1 && kernels::EncodePairs<Format>(inputs[0], count, scale, limit, lanes)) return 0;
        const void* elements = HostElements<Format>(inputs, count, scratch);
        if (inputs.size() > 1 && kernels::EncodePairs<kernels::Float32>(elements, count, scale, limit, lanes)) return 0;
        return FlagsOf<float>(elements, count);
      }
    }
    const void* elements = HostElements<Format>(inputs, count, scratch);
    bool finite = true;
    if constexpr (std::is_same_v<Wide, float>) {
      if (format.is_narrow()) {
        finite = WithBits(format.wire_dtype, [&]<uint32_t kBits>(std::integral_constant<uint32_t, kBits>) {
          return EncodeNarrow<kBits>(elements, count, exponent, format.world_size, rounding, lanes);
        });
      } else {
        const Scale scale(exponent, Shift32(exponent, headroom_bits));
        finite =
            kernels::EncodeFloat32(elements, count, static_cast<float>(scale.a), static_cast<float>(scale.b), lanes);
      }
    } else if constexpr (std::is_same_v<Wide, double>) {
      const int low_bits = 31 - static_cast<int>(headroom_bits);
      const Scale scale(exponent, Shift64(exponent, headroom_bits) - low_bits);
      finite = kernels::EncodeFloat64(elements, count, scale.a, scale.b, PowerOfTwo(low_bits), lanes);
    } else if constexpr (std::is_same_v<Wide, uint32_t>) {
      const uint32_t together = LaneGroupOf(format).elements;
      if (together == 1) {
        kernels::EncodeInteger32(elements, count, lanes);
      } else if (sizeof(typename Format::Stored) == 2) {
        kernels::EncodeHalves(elements, count, lanes);
      } else {
        (together == 3 ? kernels::EncodeBytes<3> : kernels::EncodeBytes<2>)(elements, count, lanes);
      }
    } else {
      kernels::EncodeInteger64(elements, count, lanes);
    }
    if constexpr (std::is_floating_point_v<Wide>) {
      if (!finite) return FlagsOf<Wide>(elements, count);
    }
    return 0;
  });
}

void DecodeLanes(const ElementFormat& format, const uint8_t* lanes, size_t count, int32_t exponent,
                 std::span<void* const> outputs) {
  const DefaultFloatMode mode;
  WithFormat(format.dtype, [&]<typename Format>(Format) {
    using Wide = typename Format::Wide;
    void* const out = outputs[0];
    if constexpr (std::is_floating_point_v<Wide>) {
      DecodeFloats<Format, Format>(format, lanes, count, exponent, out);
    } else if constexpr (std::is_same_v<Wide, uint32_t>) {
      const uint32_t together = LaneGroupOf(format).elements;
      if (together == 1) {
        kernels::DecodeInteger32<Format>(lanes, count, out);
      } else if (sizeof(typename Format::Stored) == 2) {
        kernels::DecodeHalves(lanes, count, out);
      } else {
        (together == 3 ? kernels::DecodeBytes<3> : kernels::DecodeBytes<2>)(lanes, count, out);
      }
    } else {
      kernels::DecodeInteger64(lanes, count, out);
    }
    CopyToOthers(outputs, 0, count * sizeof(typename Format::Stored));
  });
}

void DecodeOwnLanes(const ElementFormat& format, const uint8_t* lanes, size_t count, int32_t exponent, void* elements) {
  const DefaultFloatMode mode;
  WithFormat(format.dtype, [&]<typename Format>(Format) {
    using Wide = typename Format::Wide;
    if constexpr (std::is_floating_point_v<Wide>) {
      using Result = std::conditional_t<std::is_same_v<Wide, double>, kernels::Float64, kernels::Float32>;
      DecodeFloats<Format, Result>(format, lanes, count, exponent, elements);
    } else {
      assert(false);
    }
  });
}

void EncodeMaxima(std::span<const void* const> inputs, size_t count, uint8_t* lanes) {
  Scratch<kernels::Maximum32> scratch;
  kernels::EncodeInteger32(HostElements<kernels::Maximum32>(inputs, count, scratch), count, lanes);
}

}  // namespace passing
