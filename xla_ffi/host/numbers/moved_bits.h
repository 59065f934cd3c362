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
#include <bit>
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

namespace kernels {

static_assert(std::endian::native == std::endian::little);  // of two lanes, or two elements, in one word

// An element a lane, or two of them where it has 64 bits.
template <typename Int>
PASSING_CLONES void EncodeMovedEach(const void* results, size_t count, uint8_t* __restrict lanes) {
  for (size_t i = 0; i < count; ++i) {
    if constexpr (sizeof(Int) == 8) {
      Store(lanes, i, __builtin_bswap64(Load<Int>(results, i)));
    } else {
      wire::StoreLane(lanes, i, Load<Int>(results, i));
    }
  }
}

template <typename Int>
PASSING_CLONES void DecodeMovedEach(const uint8_t* __restrict lanes, size_t count, void* __restrict results) {
  for (size_t i = 0; i < count; ++i) {
    if constexpr (sizeof(Int) == 8) {
      Store(results, i, __builtin_bswap64(Load<Int>(lanes, i)));
    } else {
      Store(results, i, static_cast<Int>(wire::LoadLane(lanes, i)));
    }
  }
}

// Two elements of 16 bits a lane. They are loaded and stored as one word, in which the first one is the lower half.
template <typename Int>
PASSING_CLONES void EncodeMovedPairs(const void* results, size_t count, uint8_t* __restrict lanes) {
  for (size_t i = 0; i < count / 2; ++i) {
    if constexpr (sizeof(Int) == 2) {
      wire::StoreLane(lanes, i, std::rotl(Load<uint32_t>(results, i), 16));
    } else {
      const auto pair = Load<uint64_t>(results, i);
      wire::StoreLane(lanes, i, static_cast<uint32_t>(pair << 16 | pair >> 32));
    }
  }
  if (count % 2) wire::StoreLane(lanes, count / 2, uint32_t{Load<Int>(results, count - 1)} << 16);
}

template <typename Int>
PASSING_CLONES void DecodeMovedPairs(const uint8_t* __restrict lanes, size_t count, void* __restrict results) {
  for (size_t i = 0; i < count / 2; ++i) {
    const uint32_t lane = wire::LoadLane(lanes, i);
    if constexpr (sizeof(Int) == 2) {
      Store(results, i, std::rotl(lane, 16));
    } else {
      Store(results, i, uint64_t{lane & 0xFFFF} << 32 | lane >> 16);
    }
  }
  if (count % 2) Store(results, count - 1, static_cast<Int>(wire::LoadLane(lanes, count / 2) >> 16));
}

}  // namespace kernels

// Has the element no lanes but those of its bits?
template <typename Int>
bool FillsItsLanes(const LaneGroup& group) {
  return group.elements == 1 && group.lanes == (sizeof(Int) + 3) / 4;
}

// `results`: as integers, of BitsOfResult.
template <typename Int>
void EncodeMoved(const LaneGroup& group, const void* results, size_t count, uint8_t* lanes) {
  if constexpr (sizeof(Int) < 8) {
    if (group.elements == 2) return kernels::EncodeMovedPairs<Int>(results, count, lanes);
  }
  if (FillsItsLanes<Int>(group)) return kernels::EncodeMovedEach<Int>(results, count, lanes);
  std::fill_n(lanes, 4 * count * group.lanes, uint8_t{0});
  for (size_t i = 0; i < count; ++i) {
    kernels::EncodeMovedEach<Int>(static_cast<const uint8_t*>(results) + i * sizeof(Int), 1,
                                  lanes + 4 * i * group.lanes);
  }
}

template <typename Int>
void DecodeMoved(const LaneGroup& group, const uint8_t* lanes, size_t count, void* results) {
  if constexpr (sizeof(Int) < 8) {
    if (group.elements == 2) return kernels::DecodeMovedPairs<Int>(lanes, count, results);
  }
  if (FillsItsLanes<Int>(group)) return kernels::DecodeMovedEach<Int>(lanes, count, results);
  for (size_t i = 0; i < count; ++i) {
    kernels::DecodeMovedEach<Int>(lanes + 4 * i * group.lanes, 1, static_cast<uint8_t*>(results) + i * sizeof(Int));
  }
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
