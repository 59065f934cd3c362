// What Python needs to run sums in this process: attach, detach, the handlers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ffi/handlers.h"
#include "ffi/local_collective.h"
#include "ffi/rendezvous.h"
#include "python/bindings.h"

namespace nb = nanobind;

namespace passing {
namespace {

nb::capsule Capsule(XLA_FFI_Error* (*handler)(XLA_FFI_CallFrame*)) {
  return nb::capsule(reinterpret_cast<void*>(handler));
}

}  // namespace

nb::dict StatsDict(const AllReduceStats& stats) {
  nb::dict dict;
  dict["sums_started"] = stats.sums_started;
  dict["sums_completed"] = stats.sums_completed;
  dict["tensor_bytes"] = stats.tensor_bytes;
  dict["packets_sent"] = stats.packets_sent;
  dict["bytes_sent"] = stats.bytes_sent;
  dict["packets_received"] = stats.packets_received;
  dict["bytes_received"] = stats.bytes_received;
  dict["packets_resent"] = stats.packets_resent;
  dict["packets_dropped"] = stats.packets_dropped;
  dict["order_messages"] = stats.order_messages;
  dict["order_rollbacks"] = stats.order_rollbacks;
  dict["flagged_chunks"] = stats.flagged_chunks;
  dict["guesses_right"] = stats.guesses_right;
  dict["guesses_wrong"] = stats.guesses_wrong;
  dict["round_trip_us"] = stats.round_trip_us;
  dict["rto_us"] = stats.rto_us;
  return dict;
}

void AttachOrThrow(Attachment attachment) {
  if (!Rendezvous::Get().Attach(std::move(attachment))) throw std::runtime_error("a session is attached already");
}

void BindFfi(nb::module_& m) {
  // Python holds it through a shared_ptr of its own: a sum under way may outlive the Python object.
  using Local = std::shared_ptr<LocalCollective>;
  nb::class_<Local>(m, "LocalCollective")
      .def("__init__", [](Local* self) { new (self) Local(std::make_shared<LocalCollective>()); })
      .def("stats", [](const Local& self) { return StatsDict(self->stats()); });

  m.def(
      "attach",
      [](const Local& local, double deadline_s, uint32_t rank, int64_t first_device_id) {
        AttachOrThrow({.collective = local,
                       .failure = [local] { return local->failure(); },
                       .fail = [local](const Failure& failure) { local->Fail(failure); },
                       .deadline_s = deadline_s,
                       .rank = rank,
                       .first_device_id = first_device_id});
      },
      nb::arg("collective"), nb::arg("deadline_s"), nb::kw_only(), nb::arg("rank") = 0, nb::arg("first_device_id") = 0);
  m.def(
      "detach", [] { Rendezvous::Get().Detach(); }, nb::call_guard<nb::gil_scoped_release>());

  m.def(
      "end_compilation",
      [](const std::optional<std::vector<ModuleId>>& modules) { return EndCompilation(modules ? &*modules : nullptr); },
      nb::arg("modules") = nb::none());
  m.def(
      "set_fingerprint",
      [](std::string program, int64_t ordinal, const std::string& fingerprint) {
        SetFingerprint({std::move(program), ordinal}, fingerprint);
      },
      nb::arg("program"), nb::arg("ordinal"), nb::arg("fingerprint"));
  m.def("ffi_targets", [] {
    nb::dict psum;
    psum["instantiate"] = Capsule(PsumInstantiate);
    psum["execute"] = Capsule(PsumExecute);
    nb::dict visit;
    visit["instantiate"] = Capsule(VisitInstantiate);
    visit["execute"] = Capsule(VisitExecute);
    nb::dict rank;
    rank["execute"] = Capsule(RankExecute);
    nb::dict hold;
    hold["execute"] = Capsule(HoldExecute);
    nb::dict targets;
    targets["passing_psum"] = psum;
    targets["passing_visit"] = visit;
    targets["passing_rank"] = rank;
    targets["passing_hold"] = hold;
    return targets;
  });
  m.def("ffi_state_type",
        [] { return nb::make_tuple(kStateName, nb::capsule(StateTypeId()), nb::capsule(StateTypeInfo())); });
}

}  // namespace passing
