// The custom call that compares arrays between devices and hosts, on CPU.
#ifndef XLA_FFI_FFI_HANDLERS_EQUAL_HANDLER_H_
#define XLA_FFI_FFI_HANDLERS_EQUAL_HANDLER_H_

#include "xla/ffi/api/c_api.h"

namespace passing {

// "passing_equal". Operands: int32[2] (group, member), int32[] that is there when the sums before it in the program are
// done, then the leaves; result: int32[], for the sums after it. Attributes: `spec`, the text of a SumSpec of the
// maxima of int32 that tell (equality.h); `leaves`, a line with the name of each leaf. After the first time in a
// session it does nothing.
XLA_FFI_Error* EqualExecute(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* InstantiateEqual(XLA_FFI_CallFrame* frame);

}  // namespace passing

#endif  // XLA_FFI_FFI_HANDLERS_EQUAL_HANDLER_H_
