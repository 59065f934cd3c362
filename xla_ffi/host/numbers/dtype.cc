#include "host/numbers/dtype.h"

#include <iterator>

namespace passing {

namespace {
constexpr std::string_view kNames[] = {"int8",   "int16",  "int32",   "int64",    "uint8",   "uint16",
                                       "uint32", "uint64", "float16", "bfloat16", "float32", "float64"};
static_assert(std::size(kNames) == static_cast<size_t>(DType::kFloat64) + 1);  // the others have no names
constexpr std::string_view kWireDtypeNames[] = {"full", "int16", "int8", "int4"};
}  // namespace

std::string_view NameOf(DType dtype) { return kNames[static_cast<size_t>(Narrowed(dtype))]; }

std::optional<DType> ParseDType(std::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<DType>(i);
  }
  return std::nullopt;
}

std::string_view NameOf(WireDtype wire_dtype) { return kWireDtypeNames[static_cast<size_t>(wire_dtype)]; }

std::optional<WireDtype> ParseWireDtype(std::string_view name) {
  for (size_t i = 0; i < std::size(kWireDtypeNames); ++i) {
    if (name == kWireDtypeNames[i]) return static_cast<WireDtype>(i);
  }
  return std::nullopt;
}

}  // namespace passing
