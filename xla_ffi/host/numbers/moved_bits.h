// Elements of a block that only one rank has: their bits are their lanes, and every other rank's lanes are 0. Only
// fixed_point.cc includes this; formats.h says how floats are described.
//
// The lanes are those that the block's fixed point would have (LaneGroupOf). An element of 16 bits is in the lower half
// of its lane, or with its neighbour in both halves, the first one in the upper half. Of two or three lanes a float64
// takes the first two, the upper half first, and any other element the first one; the rest is 0. No bit is lost, so -0,
// denormals and the payloads of NaN arrive. Of several devices whose elements aren't all +0, the host element is sent,
// rounded to the dtype.
#ifndef XLA_FFI_HOST_NUMBERS_MOVED_BITS_H_
#define XLA_FFI_HOST_NUMBERS_MOVED_BITS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "host/numbers/fixed_point.h"
#include "host/numbers/formats.h"
#include "host/numbers/host_elements.h"
#include "wire/lanes.h"

namespace passing {

// A result's bits as an integer.
template <typename Format>
using BitsOfResult =
    std::conditional_t<sizeof(decltype(Format::Narrow({}))) == 2, uint16_t,
                       std::conditional_t<sizeof(decltype(Format::Narrow({}))) == 4, uint32_t, uint64_t>>;

// Calls f(element's index, lane of its highest bits, bits that it is shifted up there) for each element.
template <typename F>
void ForEachMoved(const LaneGroup& group, size_t count, F&& f) {
  for (size_t i = 0; i < count; ++i) {
    const size_t lane = i / group.elements * group.lanes;
    f(i, lane, group.elements == 2 && i % 2 == 0 ? 16 : 0);
  }
}

// `results`: as integers, of BitsOfResult.
template <typename Int>
void EncodeMoved(const LaneGroup& group, const void* results, size_t count, uint8_t* lanes) {
  std::fill_n(lanes, 4 * ((count + group.elements - 1) / group.elements * group.lanes), uint8_t{0});
  ForEachMoved(group, count, [&](size_t i, size_t lane, int shift) {
    const auto bits = kernels::Load<Int>(results, i);
    if constexpr (sizeof(Int) == 8) {
      wire::StoreLane(lanes, lane, static_cast<uint32_t>(bits >> 32));
      wire::StoreLane(lanes, lane + 1, static_cast<uint32_t>(bits));
    } else {
      wire::StoreLane(lanes, lane, wire::LoadLane(lanes, lane) | uint32_t{bits} << shift);
    }
  });
}

template <typename Int>
void DecodeMoved(const LaneGroup& group, const uint8_t* lanes, size_t count, void* results) {
  const uint32_t mask = group.elements == 2 ? 0xFFFF : ~uint32_t{0};
  ForEachMoved(group, count, [&](size_t i, size_t lane, int shift) {
    if constexpr (sizeof(Int) == 8) {
      kernels::Store(results, i, Int{wire::LoadLane(lanes, lane)} << 32 | wire::LoadLane(lanes, lane + 1));
    } else {
      kernels::Store(results, i, static_cast<Int>(wire::LoadLane(lanes, lane) >> shift & mask));
    }
  });
}

// Writes the host elements, rounded to the dtype where several devices were added up, as moved bits.
template <typename Format>
void EncodeMovedElements(const ElementFormat& format, std::span<const void* const> inputs, size_t count,
                         uint8_t* lanes) {
  using Result = decltype(Format::Narrow({}));
  using Int = BitsOfResult<Format>;
  const LaneGroup group = LaneGroupOf(format);
  if constexpr (sizeof(typename Format::Stored) == sizeof(Int) && !std::is_same_v<Result, uint32_t>) {
    if (inputs.size() == 1) return EncodeMoved<Int>(group, inputs[0], count, lanes);
  }
  Scratch<Format> scratch;
  const void* elements = HostElements<Format>(inputs, count, scratch);
  std::array<Result, kMaxBlockElements> results;
  for (size_t i = 0; i < count; ++i) results[i] = Format::Narrow(kernels::Load<typename Format::Wide>(elements, i));
  EncodeMoved<Int>(group, results.data(), count, lanes);
}

// Turns moved bits of `Format` into elements of `Result`, which is the same format or what its elements are added up
// as.
template <typename Format, typename Result>
void DecodeMovedAs(const ElementFormat& format, const uint8_t* lanes, size_t count, void* out) {
  if constexpr (std::is_same_v<Format, Result> || sizeof(BitsOfResult<Format>) == sizeof(typename Format::Wide)) {
    DecodeMoved<BitsOfResult<Format>>(LaneGroupOf(format), lanes, count, out);
  } else {
    std::array<BitsOfResult<Format>, kMaxBlockElements> results;
    DecodeMoved<BitsOfResult<Format>>(LaneGroupOf(format), lanes, count, results.data());
    for (size_t i = 0; i < count; ++i) kernels::Store(out, i, Format::Widen(results[i]));
  }
}

}  // namespace passing

#endif  // XLA_FFI_HOST_NUMBERS_MOVED_BITS_H_
