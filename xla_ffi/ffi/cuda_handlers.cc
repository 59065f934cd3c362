#include "ffi/cuda_handlers.h"

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "ffi/cuda_sums.h"
#include "ffi/handler_parts.h"
#include "ffi/rendezvous.h"
#include "xla/ffi/api/ffi.h"

namespace passing {
namespace {

namespace ffi = xla::ffi;

using Stream = ffi::PlatformStream<CUstream>;

// Of one device in the sums of a site.
struct Place {
  int64_t group = 0;
  int64_t member = 0;
  int64_t shard = 0;
};

constexpr int64_t kAnyDevice = -1;

using Places = std::unordered_map<int64_t, Place>;  // by the mesh's numbers of the devices

struct CudaState : InstanceState {
  static ffi::TypeId id;
  CudaState(SiteInfo info, Places its_places) : InstanceState(std::move(info)), places(std::move(its_places)) {}
  const Places places;
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

// Null if it isn't in the mesh.
const Place* PlaceOf(const Places& places, const SiteInfo& info, const CudaDevice& device) {
  auto place = places.find(info.devices.empty() ? device.index : device.id);
  if (place == places.end()) place = places.find(kAnyDevice);
  return place == places.end() ? nullptr : &place->second;
}

ffi::ErrorOr<std::unique_ptr<CudaState>> Instantiate(ffi::Dictionary attributes) {
  auto info = ParseSite(attributes);
  if (info.has_error()) return ffi::Unexpected(info.error());
  info->on_gpu = true;
  const auto beside = attributes.get<int64_t>("beside"), shard_elements = attributes.get<int64_t>("shard_elements");
  for (const auto* each : {&beside, &shard_elements}) {
    if (each->has_error()) return ffi::Unexpected(each->error());
  }
  info->beside = *beside;
  info->shard_elements = static_cast<uint64_t>(*shard_elements);
  using Numbers = ffi::Span<const int64_t>;
  const auto mesh = attributes.get<Numbers>("mesh"), groups = attributes.get<Numbers>("groups"),
             members = attributes.get<Numbers>("members"), shards = attributes.get<Numbers>("shards");
  for (const auto* each : {&mesh, &groups, &members, &shards}) {
    if (each->has_error()) return ffi::Unexpected(each->error());
    if (each->value().size() != mesh->size()) {
      return ffi::Unexpected(ffi::Error::InvalidArgument("passing_psum: mesh, groups... differ in size"));
    }
  }
  Places places;
  for (size_t i = 0; i < mesh->size(); ++i) places[(*mesh)[i]] = {(*groups)[i], (*members)[i], (*shards)[i]};
  std::set<int64_t> local_groups;
  for (const CudaDevice& device : CudaSums::Get().devices()) {
    if (const Place* place = PlaceOf(places, *info, device)) local_groups.insert(place->group);
  }
  info->group_count = static_cast<uint32_t>(local_groups.size());
  return std::make_unique<CudaState>(std::move(*info), std::move(places));
}

// One sum speaks for all of the executable.
ffi::Error Initialize(CudaState* state, int32_t ordinal) {
  const auto executable = state->instance.executable();
  if (state->instance.is_first()) CudaSums::Get().Reserve(*executable, ordinal);
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
  const Place* place = PlaceOf(state->places, instance.info(), *device);
  if (place == nullptr) {
    return RefuseDevice("GPU " + std::to_string(device->id) + " at " + instance.info().site_name);
  }
  CudaCall call = MakeCall(run_id, ordinal, stream, token->untyped_data(), leaves);
  call.device = device->number;
  call.member = place->member;
  call.shard = place->shard;
  return ToStatus(CudaSums::Get().Start(instance.SiteOf(place->group), std::move(call)));
}

ffi::Error Done(ffi::RunId run_id, int32_t ordinal, CUstream stream, ffi::AnyBuffer token, ffi::AnyBuffer /*gate*/,
                ffi::RemainingArgs leaves, ffi::RemainingRets /*the sums*/) {
  return ToStatus(CudaSums::Get().Finish(MakeCall(run_id, ordinal, stream, token.untyped_data(), leaves)));
}

ffi::ErrorOr<std::unique_ptr<CudaState>> InstantiateVisit(std::string_view program, int64_t ordinal) {
  return std::make_unique<CudaState>(ParseVisit(program, ordinal), Places());
}

ffi::Error Visit(CudaState* state, ffi::RunId run_id, int32_t ordinal, ffi::RemainingArgs, ffi::RemainingRets) {
  const auto device = CudaSums::Get().Device(ordinal);
  if (!device) return RefuseDevice("GPU " + std::to_string(ordinal));
  if (const auto executable = state->instance.executable()) {
    Rendezvous::Get().Visit(executable, static_cast<int32_t>(run_id.run_id), device->number);
  }
  return ffi::Error::Success();
}

ffi::Error WriteNumber(std::optional<uint32_t> number, const char* what, int32_t ordinal, CUstream stream,
                       ffi::Result<ffi::BufferR0<ffi::S32>>& result) {
  if (!number) return ToError(NotInitialized(what));
  return ToStatus(CudaSums::Get().Write(ordinal, stream, AddressOf(result->untyped_data()), static_cast<int>(*number)));
}

ffi::Error Rank(int32_t ordinal, CUstream stream, ffi::Result<ffi::BufferR0<ffi::S32>> result) {
  return WriteNumber(Rendezvous::Get().rank(), "a program that asks for its rank", ordinal, stream, result);
}

ffi::Error WorldSize(int32_t ordinal, CUstream stream, ffi::Result<ffi::BufferR0<ffi::S32>> result) {
  return WriteNumber(Rendezvous::Get().world_size(), "a program that asks for the number of hosts", ordinal, stream,
                     result);
}

}  // namespace

// None has the command-buffer trait: XLA would trace a call once and replay what it enqueued, without asking us again.

XLA_FFI_Error* CudaPsumInstantiate(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::BindInstantiate().Attrs().To(Instantiate).release();
  return handler->Call(frame);
}

XLA_FFI_Error* CudaPsumInitialize(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind<ffi::ExecutionStage::kInitialize>()
                             .Ctx<ffi::State<CudaState>>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .To(Initialize)
                             .release();
  return handler->Call(frame);
}

XLA_FFI_Error* CudaPsumExecute(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .Ctx<ffi::State<CudaState>>()
                             .Ctx<ffi::RunId>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .Ctx<Stream>()
                             .Arg<ffi::AnyBuffer>()
                             .RemainingArgs()
                             .Ret<ffi::AnyBuffer>()
                             .RemainingRets()
                             .To(Start)
                             .release();
  return handler->Call(frame);
}

XLA_FFI_Error* CudaPsumDoneExecute(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .Ctx<ffi::RunId>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .Ctx<Stream>()
                             .Arg<ffi::AnyBuffer>()
                             .Arg<ffi::AnyBuffer>()
                             .RemainingArgs()
                             .RemainingRets()
                             .To(Done)
                             .release();
  return handler->Call(frame);
}

XLA_FFI_Error* CudaPsumOnCpuExecute(XLA_FFI_CallFrame* frame) {
  const auto start = [](CudaState* state, ffi::RunId run_id, int32_t ordinal, ffi::AnyBuffer before,
                        ffi::RemainingArgs leaves, ffi::Result<ffi::AnyBuffer> token, ffi::RemainingRets rets) {
    Initialize(state, ordinal);  // XLA doesn't for CPU devices
    return Start(state, run_id, ordinal, nullptr, before, leaves, token, rets);
  };
  static auto* handler = ffi::Ffi::Bind()
                             .Ctx<ffi::State<CudaState>>()
                             .Ctx<ffi::RunId>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .Arg<ffi::AnyBuffer>()
                             .RemainingArgs()
                             .Ret<ffi::AnyBuffer>()
                             .RemainingRets()
                             .To(start)
                             .release();
  return handler->Call(frame);
}

XLA_FFI_Error* CudaPsumDoneOnCpuExecute(XLA_FFI_CallFrame* frame) {
  const auto done = [](ffi::RunId run_id, int32_t ordinal, ffi::AnyBuffer token, ffi::AnyBuffer gate,
                       ffi::RemainingArgs leaves,
                       ffi::RemainingRets sums) { return Done(run_id, ordinal, nullptr, token, gate, leaves, sums); };
  static auto* handler = ffi::Ffi::Bind()
                             .Ctx<ffi::RunId>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .Arg<ffi::AnyBuffer>()
                             .Arg<ffi::AnyBuffer>()
                             .RemainingArgs()
                             .RemainingRets()
                             .To(done)
                             .release();
  return handler->Call(frame);
}

XLA_FFI_Error* CudaVisitInstantiate(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::BindInstantiate()
                             .Attr<std::string_view>("program")
                             .Attr<int64_t>("ordinal")
                             .To(InstantiateVisit)
                             .release();
  return handler->Call(frame);
}

XLA_FFI_Error* CudaVisitExecute(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .Ctx<ffi::State<CudaState>>()
                             .Ctx<ffi::RunId>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .RemainingArgs()
                             .RemainingRets()
                             .To(Visit)
                             .release();
  return handler->Call(frame);
}

XLA_FFI_Error* CudaRankExecute(XLA_FFI_CallFrame* frame) {
  static auto* handler =
      ffi::Ffi::Bind().Ctx<ffi::DeviceOrdinal>().Ctx<Stream>().Ret<ffi::BufferR0<ffi::S32>>().To(Rank).release();
  return handler->Call(frame);
}

XLA_FFI_Error* CudaWorldSizeExecute(XLA_FFI_CallFrame* frame) {
  static auto* handler =
      ffi::Ffi::Bind().Ctx<ffi::DeviceOrdinal>().Ctx<Stream>().Ret<ffi::BufferR0<ffi::S32>>().To(WorldSize).release();
  return handler->Call(frame);
}

XLA_FFI_TypeId* CudaStateTypeId() { return &CudaState::id; }
const XLA_FFI_TypeInfo* CudaStateTypeInfo() { return &kCudaStateTypeInfo; }

}  // namespace passing
