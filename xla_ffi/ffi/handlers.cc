#include "ffi/handlers.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/handler_parts.h"
#include "ffi/instance.h"
#include "ffi/rendezvous.h"
#include "xla/ffi/api/ffi.h"

namespace passing {
namespace {

namespace ffi = xla::ffi;

struct State : InstanceState {
  static ffi::TypeId id;
  using InstanceState::InstanceState;
};
ffi::TypeId State::id = XLA_FFI_UNKNOWN_TYPE_ID;
constexpr ffi::TypeInfo kStateTypeInfo = ffi::MakeTypeInfo<State>();

ffi::ErrorOr<std::unique_ptr<State>> Instantiate(ffi::Dictionary attributes) {
  auto info = ParseSite(attributes);
  if (info.has_error()) return ffi::Unexpected(info.error());
  return std::make_unique<State>(std::move(*info));
}

ffi::Future Execute(State* state, ffi::RunId run_id, int32_t device, ffi::BufferR1<ffi::S32> place,
                    ffi::BufferR0<ffi::S32> /*before*/, ffi::RemainingArgs leaves,
                    ffi::Result<ffi::BufferR0<ffi::S32>> after, ffi::RemainingRets sums) {
  *after->typed_data() = 0;
  ffi::Promise promise;
  ffi::Future future(promise);
  Call call;
  call.run_id = static_cast<int32_t>(run_id.run_id);
  call.device = device;
  call.member = place.typed_data()[1];
  call.inputs.reserve(leaves.size());
  call.outputs.reserve(sums.size());
  for (size_t i = 0; i < leaves.size(); ++i) call.inputs.push_back(leaves.get<ffi::AnyBuffer>(i)->untyped_data());
  for (size_t i = 0; i < sums.size(); ++i) call.outputs.push_back((*sums.get<ffi::AnyBuffer>(i))->untyped_data());
  call.done = [promise](const Failure* failure) mutable {
    if (failure) {
      promise.SetError(ToError(*failure));
    } else {
      promise.SetAvailable();
    }
  };
  Rendezvous::Get().Arrive(state->instance.SiteOf(place.typed_data()[0]), std::move(call));
  return future;
}

ffi::ErrorOr<std::unique_ptr<State>> InstantiateVisit(std::string_view program, int64_t ordinal) {
  return std::make_unique<State>(ParseVisit(program, ordinal));
}

ffi::Error Visit(State* state, ffi::RunId run_id, int32_t device, ffi::RemainingArgs, ffi::RemainingRets) {
  if (const auto executable = state->instance.executable()) {
    Rendezvous::Get().Visit(executable, static_cast<int32_t>(run_id.run_id), device);
  }
  return ffi::Error::Success();
}

ffi::Error Rank(ffi::Result<ffi::BufferR0<ffi::S32>> result) {
  const std::optional<uint32_t> rank = Rendezvous::Get().rank();
  if (!rank) return ToError(NotInitialized("a program that asks for its rank"));
  *result->typed_data() = static_cast<int32_t>(*rank);
  return ffi::Error::Success();
}

ffi::Error WorldSize(ffi::Result<ffi::BufferR0<ffi::S32>> result) {
  const std::optional<uint32_t> world_size = Rendezvous::Get().world_size();
  if (!world_size) return ToError(NotInitialized("a program that asks for the number of hosts"));
  *result->typed_data() = static_cast<int32_t>(*world_size);
  return ffi::Error::Success();
}

// The compiler lets operands and results share their buffers, as it is told.
ffi::Error Hold(ffi::RemainingArgs, ffi::RemainingRets) { return ffi::Error::Success(); }

}  // namespace

XLA_FFI_Error* PsumInstantiate(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::BindInstantiate().Attrs().To(Instantiate).release();
  return handler->Call(frame);
}

XLA_FFI_Error* PsumExecute(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .Ctx<ffi::State<State>>()
                             .Ctx<ffi::RunId>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .Arg<ffi::BufferR1<ffi::S32>>()
                             .Arg<ffi::BufferR0<ffi::S32>>()
                             .RemainingArgs()
                             .Ret<ffi::BufferR0<ffi::S32>>()
                             .RemainingRets()
                             .To(Execute)
                             .release();
  return handler->Call(frame);
}

XLA_FFI_Error* VisitInstantiate(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::BindInstantiate()
                             .Attr<std::string_view>("program")
                             .Attr<int64_t>("ordinal")
                             .To(InstantiateVisit)
                             .release();
  return handler->Call(frame);
}

XLA_FFI_Error* VisitExecute(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .Ctx<ffi::State<State>>()
                             .Ctx<ffi::RunId>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .RemainingArgs()
                             .RemainingRets()
                             .To(Visit)
                             .release();
  return handler->Call(frame);
}

XLA_FFI_Error* RankExecute(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind().Ret<ffi::BufferR0<ffi::S32>>().To(Rank).release();
  return handler->Call(frame);
}

XLA_FFI_Error* WorldSizeExecute(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind().Ret<ffi::BufferR0<ffi::S32>>().To(WorldSize).release();
  return handler->Call(frame);
}

XLA_FFI_Error* HoldExecute(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind().RemainingArgs().RemainingRets().To(Hold).release();
  return handler->Call(frame);
}

XLA_FFI_TypeId* StateTypeId() { return &State::id; }
const XLA_FFI_TypeInfo* StateTypeInfo() { return &kStateTypeInfo; }

}  // namespace passing
