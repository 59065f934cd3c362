// Reductions of single elements that the transport doesn't know.
#ifndef XLA_FFI_MPI_ELEMENTS_H_
#define XLA_FFI_MPI_ELEMENTS_H_

#include <bit>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "host/numbers/narrow_float.h"
#include "mpi/call.h"

namespace passing::mpi {

// A float16.
struct Half {
  uint16_t bits;
  friend bool operator==(Half, Half) = default;
};

template <typename T>
inline constexpr bool kIsComplex = std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;

// Calls f(T()) with the C++ type of the elements.
template <typename F>
void WithType(const ElementType& type, F&& f) {
  switch (type.dtype) {
    case DType::kInt8:
      return f(int8_t());
    case DType::kInt16:
      return f(int16_t());
    case DType::kInt32:
      return f(int32_t());
    case DType::kInt64:
      return f(int64_t());
    case DType::kUint8:
      return f(uint8_t());
    case DType::kUint16:
      return f(uint16_t());
    case DType::kUint32:
      return f(uint32_t());
    case DType::kUint64:
      return f(uint64_t());
    case DType::kFloat16:
      return f(Half());
    case DType::kFloat32:
      return type.is_complex ? f(std::complex<float>()) : f(float());
    default:
      return type.is_complex ? f(std::complex<double>()) : f(double());
  }
}

// An int32 in the order of the elements of up to 32 bits, NaN above all others, and the element again. `smallest`: in
// the opposite order, NaN above all others as well.
template <typename T>
int32_t ToKey(T element, bool smallest) {
  int32_t key;
  if constexpr (std::is_same_v<T, float>) {
    if (std::isnan(element)) return std::numeric_limits<int32_t>::max();
    const auto bits = std::bit_cast<int32_t>(element);
    key = bits < 0 ? bits ^ 0x7fffffff : bits;
  } else if constexpr (std::is_same_v<T, Half>) {
    if ((element.bits & 0x7fff) > 0x7c00) return std::numeric_limits<int32_t>::max();
    const auto bits = static_cast<int16_t>(element.bits);
    key = bits < 0 ? bits ^ 0x7fff : bits;
  } else if constexpr (std::is_same_v<T, uint32_t>) {
    key = static_cast<int32_t>(element ^ 0x80000000u);
  } else {
    key = element;
  }
  return smallest ? ~key : key;
}

template <typename T>
T FromKey(int32_t key, bool smallest) {
  if constexpr (std::is_same_v<T, float>) {
    if (key == std::numeric_limits<int32_t>::max()) return std::numeric_limits<float>::quiet_NaN();
  }
  if constexpr (std::is_same_v<T, Half>) {
    if (key == std::numeric_limits<int32_t>::max()) return {0x7e00};
  }
  if (smallest) key = ~key;
  if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<float>(key < 0 ? key ^ 0x7fffffff : key);
  } else if constexpr (std::is_same_v<T, uint32_t>) {
    return static_cast<uint32_t>(key) ^ 0x80000000u;
  } else if constexpr (std::is_same_v<T, Half>) {
    return {static_cast<uint16_t>(key < 0 ? key ^ 0x7fff : key)};
  } else {
    return static_cast<T>(key);
  }
}

template <typename T>
T Product(T a, T b) {
  if constexpr (kIsComplex<T>) {
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  } else if constexpr (std::is_same_v<T, Half>) {
    return {NarrowFloat16(WidenFloat16(a.bits) * WidenFloat16(b.bits))};
  } else if constexpr (std::is_floating_point_v<T>) {
    return a * b;
  } else {
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));  // wraps, as XLA's does
  }
}

// NaN wins, and -0.0 is less than +0.0.
template <typename T>
T Extreme(T a, T b, bool smallest) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a)) return a;
    if (std::isnan(b)) return b;
    if (a == b) return std::signbit(a) == smallest ? a : b;
  }
  return (a < b) == smallest ? a : b;
}

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_ELEMENTS_H_
