#include "ffi/handlers/equal_handler.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/equality.h"
#include "ffi/gathering/rendezvous.h"
#include "ffi/handlers/cpu_handler_state.h"
#include "ffi/handlers/handler_parts.h"
#include "xla/ffi/api/ffi.h"

namespace passing {
namespace {

namespace ffi = xla::ffi;

ffi::Future Equal(CpuState* state, ffi::RunId run_id, int32_t device, ffi::BufferR1<ffi::S32> position,
                  ffi::BufferR0<ffi::S32> /*before*/, ffi::RemainingArgs leaves,
                  ffi::Result<ffi::BufferR0<ffi::S32>> after) {
  *after->typed_data() = 0;
  ffi::Promise promise;
  ffi::Future future(promise);
  auto& rendezvous = Rendezvous::Get();
  const auto equality = state->equality;
  const int64_t group = position.typed_data()[0];
  const auto attached = rendezvous.attached();
  // All devices of a group find the same: it is done only when all have come, and then before any can come again.
  if (attached && equality->IsDone(group, attached->number)) {
    promise.SetAvailable();
    return future;
  }
  std::vector<uint64_t> digests;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const auto leaf = *leaves.get<ffi::AnyBuffer>(i);
    digests.push_back(DigestOf(leaf.untyped_data(), leaf.size_bytes()));
  }
  const uint64_t session = attached ? attached->number : 0;
  const auto lanes = std::make_shared<std::vector<int32_t>>(equality->Lanes(digests, attached ? attached->rank : 0));
  Call call;
  call.run_id = static_cast<int32_t>(run_id.run_id);
  call.device = device;
  call.member = position.typed_data()[1];
  call.inputs = {lanes->data()};
  call.outputs = {lanes->data()};
  call.once = true;
  call.done = [promise, lanes, equality, group, session](const Failure* failure) mutable {
    if (failure) return promise.SetError(ToError(*failure));
    if (const auto different = equality->Difference(*lanes)) {
      Rendezvous::Get().FailSession(*different);
      return promise.SetError(ToError(*different));
    }
    equality->Done(group, session);
    promise.SetAvailable();
  };
  rendezvous.Arrive(state->instance->SiteOf(group), std::move(call));
  return future;
}

std::vector<std::string> Lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

ffi::ErrorOr<std::unique_ptr<CpuState>> Make(std::string_view spec, std::string_view leaves) {
  auto state = MakeState<CpuState>(spec);
  if (!state.has_value()) return state;
  const SumSpec& sum = (*state)->instance->spec();
  auto names = Lines(leaves);
  const uint64_t fours = sum.leaf_elements.size() == 1 ? sum.leaf_elements.front() / 4 : 0;
  if (names.empty() || fours < names.size()) {
    return ffi::Unexpected(ffi::Error::InvalidArgument("a comparison has four lanes for each leaf and each rank"));
  }
  const auto ranks_max = static_cast<uint32_t>(fours - names.size());
  (*state)->equality = std::make_shared<Equality>(sum.site_name, std::move(names), ranks_max);
  return state;
}

constexpr auto kEqual = [] { return BindSum().To(Equal); };
constexpr auto kMake = [] {
  return ffi::Ffi::BindInstantiate().Attr<std::string_view>("spec").Attr<std::string_view>("leaves").To(Make);
};

}  // namespace

XLA_FFI_Error* EqualExecute(XLA_FFI_CallFrame* frame) { return Handle<kEqual>(frame); }
XLA_FFI_Error* InstantiateEqual(XLA_FFI_CallFrame* frame) { return Handle<kMake>(frame); }

}  // namespace passing
