// The handlers of all platforms have these parts in common.
#ifndef XLA_FFI_FFI_HANDLERS_HANDLER_PARTS_H_
#define XLA_FFI_FFI_HANDLERS_HANDLER_PARTS_H_

#include <exception>
#include <memory>
#include <string_view>

#include "ffi/gathering/rendezvous.h"
#include "ffi/naming/instance.h"
#include "xla/ffi/api/ffi.h"

namespace passing {

// JAX shows the text; jax_passing.errors turns it back into the exception of that kind.
inline xla::ffi::Error ToError(const Failure& failure) {
  return xla::ffi::Error(xla::ffi::ErrorCode::kAborted, failure.kind + ": " + failure.message);
}

// Calls what `bind`, a lambda without captures, binds to a function of ours; it does so once.
template <auto bind>
XLA_FFI_Error* Handle(XLA_FFI_CallFrame* frame) {
  static auto* const handler = bind().release();
  return handler->Call(frame);
}

template <typename State>
xla::ffi::ErrorOr<std::unique_ptr<State>> MakeState(std::string_view spec) {
  try {
    return std::make_unique<State>(ParseSumSpec(spec));
  } catch (const std::exception& error) {
    return xla::ffi::Unexpected(xla::ffi::Error::InvalidArgument(error.what()));
  }
}

// Makes what an instance of passing_psum or passing_visit keeps. The type is each platform's own, as XLA may keep the
// types of platforms in registries that don't know each other.
template <typename State>
XLA_FFI_Error* Instantiate(XLA_FFI_CallFrame* frame) {
  constexpr auto bind = [] {
    return xla::ffi::Ffi::BindInstantiate().Attr<std::string_view>("spec").To(MakeState<State>);
  };
  return Handle<bind>(frame);
}

}  // namespace passing

#endif  // XLA_FFI_FFI_HANDLERS_HANDLER_PARTS_H_
