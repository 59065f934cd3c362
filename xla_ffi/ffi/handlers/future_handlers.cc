#include "ffi/handlers/future_handlers.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ffi/gathering/rendezvous.h"
#include "ffi/handlers/cpu_handler_state.h"
#include "ffi/handlers/handler_parts.h"
#include "xla/ffi/api/ffi.h"

namespace passing {
namespace {

namespace ffi = xla::ffi;

using Token = ffi::BufferR0<ffi::F32>;

HandleLeaf LeafOf(const ffi::AnyBuffer& buffer) {
  return {static_cast<int32_t>(buffer.element_type()), buffer.size_bytes(), buffer.untyped_data()};
}

std::vector<HandleLeaf> LeavesOf(const ffi::RemainingArgs& leaves) {
  std::vector<HandleLeaf> result;
  for (size_t i = 0; i < leaves.size(); ++i) result.push_back(LeafOf(*leaves.get<ffi::AnyBuffer>(i)));
  return result;
}

// A copy of the leaves, to be found by a number from now on; or why that can't be.
std::variant<std::pair<uint32_t, std::shared_ptr<HandlePart>>, Failure> Copy(const CpuState& state, ffi::RunId run_id,
                                                                             int32_t device,
                                                                             const ffi::RemainingArgs& leaves) {
  auto& handles = Rendezvous::Get().handles();
  std::shared_ptr<HandlePart> part;
  try {
    part = std::make_shared<HandlePart>(LeavesOf(leaves));
  } catch (const std::bad_alloc&) {
    return Failure{"UsageError", state.handles->name() +
                                     ": this host has no memory for another copy of these arrays, which a handle "
                                     "keeps until it is finished. Finish handles earlier, or start fewer"};
  }
  const uint32_t number =
      state.handles->NumberFor(static_cast<int32_t>(run_id.run_id), device, [&handles] { return handles.NewNumber(); });
  if (auto failure = handles.Put(number, device, state.handles, part)) return *failure;
  return std::pair{number, part};
}

// The end of a start: both of its ways may come, on two threads.
struct Starting {
  explicit Starting(ffi::Promise promise) : promise(std::move(promise)) {}

  // Returns whether it is the first time.
  bool Finish() { return !finished.exchange(true); }

  ffi::Promise promise;
  std::atomic<bool> finished = false;
};

ffi::Future Failed(const Failure& failure) {
  ffi::Promise promise;
  ffi::Future future(promise);
  promise.SetError(ToError(failure));
  return future;
}

// Fails the session, and returns why it failed: where it had failed already, handles may be unfinished because of that.
Failure FailedBy(const Failure& refused) {
  auto& rendezvous = Rendezvous::Get();
  if (const auto before = rendezvous.failure()) return *before;
  rendezvous.FailSession(refused);
  return refused;
}

ffi::Future Start(CpuState* state, ffi::RunId run_id, int32_t device, ffi::BufferR1<ffi::S32> position,
                  ffi::BufferR0<ffi::S32> /*before*/, ffi::RemainingArgs leaves,
                  ffi::Result<ffi::BufferR0<ffi::S32>> after, ffi::Result<Token> token) {
  auto& rendezvous = Rendezvous::Get();
  auto copied = Copy(*state, run_id, device, leaves);
  if (const auto* refused = std::get_if<Failure>(&copied)) return Failed(FailedBy(*refused));
  const auto& [number, part] = std::get<0>(copied);
  *after->typed_data() = 0;
  *token->typed_data() = SumHandles::TokenOf(number);
  ffi::Promise promise;
  ffi::Future future(promise);
  const auto starting = std::make_shared<Starting>(std::move(promise));
  Call call;
  call.run_id = static_cast<int32_t>(run_id.run_id);
  call.device = device;
  call.member = position.typed_data()[1];
  call.inputs.assign(part->leaves().begin(), part->leaves().end());
  call.outputs = part->leaves();
  call.started = [starting] {
    if (starting->Finish()) starting->promise.SetAvailable();
  };
  call.done = [starting, part = part, number = number, device](const Failure* failure) {
    part->Complete(failure);
    if (!failure || !starting->Finish()) return;
    Rendezvous::Get().handles().Drop(number, device);
    starting->promise.SetError(ToError(*failure));
  };
  rendezvous.Arrive(state->instance->SiteOf(position.typed_data()[0]), std::move(call));
  return future;
}

ffi::Error Keep(CpuState* state, ffi::RunId run_id, int32_t device, ffi::RemainingArgs leaves,
                ffi::Result<Token> token) {
  auto copied = Copy(*state, run_id, device, leaves);
  if (const auto* refused = std::get_if<Failure>(&copied)) return ToError(FailedBy(*refused));
  const auto& [number, part] = std::get<0>(copied);
  part->Complete(nullptr);
  *token->typed_data() = SumHandles::TokenOf(number);
  return ffi::Error::Success();
}

ffi::ErrorOr<std::unique_ptr<CpuState>> MakeStart(std::string_view spec, int64_t devices) {
  auto state = MakeState<CpuState>(spec);
  if (state.has_value()) {
    const std::string& name = (*state)->instance->spec().site_name;
    (*state)->handles = std::make_shared<HandleCall>(name, static_cast<uint32_t>(devices));
  }
  return state;
}

ffi::ErrorOr<std::unique_ptr<CpuState>> MakeKeep(std::string_view name, int64_t devices) {
  return std::make_unique<CpuState>(std::make_unique<HandleCall>(std::string(name), static_cast<uint32_t>(devices)));
}

ffi::Future Take(int32_t device, std::string_view name, Token token, ffi::RemainingArgs /*others*/,
                 ffi::RemainingRets leaves) {
  std::vector<HandleLeaf> types;
  std::vector<void*> outputs;
  for (size_t i = 0; i < leaves.size(); ++i) {
    auto buffer = *leaves.get<ffi::AnyBuffer>(i);
    types.push_back(LeafOf(*buffer));
    outputs.push_back(buffer->untyped_data());
  }
  ffi::Promise promise;
  ffi::Future future(promise);
  const float wanted = *token.typed_data();
  if (wanted == 0) {
    for (size_t i = 0; i < outputs.size(); ++i) std::memset(outputs[i], 0, types[i].bytes);
    promise.SetAvailable();
    return future;
  }
  auto taken = Rendezvous::Get().handles().Take(wanted, device, types, std::string(name));
  if (const auto* failure = std::get_if<Failure>(&taken)) {
    promise.SetError(ToError(*failure));
    return future;
  }
  const auto& part = std::get<0>(taken);
  // Runs on the pool, unless the values are there. It holds the part until then.
  part->WhenComplete([promise, part, outputs](const Failure* failure) mutable {
    if (failure) {
      promise.SetError(ToError(*failure));
    } else {
      part->CopyTo(outputs);
      promise.SetAvailable();
    }
  });
  return future;
}

constexpr auto kStart = [] { return BindSum().Ret<Token>().To(Start); };
constexpr auto kKeep = [] {
  return ffi::Ffi::Bind()
      .Ctx<ffi::State<CpuState>>()
      .Ctx<ffi::RunId>()
      .Ctx<ffi::DeviceOrdinal>()
      .RemainingArgs()
      .Ret<Token>()
      .To(Keep);
};
constexpr auto kMakeStart = [] {
  return ffi::Ffi::BindInstantiate().Attr<std::string_view>("spec").Attr<int64_t>("devices").To(MakeStart);
};
constexpr auto kMakeKeep = [] {
  return ffi::Ffi::BindInstantiate().Attr<std::string_view>("name").Attr<int64_t>("devices").To(MakeKeep);
};
constexpr auto kTake = [] {
  return ffi::Ffi::Bind()
      .Ctx<ffi::DeviceOrdinal>()
      .Attr<std::string_view>("name")
      .Arg<Token>()
      .RemainingArgs()
      .RemainingRets()
      .To(Take);
};

}  // namespace

XLA_FFI_Error* StartExecute(XLA_FFI_CallFrame* frame) { return Handle<kStart>(frame); }
XLA_FFI_Error* InstantiateStart(XLA_FFI_CallFrame* frame) { return Handle<kMakeStart>(frame); }
XLA_FFI_Error* KeepExecute(XLA_FFI_CallFrame* frame) { return Handle<kKeep>(frame); }
XLA_FFI_Error* InstantiateKeep(XLA_FFI_CallFrame* frame) { return Handle<kMakeKeep>(frame); }
XLA_FFI_Error* TakeExecute(XLA_FFI_CallFrame* frame) { return Handle<kTake>(frame); }

}  // namespace passing
