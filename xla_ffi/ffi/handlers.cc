#include "ffi/handlers.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/instance.h"
#include "ffi/rendezvous.h"
#include "xla/ffi/api/ffi.h"

namespace passing {
namespace {

namespace ffi = xla::ffi;

struct State {
  static ffi::TypeId id;
  explicit State(SiteInfo info) : instance(std::move(info)) {}
  Instance instance;
};
ffi::TypeId State::id = XLA_FFI_UNKNOWN_TYPE_ID;
constexpr ffi::TypeInfo kStateTypeInfo = ffi::MakeTypeInfo<State>();

// JAX shows the text; jax_passing.errors turns it back into the exception of that kind.
ffi::Error ToError(const Failure& failure) {
  return ffi::Error(ffi::ErrorCode::kAborted, failure.kind + ": " + failure.message);
}

std::optional<Op> ParseOp(std::string_view name) {
  if (name == "sum") return Op::kSum;
  if (name == "max") return Op::kMax;
  return std::nullopt;
}

ffi::ErrorOr<std::unique_ptr<State>> Instantiate(std::string_view program, int64_t ordinal, int64_t site,
                                                 std::string_view identity, std::string_view site_name,
                                                 std::string_view dtype_name, std::string_view op_name,
                                                 ffi::Span<const int64_t> leaf_elements, int64_t member_count,
                                                 int64_t local_member_count, int64_t replica_count, int64_t world_size,
                                                 int64_t flat, int64_t conditional, std::string_view devices) {
  const auto dtype = ParseDType(dtype_name);
  if (!dtype) {
    return ffi::Unexpected(ffi::Error::InvalidArgument("passing_psum of unknown dtype " + std::string(dtype_name)));
  }
  const auto op = ParseOp(op_name);
  if (!op) return ffi::Unexpected(ffi::Error::InvalidArgument("passing_psum of unknown op " + std::string(op_name)));
  if (*op == Op::kMax && *dtype != DType::kInt32) {
    return ffi::Unexpected(
        ffi::Error::InvalidArgument("passing_psum: maxima are of int32, not " + std::string(dtype_name)));
  }
  return std::make_unique<State>(SiteInfo{.program = std::string(program),
                                          .ordinal = ordinal,
                                          .site = site,
                                          .identity = std::string(identity),
                                          .site_name = std::string(site_name),
                                          .dtype = *dtype,
                                          .op = *op,
                                          .leaf_elements = {leaf_elements.begin(), leaf_elements.end()},
                                          .member_count = static_cast<uint32_t>(member_count),
                                          .local_member_count = static_cast<uint32_t>(local_member_count),
                                          .replica_count = static_cast<uint32_t>(replica_count),
                                          .world_size = static_cast<uint32_t>(world_size),
                                          .flat = flat != 0,
                                          .conditional = conditional != 0,
                                          .devices = std::string(devices)});
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
  SiteInfo info;
  info.program = program;
  info.ordinal = ordinal;
  return std::make_unique<State>(std::move(info));
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
  static auto* handler = ffi::Ffi::BindInstantiate()
                             .Attr<std::string_view>("program")
                             .Attr<int64_t>("ordinal")
                             .Attr<int64_t>("site")
                             .Attr<std::string_view>("identity")
                             .Attr<std::string_view>("site_name")
                             .Attr<std::string_view>("dtype")
                             .Attr<std::string_view>("op")
                             .Attr<ffi::Span<const int64_t>>("leaf_elements")
                             .Attr<int64_t>("member_count")
                             .Attr<int64_t>("local_member_count")
                             .Attr<int64_t>("replica_count")
                             .Attr<int64_t>("world_size")
                             .Attr<int64_t>("flat")
                             .Attr<int64_t>("conditional")
                             .Attr<std::string_view>("devices")
                             .To(Instantiate)
                             .release();
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
