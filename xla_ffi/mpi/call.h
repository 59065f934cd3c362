// A collective as one device calls it, and how MPI's arguments say it.
#ifndef XLA_FFI_MPI_CALL_H_
#define XLA_FFI_MPI_CALL_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "host/numbers/dtype.h"
#include "mpi/abi.h"

namespace passing::mpi {

enum class Operation : uint8_t { kAllReduce, kReduceScatter, kAllGather };
enum class Reduction : uint8_t { kNone, kSum, kProduct, kMin, kMax };

struct ElementType {
  DType dtype = DType::kFloat32;
  bool is_complex = false;  // two of `dtype`

  size_t bytes() const { return SizeOf(dtype) * (is_complex ? 2 : 1); }
  friend bool operator==(const ElementType&, const ElementType&) = default;
};

// All devices of a group say this alike.
struct Signature {
  Operation operation = Operation::kAllReduce;
  Reduction reduction = Reduction::kNone;
  ElementType type;
  uint64_t count = 0;  // of elements: all_reduce's, what each device gives to all_gather or gets of reduce_scatter

  friend bool operator==(const Signature&, const Signature&) = default;
};

// For people: "all_reduce sum of float32[1024]".
std::string NameOf(const Signature& signature);

struct Call {
  Signature signature;
  const void* input = nullptr;
  void* output = nullptr;
};

// These read MPI's arguments. Each throws Failed if XLA says nothing of that kind.
ElementType TypeOf(abi::Handle type);
Reduction ReductionOf(abi::Handle reduction);
uint64_t CountOf(int count);
size_t BytesOf(int count, abi::Handle type);
Call CallOf(const Signature& signature, const void* input, void* output);

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_CALL_H_
