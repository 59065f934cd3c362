#include "ffi/handlers/handlers.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/gathering/rendezvous.h"
#include "ffi/handlers/cpu_handler_state.h"
#include "ffi/handlers/equal_handler.h"
#include "ffi/handlers/future_handlers.h"
#include "ffi/handlers/handler_parts.h"
#include "ffi/naming/instance.h"
#include "host/huge_pages.h"
#include "xla/ffi/api/ffi.h"

namespace passing {
namespace {

namespace ffi = xla::ffi;

constexpr ffi::TypeInfo kStateTypeInfo = ffi::MakeTypeInfo<CpuState>();

ffi::Future Arrive(CpuState* state, ffi::RunId run_id, int32_t device, ffi::BufferR1<ffi::S32> position,
                   ffi::RemainingArgs leaves, ffi::RemainingRets sums_and_residuals) {
  ffi::Promise promise;
  ffi::Future future(promise);
  Call call;
  call.run_id = static_cast<int32_t>(run_id.run_id);
  call.device = device;
  call.member = position.typed_data()[1];
  // Behind the leaves there may be memory for results.
  const size_t leaf_count = state->instance->spec().leaf_elements.size();
  call.inputs.reserve(leaf_count);
  call.outputs.reserve(leaf_count);
  for (size_t i = 0; i < leaf_count; ++i) call.inputs.push_back(leaves.get<ffi::AnyBuffer>(i)->untyped_data());
  for (size_t i = 0; i < sums_and_residuals.size(); ++i) {
    auto& memory = i < leaf_count ? call.outputs : call.residuals;
    ffi::AnyBuffer result = **sums_and_residuals.get<ffi::AnyBuffer>(i);
    memory.push_back(result.untyped_data());
    const bool is_new = i >= leaf_count || memory.back() != call.inputs[i];
    if (is_new) PreferHugePages(memory.back(), result.size_bytes());
  }
  call.done = [promise](const Failure* failure) mutable {
    if (failure) {
      promise.SetError(ToError(*failure));
    } else {
      promise.SetAvailable();
    }
  };
  Rendezvous::Get().Arrive(state->instance->SiteOf(position.typed_data()[0]), std::move(call));
  return future;
}

ffi::Future Execute(CpuState* state, ffi::RunId run_id, int32_t device, ffi::BufferR1<ffi::S32> position,
                    ffi::BufferR0<ffi::S32> /*before*/, ffi::RemainingArgs leaves,
                    ffi::Result<ffi::BufferR0<ffi::S32>> after, ffi::RemainingRets sums_and_residuals) {
  *after->typed_data() = 0;
  return Arrive(state, run_id, device, position, leaves, sums_and_residuals);
}

ffi::Error Visit(CpuState* state, ffi::RunId run_id, int32_t device, ffi::RemainingArgs, ffi::RemainingRets) {
  if (const auto executable = state->instance->executable()) {
    Rendezvous::Get().Visit(executable, static_cast<int32_t>(run_id.run_id), device);
  }
  return ffi::Error::Success();
}

using Number = ffi::Result<ffi::BufferR0<ffi::S32>>;

ffi::Error Rank(Number result) {
  const auto attached = Rendezvous::Get().attached();
  if (!attached) return ToError(NotInitialized("a program that asks for its rank"));
  *result->typed_data() = static_cast<int32_t>(attached->rank);
  return ffi::Error::Success();
}

ffi::Error WorldSize(Number result) {
  const auto attached = Rendezvous::Get().attached();
  if (!attached) return ToError(NotInitialized("a program that asks for the number of hosts"));
  *result->typed_data() = static_cast<int32_t>(attached->world_size);
  return ffi::Error::Success();
}

// The compiler lets operands and results share their buffers, as it is told.
ffi::Error Hold(ffi::RemainingArgs, ffi::RemainingRets) { return ffi::Error::Success(); }

constexpr auto kPsum = [] { return BindSum().RemainingRets().To(Execute); };
constexpr auto kEarly = [] {
  return ffi::Ffi::Bind()
      .Ctx<ffi::State<CpuState>>()
      .Ctx<ffi::RunId>()
      .Ctx<ffi::DeviceOrdinal>()
      .Arg<ffi::BufferR1<ffi::S32>>()
      .RemainingArgs()
      .RemainingRets()
      .To(Arrive);
};
constexpr auto kVisit = [] {
  return ffi::Ffi::Bind()
      .Ctx<ffi::State<CpuState>>()
      .Ctx<ffi::RunId>()
      .Ctx<ffi::DeviceOrdinal>()
      .RemainingArgs()
      .RemainingRets()
      .To(Visit);
};
constexpr auto kRank = [] { return ffi::Ffi::Bind().Ret<ffi::BufferR0<ffi::S32>>().To(Rank); };
constexpr auto kWorldSize = [] { return ffi::Ffi::Bind().Ret<ffi::BufferR0<ffi::S32>>().To(WorldSize); };

}  // namespace

ffi::TypeId CpuState::id = XLA_FFI_UNKNOWN_TYPE_ID;

XLA_FFI_Error* HoldExecute(XLA_FFI_CallFrame* frame) {
  return Handle<[] { return ffi::Ffi::Bind().RemainingArgs().RemainingRets().To(Hold); }>(frame);
}

Platform CpuPlatform() {
  return {.calls = {{"passing_psum", Handle<kPsum>, Instantiate<CpuState>},
                    {"passing_turn", HoldExecute},
                    {"passing_early", Handle<kEarly>, Instantiate<CpuState>},
                    {"passing_visit", Handle<kVisit>, Instantiate<CpuState>},
                    {"passing_rank", Handle<kRank>},
                    {"passing_world_size", Handle<kWorldSize>},
                    {"passing_hold", HoldExecute},
                    {"passing_psum_start", StartExecute, InstantiateStart},
                    {"passing_keep", KeepExecute, InstantiateKeep},
                    {"passing_take", TakeExecute},
                    {"passing_equal", EqualExecute, InstantiateEqual}},
          .state_name = "passing_psum_instance",
          .state_id = &CpuState::id,
          .state_info = &kStateTypeInfo};
}

}  // namespace passing
