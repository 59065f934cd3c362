// What the handlers of all platforms have in common.
#ifndef XLA_FFI_FFI_HANDLER_PARTS_H_
#define XLA_FFI_FFI_HANDLER_PARTS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "ffi/instance.h"
#include "xla/ffi/api/ffi.h"

namespace passing {

// JAX shows the text; jax_passing.errors turns it back into the exception of that kind.
xla::ffi::Error ToError(const Failure& failure);

// What each instance of passing_psum and passing_visit keeps. Each platform gives it an id of its own, as XLA may keep
// the types of platforms in registries that don't know each other.
struct InstanceState {
  explicit InstanceState(SiteInfo info) : instance(std::move(info)) {}
  Instance instance;
};

// Sets dtype and op by their names. Returns what is wrong with these, for people; nothing if they are right.
std::string SetElements(SiteInfo& info, const std::string& dtype_name, const std::string& op_name);
// From the attributes of passing_psum.
xla::ffi::ErrorOr<SiteInfo> ParseSite(const xla::ffi::Dictionary& attributes);
// From those of passing_visit.
SiteInfo ParseVisit(std::string_view program, int64_t ordinal);

}  // namespace passing

#endif  // XLA_FFI_FFI_HANDLER_PARTS_H_
