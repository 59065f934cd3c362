// The types that the elements of a sum may have.
#ifndef XLA_FFI_HOST_NUMBERS_DTYPE_H_
#define XLA_FFI_HOST_NUMBERS_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace passing {

// complex64 and complex128 are twice as many float32 and float64.
enum class DType : uint8_t {
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  // Internal types that no program names. The host's devices have added up such an element in float32, and its sum over
  // the hosts is a float16 or bfloat16. The sum is stored in the low half of the float32's four bytes, so that a device
  // reads it there without a conversion, which might change the bits of NaN.
  kWideFloat16,
  kWideBFloat16,
};

// The dtype of elements that a host's devices added up, and the dtype of their sum.
inline DType Widened(DType dtype) {
  return dtype == DType::kFloat16 ? DType::kWideFloat16 : dtype == DType::kBFloat16 ? DType::kWideBFloat16 : dtype;
}
inline DType Narrowed(DType dtype) {
  return dtype == DType::kWideFloat16 ? DType::kFloat16 : dtype == DType::kWideBFloat16 ? DType::kBFloat16 : dtype;
}

// How floats of up to 32 bits travel: with all bits that a lane has room for, or as integers of a few bits. Other
// dtypes always travel as kFull says.
enum class WireDtype : uint8_t { kFull, kInt16, kInt8, kInt4 };

// Parses "full", "int16", "int8" and "int4".
std::optional<WireDtype> ParseWireDtype(std::string_view name);
std::string_view NameOf(WireDtype wire_dtype);

// The bits of an element on its way; not for kFull.
inline uint32_t BitsOf(WireDtype wire_dtype) {
  constexpr uint32_t kBits[] = {0, 16, 8, 4};
  return kBits[static_cast<size_t>(wire_dtype)];
}

// The most ranks whose sums such a wire carries: each rank's integers reach from -q to q, q at least 1.
inline uint32_t MaxRanksOf(WireDtype wire_dtype) {
  return wire_dtype == WireDtype::kFull ? UINT32_MAX : (1u << (BitsOf(wire_dtype) - 1)) - 1;
}

// Parses "float32" and so on, as NumPy and JAX name dtypes.
std::optional<DType> ParseDType(std::string_view name);
std::string_view NameOf(DType dtype);

inline size_t SizeOf(DType dtype) {
  constexpr uint8_t kBytes[] = {1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 4, 4};
  return kBytes[static_cast<size_t>(dtype)];
}
inline bool IsFloat(DType dtype) { return dtype >= DType::kFloat16; }
// Does a `WireDtype` say how such elements travel?
inline bool MayBeNarrow(DType dtype) { return IsFloat(dtype) && dtype != DType::kFloat64; }

}  // namespace passing

#endif  // XLA_FFI_HOST_NUMBERS_DTYPE_H_
