// What an instance of a custom call on CPU keeps.
#ifndef XLA_FFI_FFI_HANDLERS_CPU_HANDLER_STATE_H_
#define XLA_FFI_FFI_HANDLERS_CPU_HANDLER_STATE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "ffi/equality.h"
#include "ffi/naming/instance.h"
#include "ffi/sum_handles.h"
#include "xla/ffi/api/ffi.h"

namespace passing {

struct CpuState {
  static xla::ffi::TypeId id;
  explicit CpuState(SumSpec spec) : instance(std::make_unique<Instance>(std::move(spec))) {}
  explicit CpuState(std::unique_ptr<HandleCall> call) : handles(std::move(call)) {}

  std::unique_ptr<Instance> instance;   // null where nothing is summed
  std::shared_ptr<HandleCall> handles;  // null where no handles are made
  std::shared_ptr<Equality> equality;   // null where nothing is compared
};

// Binds what all custom calls that sum begin with: an instance's state, the execution and the device; the device's
// group and member, the number by which calls are ordered, and arrays. Each returns the next such number first.
inline auto BindSum() {
  namespace ffi = xla::ffi;
  return ffi::Ffi::Bind()
      .Ctx<ffi::State<CpuState>>()
      .Ctx<ffi::RunId>()
      .Ctx<ffi::DeviceOrdinal>()
      .Arg<ffi::BufferR1<ffi::S32>>()
      .Arg<ffi::BufferR0<ffi::S32>>()
      .RemainingArgs()
      .Ret<ffi::BufferR0<ffi::S32>>();
}

}  // namespace passing

#endif  // XLA_FFI_FFI_HANDLERS_CPU_HANDLER_STATE_H_
