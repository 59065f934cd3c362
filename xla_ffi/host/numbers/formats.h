// Describes each dtype to the loops over elements.
//
// The loops are compiled as wire/lanes.h says, and all clones give the same bits: each element goes through the same
// IEEE operations, of which only those marked "rounds" are inexact, and the reductions are integer maxima. No loop is
// inlined, so that none of its operations leaves the scope of the caller's DefaultFloatMode. Each loop belongs to one
// .cc file.
#ifndef XLA_FFI_HOST_NUMBERS_FORMATS_H_
#define XLA_FFI_HOST_NUMBERS_FORMATS_H_

#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "host/numbers/dtype.h"
#include "host/numbers/narrow_float.h"
#include "wire/lanes.h"

namespace passing::kernels {

// Buffers and packets may be unaligned.
template <typename T>
inline T Load(const void* base, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const uint8_t*>(base) + index * sizeof(T), sizeof(T));
  return value;
}
template <typename T>
inline void Store(void* base, size_t index, T value) {
  std::memcpy(static_cast<uint8_t*>(base) + index * sizeof(T), &value, sizeof(T));
}

// From 2^-1022 to 2^1023.
inline double PowerOfTwo(int exponent) {
  assert(-1022 <= exponent && exponent <= 1023);
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

// A dtype as the loops see it: buffers hold Stored, and elements of several devices are added up as Wide.
// Integers of one size are one format: their sums wrap, and signed and unsigned agree modulo 2^bits.
template <typename T>
struct Integer {
  using Stored = T;
  using Wide = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  static Wide Widen(Stored value) { return value; }
  static Stored Narrow(Wide value) { return static_cast<Stored>(value); }
};
// int32 for maxima instead of sums, where the sign matters.
struct Maximum32 {
  using Stored = int32_t;
  using Wide = int32_t;
  static Wide Widen(Stored value) { return value; }
  static Stored Narrow(Wide value) { return value; }
};
struct Float16 {
  using Stored = uint16_t;
  using Wide = float;
  static Wide Widen(Stored value) { return WidenFloat16(value); }
  static Stored Narrow(Wide value) { return NarrowFloat16(value); }
};
struct BFloat16 {
  using Stored = uint16_t;
  using Wide = float;
  static Wide Widen(Stored value) { return WidenBFloat16(value); }
  static Stored Narrow(Wide value) { return NarrowBFloat16(value); }
};
struct Float32 {
  using Stored = float;
  using Wide = float;
  static Wide Widen(Stored value) { return value; }
  static Stored Narrow(Wide value) { return value; }
};
struct Float64 {
  using Stored = double;
  using Wide = double;
  static Wide Widen(Stored value) { return value; }
  static Stored Narrow(Wide value) { return value; }
};

// kWideFloat16 and kWideBFloat16: float32 whose sums are of format `Narrowed`.
template <typename Narrowed>
struct Wider {
  using Stored = float;
  using Wide = float;
  static Wide Widen(Stored value) { return value; }
  static uint32_t Narrow(Wide value) { return Narrowed::Narrow(value); }
};

// Does a result have another type than Wide?
template <typename Format>
constexpr bool kNarrows = !std::is_same_v<decltype(Format::Narrow(typename Format::Wide{})), typename Format::Wide>;

// An IEEE format's bits as integers: magnitudes compare as the numbers do, and from kInfinity on nothing is finite.
template <typename Wide>
struct Bits;
template <>
struct Bits<float> {
  using Int = int32_t;
  static constexpr Int kMagnitude = 0x7FFFFFFF;
  static constexpr Int kInfinity = 0x7F800000;
};
template <>
struct Bits<double> {
  using Int = int64_t;
  static constexpr Int kMagnitude = 0x7FFFFFFFFFFFFFFF;
  static constexpr Int kInfinity = 0x7FF0000000000000;
};

// bfloat16 is the high half of a float32.
template <>
struct Bits<int16_t> {
  using Int = int16_t;
  static constexpr Int kMagnitude = 0x7FFF;
  static constexpr Int kInfinity = 0x7F80;
};

// Calls f with the dtype's format.
template <typename F>
decltype(auto) WithFormat(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kInt8:
    case DType::kUint8:
      return f(Integer<uint8_t>{});
    case DType::kInt16:
    case DType::kUint16:
      return f(Integer<uint16_t>{});
    case DType::kInt32:
    case DType::kUint32:
      return f(Integer<uint32_t>{});
    case DType::kInt64:
    case DType::kUint64:
      return f(Integer<uint64_t>{});
    case DType::kFloat16:
      return f(Float16{});
    case DType::kBFloat16:
      return f(BFloat16{});
    case DType::kFloat32:
      return f(Float32{});
    case DType::kFloat64:
      return f(Float64{});
    case DType::kWideFloat16:
      return f(Wider<Float16>{});
    case DType::kWideBFloat16:
      return f(Wider<BFloat16>{});
  }
  __builtin_unreachable();
}

}  // namespace passing::kernels

#endif  // XLA_FFI_HOST_NUMBERS_FORMATS_H_
