// The custom calls of sums that are started in one place and finished in another, on CPU.
#ifndef XLA_FFI_FFI_HANDLERS_FUTURE_HANDLERS_H_
#define XLA_FFI_FFI_HANDLERS_FUTURE_HANDLERS_H_

#include "xla/ffi/api/c_api.h"

namespace passing {

// "passing_psum_start". Operands: int32[2] (group, member), int32[] that is there when the sums before it in the
// program are done, then the leaves; results: int32[], for the sums after it, which is there when all devices of this
// host have come; float32[], the handle's token. Attributes: `spec`, the text of a SumSpec; `devices`, how many of this
// host's run the program.
XLA_FFI_Error* StartExecute(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* InstantiateStart(XLA_FFI_CallFrame* frame);

// "passing_keep" makes a handle of values that are there. Operands: the leaves; result: the token. Attributes: `name`,
// for people; `devices`.
XLA_FFI_Error* KeepExecute(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* InstantiateKeep(XLA_FFI_CallFrame* frame);

// "passing_take" finishes a handle. Operands: the token, and others to wait for; results: the leaves. Attribute:
// `name`, for people.
XLA_FFI_Error* TakeExecute(XLA_FFI_CallFrame* frame);

}  // namespace passing

#endif  // XLA_FFI_FFI_HANDLERS_FUTURE_HANDLERS_H_
