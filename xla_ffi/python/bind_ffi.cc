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

#include "ffi/cuda_handlers.h"
#include "ffi/cuda_sums.h"
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

// The stages of a custom call; without a state there is nothing to instantiate.
nb::dict Bundle(XLA_FFI_Error* (*instantiate)(XLA_FFI_CallFrame*), XLA_FFI_Error* (*execute)(XLA_FFI_CallFrame*)) {
  nb::dict bundle;
  if (instantiate) bundle["instantiate"] = Capsule(instantiate);
  bundle["execute"] = Capsule(execute);
  return bundle;
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
      "detach",
      [] {
        Rendezvous::Get().Detach();
        CudaSums::Get().ReleaseIdle();
      },
      nb::call_guard<nb::gil_scoped_release>());

  m.def("end_compilation", EndCompilation, "modules"_a);
  m.def(
      "set_fingerprint",
      [](std::string program, int64_t ordinal, const std::string& fingerprint) {
        SetFingerprint({std::move(program), ordinal}, fingerprint);
      },
      "program"_a, "ordinal"_a, "fingerprint"_a);
  m.def("ffi_targets", [] {
    nb::dict targets;
    targets["passing_psum"] = Bundle(PsumInstantiate, PsumExecute);
    targets["passing_visit"] = Bundle(VisitInstantiate, VisitExecute);
    targets["passing_rank"] = Bundle(nullptr, RankExecute);
    targets["passing_world_size"] = Bundle(nullptr, WorldSizeExecute);
    targets["passing_hold"] = Bundle(nullptr, HoldExecute);
    return targets;
  });
  m.def("ffi_state_type",
        [] { return nb::make_tuple(kStateName, nb::capsule(StateTypeId()), nb::capsule(StateTypeInfo())); });
  m.def("cuda_ffi_targets", [] {
    nb::dict targets;
    targets["passing_psum"] = Bundle(CudaPsumInstantiate, CudaPsumExecute);
    targets["passing_psum_done"] = Bundle(nullptr, CudaPsumDoneExecute);
    targets["passing_visit"] = Bundle(CudaVisitInstantiate, CudaVisitExecute);
    targets["passing_rank"] = Bundle(nullptr, CudaRankExecute);
    targets["passing_world_size"] = Bundle(nullptr, CudaWorldSizeExecute);
    targets["passing_hold"] = Bundle(nullptr, HoldExecute);
    return targets;
  });
  m.def(
      "cuda_ffi_targets_on_cpu",
      [](std::string library) {
        CudaSums::Get().SetLibrary(std::move(library));
        nb::dict targets;
        targets["passing_psum"] = Bundle(CudaPsumInstantiate, CudaPsumOnCpuExecute);
        targets["passing_psum_done"] = Bundle(nullptr, CudaPsumDoneOnCpuExecute);
        return targets;
      },
      "library"_a);
  m.def("cuda_ffi_state_type", [] {
    return nb::make_tuple(kCudaStateName, nb::capsule(CudaStateTypeId()), nb::capsule(CudaStateTypeInfo()));
  });
  m.def(
      "set_cuda_devices",
      [](const std::vector<std::pair<int32_t, int64_t>>& ordinals_and_ids, int64_t first_device_id) {
        std::vector<CudaDevice> devices;
        for (const auto& [ordinal, id] : ordinals_and_ids) {
          const auto index = static_cast<int64_t>(devices.size());
          devices.push_back({.ordinal = ordinal, .id = id, .index = index, .number = first_device_id + index});
        }
        CudaSums::Get().SetDevices(std::move(devices));
      },
      "ordinals_and_ids"_a, nb::kw_only(), "first_device_id"_a);
}

}  // namespace passing
