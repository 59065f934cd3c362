// The custom calls as XLA sees them on the CUDA platform. handlers.h says what they are; here is what differs.
#ifndef XLA_FFI_FFI_CUDA_HANDLERS_H_
#define XLA_FFI_FFI_CUDA_HANDLERS_H_

#include "xla/ffi/api/c_api.h"

namespace passing {

// "passing_psum" only starts a sum. Operands: int32[] as on CPU, then the leaves; results: int32[], by which
// passing_psum_done finds the sum, and the leaves, in place. None of them is read or written before that. Attributes
// beside those of SiteInfo: `mesh`, `groups`, `members` and `shards`, int64 arrays: the numbers of the mesh's devices
// (CudaDevice: ids where the mesh spans processes, else indices; -1: any device), the group and member of each, and
// which shard it has. `beside`: int64, SiteInfo's. `shard_elements`: 0, or in place of the leaves stands a shard: so
// many of their elements, end to end, which this host's members added up, kept as `Widened` says; so are the sums then.
XLA_FFI_Error* CudaPsumInstantiate(XLA_FFI_CallFrame* frame);
// Before each execution of the program on a device. If there are collectives of XLA's own among its calls, XLA lets
// none of the process's devices go on before all are here.
XLA_FFI_Error* CudaPsumInitialize(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* CudaPsumExecute(XLA_FFI_CallFrame* frame);

// "passing_psum_done". Operands: the int32[], another that is there when the sum may be waited for, the leaves;
// results: their sums, in place.
XLA_FFI_Error* CudaPsumDoneExecute(XLA_FFI_CallFrame* frame);

XLA_FFI_Error* CudaVisitInstantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* CudaVisitExecute(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* CudaRankExecute(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* CudaWorldSizeExecute(XLA_FFI_CallFrame* frame);
// "passing_hold" is that of handlers.h.

// For tests: the same for CPU devices, with a driver that stands in for CUDA's and whose default stream is always idle.
XLA_FFI_Error* CudaPsumOnCpuExecute(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* CudaPsumDoneOnCpuExecute(XLA_FFI_CallFrame* frame);

inline constexpr char kCudaStateName[] = "passing_psum_cuda_instance";
XLA_FFI_TypeId* CudaStateTypeId();
const XLA_FFI_TypeInfo* CudaStateTypeInfo();

}  // namespace passing

#endif  // XLA_FFI_FFI_CUDA_HANDLERS_H_
