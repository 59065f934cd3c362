// What Python needs to run sums in this process: attach, detach, the handlers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ffi/flat_collective.h"
#include "ffi/handlers.h"
#include "ffi/local_collective.h"
#include "ffi/rendezvous.h"
#include "host/transport.h"
#include "python/bindings.h"
#include "python/stats.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace passing {
namespace {

nb::capsule Capsule(XLA_FFI_Error* (*handler)(XLA_FFI_CallFrame*)) {
  return nb::capsule(reinterpret_cast<void*>(handler));
}

using Local = std::shared_ptr<LocalCollective>;
using SharedTransport = std::shared_ptr<Transport>;

void AttachOrThrow(Attachment attachment) {
  if (!Rendezvous::Get().Attach(std::move(attachment))) throw std::runtime_error("a session is attached already");
}

void AttachLocal(const Local& local, double deadline_s, uint32_t rank, int64_t first_device_id) {
  AttachOrThrow({.collective = local,
                 .failure = [local] { return local->failure(); },
                 .fail = [local](const Failure& failure) { local->Fail(failure); },
                 .deadline_s = deadline_s,
                 .rank = rank,
                 .first_device_id = first_device_id});
}

void AttachTransports(const SharedTransport& host, double deadline_s, const std::vector<SharedTransport>& flat,
                      uint32_t rank, int64_t first_device_id) {
  std::vector<SharedTransport> all{host};
  all.insert(all.end(), flat.begin(), flat.end());
  std::shared_ptr<Collective> devices;
  if (!flat.empty()) {
    devices = std::make_shared<FlatCollective>(std::vector<std::shared_ptr<Collective>>(flat.begin(), flat.end()));
  }
  // A session fails as a whole.
  const auto failure = [all]() -> std::optional<Failure> {
    for (const auto& transport : all) {
      if (auto found = transport->failure()) return found;
    }
    return std::nullopt;
  };
  const auto fail = [all](const Failure& failure) {
    for (const auto& transport : all) transport->Fail(failure);
  };
  AttachOrThrow({.collective = host,
                 .flat = std::move(devices),
                 .failure = failure,
                 .fail = fail,
                 .deadline_s = deadline_s,
                 .rank = rank,
                 .first_device_id = first_device_id});
}

}  // namespace

void BindFfi(nb::module_& m) {
  // Python holds it, as a transport, through a shared_ptr of its own: a sum under way may outlive the Python object.
  nb::class_<Local>(m, "LocalCollective")
      .def("__init__", [](Local* self) { new (self) Local(std::make_shared<LocalCollective>()); })
      .def("stats", [](const Local& self) { return StatsDict(self->stats()); });

  m.def("attach", AttachLocal, "collective"_a, "deadline_s"_a, nb::kw_only(), "rank"_a, "first_device_id"_a);
  m.def("attach", AttachTransports, "collective"_a, "deadline_s"_a, "flat"_a, nb::kw_only(), "rank"_a,
        "first_device_id"_a);
  m.def(
      "detach", [] { Rendezvous::Get().Detach(); }, nb::call_guard<nb::gil_scoped_release>());

  m.def("end_compilation", EndCompilation, "modules"_a);
  m.def(
      "set_fingerprint",
      [](std::string program, int64_t ordinal, const std::string& fingerprint) {
        SetFingerprint({std::move(program), ordinal}, fingerprint);
      },
      "program"_a, "ordinal"_a, "fingerprint"_a);
  m.def("ffi_targets", [] {
    nb::dict psum;
    psum["instantiate"] = Capsule(PsumInstantiate);
    psum["execute"] = Capsule(PsumExecute);
    nb::dict visit;
    visit["instantiate"] = Capsule(VisitInstantiate);
    visit["execute"] = Capsule(VisitExecute);
    nb::dict rank;
    rank["execute"] = Capsule(RankExecute);
    nb::dict world_size;
    world_size["execute"] = Capsule(WorldSizeExecute);
    nb::dict hold;
    hold["execute"] = Capsule(HoldExecute);
    nb::dict targets;
    targets["passing_psum"] = psum;
    targets["passing_visit"] = visit;
    targets["passing_rank"] = rank;
    targets["passing_world_size"] = world_size;
    targets["passing_hold"] = hold;
    return targets;
  });
  m.def("ffi_state_type",
        [] { return nb::make_tuple(kStateName, nb::capsule(StateTypeId()), nb::capsule(StateTypeInfo())); });
}

}  // namespace passing
