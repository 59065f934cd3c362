// The custom calls as XLA sees them on the CPU. No other files know XLA but this, cuda_handlers and handler_parts.
#ifndef XLA_FFI_FFI_HANDLERS_H_
#define XLA_FFI_FFI_HANDLERS_H_

#include "xla/ffi/api/c_api.h"

namespace passing {

// "passing_psum". Operands: int32[2] (group, member), int32[] that is there when the sums before it in the program are
// done, then the leaves; results: int32[], for the sums after it, and the leaves' sums, in place. The attributes are
// those of SiteInfo.
XLA_FFI_Error* PsumInstantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* PsumExecute(XLA_FFI_CallFrame* frame);

// "passing_visit". Beside a loop or branch with sums: counts the executions of the program. Operands and results are
// none, or one that goes through. Its attributes are SiteInfo's `program` and `ordinal`.
XLA_FFI_Error* VisitInstantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* VisitExecute(XLA_FFI_CallFrame* frame);

// "passing_rank". No operand; result: int32, the rank of this host in its session. Known at run time alone, so that
// the hosts' programs are alike.
XLA_FFI_Error* RankExecute(XLA_FFI_CallFrame* frame);

// "passing_world_size". The same of the number of hosts, for programs that run in worlds of any size.
XLA_FFI_Error* WorldSizeExecute(XLA_FFI_CallFrame* frame);

// "passing_hold". Operands: any number, and more to wait for; results: the former, in place.
XLA_FFI_Error* HoldExecute(XLA_FFI_CallFrame* frame);

// The state that each instance of passing_psum and passing_visit keeps. XLA sets the id when Python registers the type.
inline constexpr char kStateName[] = "passing_psum_instance";
XLA_FFI_TypeId* StateTypeId();
const XLA_FFI_TypeInfo* StateTypeInfo();

}  // namespace passing

#endif  // XLA_FFI_FFI_HANDLERS_H_
