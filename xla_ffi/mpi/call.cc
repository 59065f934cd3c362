#include "mpi/call.h"

namespace passing::mpi {
namespace {

std::string NameOf(const ElementType& type) {
  if (type.is_complex) return type.dtype == DType::kFloat64 ? "complex128" : "complex64";
  constexpr const char* kNames[] = {"int8",   "int16",  "int32",   "int64",    "uint8",   "uint16",
                                    "uint32", "uint64", "float16", "bfloat16", "float32", "float64"};
  return kNames[static_cast<size_t>(type.dtype)];
}

}  // namespace

std::string NameOf(const Signature& signature) {
  constexpr const char* kOperations[] = {"all_reduce", "reduce_scatter", "all_gather"};
  constexpr const char* kReductions[] = {"", " sum", " product", " min", " max"};
  return std::string(kOperations[static_cast<size_t>(signature.operation)]) +
         kReductions[static_cast<size_t>(signature.reduction)] + " of " + NameOf(signature.type) + "[" +
         std::to_string(signature.count) + "]";
}

}  // namespace passing::mpi
