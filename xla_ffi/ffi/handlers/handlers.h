// The custom calls as XLA sees them. No other folder knows XLA.
#ifndef XLA_FFI_FFI_HANDLERS_HANDLERS_H_
#define XLA_FFI_FFI_HANDLERS_HANDLERS_H_

#include <vector>

#include "xla/ffi/api/c_api.h"

namespace passing {

// A custom call by its name, and the handlers of its stages. Without a state there is nothing to instantiate.
struct CustomCall {
  const char* target;
  XLA_FFI_Handler* execute;
  XLA_FFI_Handler* instantiate = nullptr;
  XLA_FFI_Handler* initialize = nullptr;
};

// A platform of XLA, as Python registers it. XLA sets the id of the type of states when that is registered.
struct Platform {
  std::vector<CustomCall> calls;
  const char* state_name;
  XLA_FFI_TypeId* state_id;
  const XLA_FFI_TypeInfo* state_info;
};

// The calls on CPU:
//
// "passing_psum". Operands: int32[2] (group, member), int32[] that is there when the sums before it in the program are
// done, then the leaves; results: int32[], for the sums after it, and the leaves' sums, in place. Its attribute `spec`
// is the text of a SumSpec. If that says `rows_alone`, either operands or results are the device's rows of the leaves,
// and nothing is in place.
//
// "passing_turn" and "passing_early" are the two calls of a sum whose results don't take its leaves' places, where
// another one may start while it is under way. The first one does nothing. Operands: as of "passing_psum"; results:
// int32[] for the calls behind it, and memory for the sum's results. Of the second one: int32[2], the leaves, that
// memory; results: those of the sum, in that memory.
//
// "passing_visit" stands beside a loop or branch with sums, and counts the executions of the program. Operands and
// results are none, or one that goes through. Its attribute `spec` is a SumSpec without an identity.
//
// "passing_rank". No operand; result: int32, the rank of this host in its session. It is known at run time alone, so
// that the hosts' programs are alike.
//
// "passing_world_size". The same of the number of hosts, for programs that run in worlds of any size.
//
// "passing_psum_start", "passing_keep", "passing_take": future_handlers.h. "passing_equal": equal_handler.h.
//
// "passing_hold". Operands: any number, and more to wait for; results: the former, in place.
Platform CpuPlatform();

// The calls on GPU, where they differ:
//
// "passing_psum" only starts a sum. Operands: int32[] as on CPU, then the leaves; results: int32[], by which
// passing_psum_done finds the sum, and the leaves, in place. None of them is read or written before that. If the spec
// says so, a slice stands in place of the leaves: some of their elements, end to end, which this host's members added
// up, kept as `Widened` says; so are the sums then.
//
// "passing_psum_done". Operands: the int32[], another that is there when the sum may be waited for, the leaves;
// results: their sums, in place.
Platform CudaPlatform();

// For tests: those of sums for CPU devices, with a driver that stands in for CUDA's and whose default stream is idle.
std::vector<CustomCall> CudaCallsOnCpu();

// "passing_hold" is the same on all platforms.
XLA_FFI_Error* HoldExecute(XLA_FFI_CallFrame* frame);

}  // namespace passing

#endif  // XLA_FFI_FFI_HANDLERS_HANDLERS_H_
