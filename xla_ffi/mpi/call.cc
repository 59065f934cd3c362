#include "mpi/call.h"

#include <string>

#include "mpi/failures.h"

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

ElementType TypeOf(abi::Handle type) {
  switch (type) {
    case abi::MPI_INT8_T:
    case abi::MPI_SIGNED_CHAR:
    case abi::MPI_CHAR:
      return {DType::kInt8};
    case abi::MPI_UINT8_T:
    case abi::MPI_C_BOOL:
    case abi::MPI_CXX_BOOL:
    case abi::MPI_UNSIGNED_CHAR:
    case abi::MPI_BYTE:
      return {DType::kUint8};
    case abi::MPI_INT16_T:
    case abi::MPI_SHORT:
      return {DType::kInt16};
    case abi::MPI_UINT16_T:
    case abi::MPI_UNSIGNED_SHORT:
      return {DType::kUint16};
    case abi::MPI_INT32_T:
    case abi::MPI_INT:
      return {DType::kInt32};
    case abi::MPI_UINT32_T:
    case abi::MPI_UNSIGNED:
      return {DType::kUint32};
    case abi::MPI_INT64_T:
    case abi::MPI_LONG:
    case abi::MPI_LONG_LONG:
    case abi::MPI_LONG_LONG_INT:
      return {DType::kInt64};
    case abi::MPI_UINT64_T:
    case abi::MPI_UNSIGNED_LONG:
    case abi::MPI_UNSIGNED_LONG_LONG:
      return {DType::kUint64};
    case abi::MPI_FLOAT:
      return {DType::kFloat32};
    case abi::MPI_DOUBLE:
      return {DType::kFloat64};
    case abi::MPI_C_COMPLEX:
    case abi::MPI_C_FLOAT_COMPLEX:
    case abi::MPI_CXX_FLOAT_COMPLEX:
      return {DType::kFloat32, true};
    case abi::MPI_C_DOUBLE_COMPLEX:
    case abi::MPI_CXX_DOUBLE_COMPLEX:
      return {DType::kFloat64, true};
    default:
      throw Failed("UsageError", "XLA named a dtype of MPI that jax_passing doesn't know.");
  }
}

Reduction ReductionOf(abi::Handle reduction) {
  switch (reduction) {
    case abi::MPI_SUM:
      return Reduction::kSum;
    case abi::MPI_PROD:
      return Reduction::kProduct;
    case abi::MPI_MIN:
      return Reduction::kMin;
    case abi::MPI_MAX:
      return Reduction::kMax;
    default:
      throw Failed("NotImplementedError", "XLA named a reduction of MPI that is no sum, product, min or max.");
  }
}

uint64_t CountOf(int count) {
  if (count >= 0) return static_cast<uint64_t>(count);
  throw Failed("PassingError", "XLA gave the count " + std::to_string(count) +
                                   ": its MPI interface counts in 31 bits, so an array may have at most 2147483647 "
                                   "elements (or bytes, where a device sends to another). Try smaller arrays.");
}

size_t BytesOf(int count, abi::Handle type) { return CountOf(count) * TypeOf(type).bytes(); }

Call CallOf(const Signature& signature, const void* input, void* output) {
  if (signature.count > 0 && (reinterpret_cast<abi::Handle>(input) < abi::kFirstHandle ||
                              reinterpret_cast<abi::Handle>(output) < abi::kFirstHandle)) {
    throw Failed("NotImplementedError", NameOf(signature) + " was called with no memory of its own (MPI_IN_PLACE).");
  }
  return {signature, input, output};
}

}  // namespace passing::mpi
