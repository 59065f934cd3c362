#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/cuda/sums.h"
#include "ffi/gathering/rendezvous.h"
#include "ffi/handlers/handler_parts.h"
#include "ffi/handlers/handlers.h"
#include "xla/ffi/api/ffi.h"

namespace passing {
namespace {

namespace ffi = xla::ffi;

using Stream = ffi::PlatformStream<CUstream>;

struct CudaState {
  static ffi::TypeId id;
  explicit CudaState(CudaSpec spec)
      : roles(spec), instance(std::make_shared<const CudaSpec>(std::move(spec)), "cuda") {}
  explicit CudaState(SumSpec visit) : CudaState(CudaSpec(std::move(visit))) {}
  const DeviceRoles roles;
  Instance instance;
  std::once_flag needs_are_known;
  PinnedNeeds needs;
};
ffi::TypeId CudaState::id = XLA_FFI_UNKNOWN_TYPE_ID;
constexpr ffi::TypeInfo kCudaStateTypeInfo = ffi::MakeTypeInfo<CudaState>();

ffi::Error ToStatus(const std::optional<Failure>& failure) {
  return failure ? ToError(*failure) : ffi::Error::Success();
}

CUdeviceptr AddressOf(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

// Fails the session, as other hosts wait for what this one can't do.
ffi::Error RefuseDevice(const std::string& which) {
  const Failure failure{"ConfigError", which +
                                           " isn't among the devices that jax_passing was told of: compile the program "
                                           "in the process that runs it, for a mesh of the devices that it runs on"};
  Rendezvous::Get().FailSession(failure);
  return ToError(failure);
}

// One sum speaks for all of the executable.
ffi::Error Initialize(CudaState* state, int32_t ordinal) {
  const auto executable = state->instance.executable();
  if (executable->sums.front().get() != &state->instance.spec()) return ffi::Error::Success();
  std::call_once(state->needs_are_known, [&] { state->needs = CudaSums::Get().NeedsOf(*executable); });
  CudaSums::Get().Reserve(state->needs, ordinal);
  return ffi::Error::Success();
}

CudaCall MakeCall(ffi::RunId run_id, int32_t ordinal, CUstream stream, const void* token, ffi::RemainingArgs leaves) {
  CudaCall call{.run_id = static_cast<int32_t>(run_id.run_id),
                .ordinal = ordinal,
                .stream = stream,
                .token = AddressOf(token),
                .leaves = {}};
  for (size_t i = 0; i < leaves.size(); ++i) {
    call.leaves.push_back(AddressOf(leaves.get<ffi::AnyBuffer>(i)->untyped_data()));
  }
  return call;
}

ffi::Error Start(CudaState* state, ffi::RunId run_id, int32_t ordinal, CUstream stream, ffi::AnyBuffer /*before*/,
                 ffi::RemainingArgs leaves, ffi::Result<ffi::AnyBuffer> token, ffi::RemainingRets /*the leaves*/) {
  const auto device = CudaSums::Get().Device(ordinal);
  if (!device) return RefuseDevice("GPU " + std::to_string(ordinal));
  Instance& instance = state->instance;
  const DeviceRole* role = state->roles.Find(*device);
  if (role == nullptr) {
    return RefuseDevice("GPU " + std::to_string(device->id) + " at " + instance.spec().site_name);
  }
  CudaCall call = MakeCall(run_id, ordinal, stream, token->untyped_data(), leaves);
  call.device = device->number;
  call.member = role->member;
  call.slice = role->slice;
  return ToStatus(CudaSums::Get().Start(instance.SiteOf(role->group), std::move(call)));
}

ffi::Error Done(ffi::RunId run_id, int32_t ordinal, CUstream stream, ffi::AnyBuffer token, ffi::AnyBuffer /*gate*/,
                ffi::RemainingArgs leaves, ffi::RemainingRets /*the sums*/) {
  return ToStatus(CudaSums::Get().Finish(MakeCall(run_id, ordinal, stream, token.untyped_data(), leaves)));
}

ffi::Error Visit(CudaState* state, ffi::RunId run_id, int32_t ordinal, ffi::RemainingArgs, ffi::RemainingRets) {
  const auto device = CudaSums::Get().Device(ordinal);
  if (!device) return RefuseDevice("GPU " + std::to_string(ordinal));
  if (const auto executable = state->instance.executable()) {
    Rendezvous::Get().Visit(executable, static_cast<int32_t>(run_id.run_id), device->number);
  }
  return ffi::Error::Success();
}

using Number = ffi::Result<ffi::BufferR0<ffi::S32>>;

ffi::Error WriteNumber(uint32_t number, int32_t ordinal, CUstream stream, Number& result) {
  return ToStatus(CudaSums::Get().Write(ordinal, stream, AddressOf(result->untyped_data()), static_cast<int>(number)));
}

ffi::Error Rank(int32_t ordinal, CUstream stream, Number result) {
  const auto attached = Rendezvous::Get().attached();
  if (!attached) return ToError(NotInitialized("a program that asks for its rank"));
  return WriteNumber(attached->rank, ordinal, stream, result);
}

ffi::Error WorldSize(int32_t ordinal, CUstream stream, Number result) {
  const auto attached = Rendezvous::Get().attached();
  if (!attached) return ToError(NotInitialized("a program that asks for the number of hosts"));
  return WriteNumber(attached->world_size, ordinal, stream, result);
}

ffi::ErrorOr<std::unique_ptr<CudaState>> Make(std::string_view spec, std::string_view gpu) {
  try {
    return std::make_unique<CudaState>(ParseCudaSpec(spec, gpu));
  } catch (const std::exception& error) {
    return ffi::Unexpected(ffi::Error::InvalidArgument(error.what()));
  }
}

// None has the command-buffer trait: XLA would trace a call once and replay what it enqueued, without asking us again.

// Before each execution of the program on a device. If there are collectives of XLA's own among its calls, XLA lets
// none of the process's devices go on before all are here.
constexpr auto kInitialize = [] {
  return ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>().Ctx<ffi::State<CudaState>>().Ctx<ffi::DeviceOrdinal>().To(
      Initialize);
};
constexpr auto kMake = [] {
  return ffi::Ffi::BindInstantiate().Attr<std::string_view>("spec").Attr<std::string_view>("gpu").To(Make);
};
constexpr auto kStart = [] {
  return ffi::Ffi::Bind()
      .Ctx<ffi::State<CudaState>>()
      .Ctx<ffi::RunId>()
      .Ctx<ffi::DeviceOrdinal>()
      .Ctx<Stream>()
      .Arg<ffi::AnyBuffer>()
      .RemainingArgs()
      .Ret<ffi::AnyBuffer>()
      .RemainingRets()
      .To(Start);
};
constexpr auto kDone = [] {
  return ffi::Ffi::Bind()
      .Ctx<ffi::RunId>()
      .Ctx<ffi::DeviceOrdinal>()
      .Ctx<Stream>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>()
      .RemainingArgs()
      .RemainingRets()
      .To(Done);
};
constexpr auto kVisit = [] {
  return ffi::Ffi::Bind()
      .Ctx<ffi::State<CudaState>>()
      .Ctx<ffi::RunId>()
      .Ctx<ffi::DeviceOrdinal>()
      .RemainingArgs()
      .RemainingRets()
      .To(Visit);
};
constexpr auto kRank = [] {
  return ffi::Ffi::Bind().Ctx<ffi::DeviceOrdinal>().Ctx<Stream>().Ret<ffi::BufferR0<ffi::S32>>().To(Rank);
};
constexpr auto kWorldSize = [] {
  return ffi::Ffi::Bind().Ctx<ffi::DeviceOrdinal>().Ctx<Stream>().Ret<ffi::BufferR0<ffi::S32>>().To(WorldSize);
};

// For tests: the same for CPU devices, with a driver that stands in for CUDA's and whose default stream is always idle.
constexpr auto kStartOnCpu = [] {
  const auto start = [](CudaState* state, ffi::RunId run_id, int32_t ordinal, ffi::AnyBuffer before,
                        ffi::RemainingArgs leaves, ffi::Result<ffi::AnyBuffer> token, ffi::RemainingRets rets) {
    Initialize(state, ordinal);  // XLA doesn't for CPU devices
    return Start(state, run_id, ordinal, nullptr, before, leaves, token, rets);
  };
  return ffi::Ffi::Bind()
      .Ctx<ffi::State<CudaState>>()
      .Ctx<ffi::RunId>()
      .Ctx<ffi::DeviceOrdinal>()
      .Arg<ffi::AnyBuffer>()
      .RemainingArgs()
      .Ret<ffi::AnyBuffer>()
      .RemainingRets()
      .To(start);
};
constexpr auto kDoneOnCpu = [] {
  const auto done = [](ffi::RunId run_id, int32_t ordinal, ffi::AnyBuffer token, ffi::AnyBuffer gate,
                       ffi::RemainingArgs leaves,
                       ffi::RemainingRets sums) { return Done(run_id, ordinal, nullptr, token, gate, leaves, sums); };
  return ffi::Ffi::Bind()
      .Ctx<ffi::RunId>()
      .Ctx<ffi::DeviceOrdinal>()
      .Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>()
      .RemainingArgs()
      .RemainingRets()
      .To(done);
};

}  // namespace

Platform CudaPlatform() {
  return {.calls = {{"passing_psum", Handle<kStart>, Handle<kMake>, Handle<kInitialize>},
                    {"passing_psum_done", Handle<kDone>},
                    {"passing_visit", Handle<kVisit>, Instantiate<CudaState>},
                    {"passing_rank", Handle<kRank>},
                    {"passing_world_size", Handle<kWorldSize>},
                    {"passing_hold", HoldExecute}},
          .state_name = "passing_psum_cuda_instance",
          .state_id = &CudaState::id,
          .state_info = &kCudaStateTypeInfo};
}

std::vector<CustomCall> CudaCallsOnCpu() {
  return {{"passing_psum", Handle<kStartOnCpu>, Handle<kMake>}, {"passing_psum_done", Handle<kDoneOnCpu>}};
}

}  // namespace passing
