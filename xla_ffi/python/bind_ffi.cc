// Binds what Python needs to run sums in this process: attach, detach, the handlers.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/cuda/sums.h"
#include "ffi/flat_collective.h"
#include "ffi/gathering/host_calls.h"
#include "ffi/gathering/rendezvous.h"
#include "ffi/handlers/handlers.h"
#include "ffi/local_collective.h"
#include "ffi/rehearsal.h"
#include "host/sums/sum_spec.h"
#include "host/transport/striped_transport.h"
#include "net/clock.h"
#include "python/bindings.h"
#include "python/stats.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace passing {
namespace {

nb::capsule Capsule(XLA_FFI_Handler* handler) { return nb::capsule(reinterpret_cast<void*>(handler)); }

// The handlers of each call's stages, by target.
nb::dict Bundles(const std::vector<CustomCall>& calls) {
  nb::dict bundles;
  for (const CustomCall& call : calls) {
    nb::dict bundle;
    if (call.instantiate) bundle["instantiate"] = Capsule(call.instantiate);
    if (call.initialize) bundle["initialize"] = Capsule(call.initialize);
    bundle["execute"] = Capsule(call.execute);
    bundles[call.target] = bundle;
  }
  return bundles;
}

nb::tuple StateType(const Platform& platform) {
  return nb::make_tuple(platform.state_name, nb::capsule(platform.state_id), nb::capsule(platform.state_info));
}

using Local = std::shared_ptr<LocalCollective>;
using SharedRehearsal = std::shared_ptr<Rehearsal>;
using SharedTransport = std::shared_ptr<StripedTransport>;

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

// Programs learn of rank 0: so what the first device of all hosts gives to the others is this host's own.
void AttachRehearsal(const SharedRehearsal& rehearsal, double deadline_s, int64_t first_device_id) {
  AttachOrThrow({.collective = rehearsal,
                 .flat = rehearsal,
                 .failure = [rehearsal] { return rehearsal->failure(); },
                 .fail = [rehearsal](const Failure& failure) { rehearsal->Fail(failure); },
                 .deadline_s = deadline_s,
                 .rank = 0,
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

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstBytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::optional<std::pair<std::string, std::string>> SumOfHosts(HostProgram& self, size_t site, int32_t execution,
                                                              int64_t group, int64_t member, int64_t device,
                                                              const std::vector<ConstBytes>& inputs,
                                                              const std::vector<Bytes>& outputs,
                                                              const std::vector<Bytes>& residuals) {
  HostProgram::Buffers buffers;
  for (const ConstBytes& input : inputs) {
    buffers.inputs.push_back(input.data());
    buffers.bytes.push_back(input.size());
  }
  const auto take = [&](const std::vector<Bytes>& results, std::vector<void*>& memory) {
    std::vector<size_t> bytes;
    for (const Bytes& result : results) {
      memory.push_back(result.data());
      bytes.push_back(result.size());
    }
    if (bytes != buffers.bytes) throw std::invalid_argument("results of other sizes than the operands");
  };
  take(outputs, buffers.outputs);
  if (!residuals.empty()) take(residuals, buffers.residuals);
  nb::gil_scoped_release release;
  const auto failure = self.Sum(site, execution, group, member, device, std::move(buffers));
  return failure ? std::optional(std::pair(failure->kind, failure->message)) : std::nullopt;
}

}  // namespace

void BindFfi(nb::module_& m) {
  // Python holds it, as a transport, through a shared_ptr of its own: a sum under way may outlive the Python object.
  nb::class_<Local>(m, "LocalCollective")
      .def("__init__", [](Local* self) { new (self) Local(std::make_shared<LocalCollective>()); })
      .def("stats", [](const Local& self) { return StatsDict(self->stats()); });

  nb::class_<SharedRehearsal>(m, "Rehearsal")
      .def(
          "__init__",
          [](SharedRehearsal* self, uint32_t world_size, std::string kind, std::string message) {
            new (self)
                SharedRehearsal(std::make_shared<Rehearsal>(world_size, Failure{std::move(kind), std::move(message)}));
          },
          "world_size"_a, nb::kw_only(), "kind"_a, "message"_a)
      .def(
          "fail",
          [](const SharedRehearsal& self, std::string kind, std::string message) {
            self->Fail({std::move(kind), std::move(message)});
          },
          "kind"_a, "message"_a)
      .def("failure",
           [](const SharedRehearsal& self) -> std::optional<std::pair<std::string, std::string>> {
             const auto failure = self->failure();
             return failure ? std::optional(std::pair(failure->kind, failure->message)) : std::nullopt;
           })
      .def("stats", [](const SharedRehearsal& self) { return StatsDict(self->stats()); });

  m.def("attach", AttachLocal, "collective"_a, "deadline_s"_a, nb::kw_only(), "rank"_a, "first_device_id"_a);
  m.def("attach", AttachRehearsal, "collective"_a, "deadline_s"_a, nb::kw_only(), "first_device_id"_a);
  m.def("attach", AttachTransports, "collective"_a, "deadline_s"_a, "flat"_a, nb::kw_only(), "rank"_a,
        "first_device_id"_a);
  m.def(
      "detach",
      [] {
        Rendezvous::Get().Detach();
        CudaSums::Get().ReleaseIdle();
      },
      nb::call_guard<nb::gil_scoped_release>());
  m.def("unfinished_handles", [] { return Rendezvous::Get().handles().Unfinished(); });
  m.def("forget_in_child", &Rendezvous::ForgetInChild);

  nb::class_<HostProgram>(m, "HostProgram")
      .def("__init__", [](HostProgram* self) { new (self) HostProgram(Rendezvous::Get()); })
      .def(
          "add", [](HostProgram& self, std::string_view spec) { return self.Add(ParseSumSpec(spec)); }, "spec"_a)
      .def("begin", &HostProgram::Begin, nb::kw_only(), "entry"_a, "device"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("sum", SumOfHosts, "site"_a, nb::kw_only(), "execution"_a, "group"_a, "member"_a, "device"_a, "inputs"_a,
           "outputs"_a, "residuals"_a = std::vector<Bytes>());

  m.def(
      "end_compilation",
      [](const std::vector<ModuleId>& modules) {
        Rehearsal::NoteCompilation(MonotonicUs());
        return EndCompilation(modules);
      },
      "modules"_a);
  m.def(
      "set_fingerprint",
      [](std::string program, int64_t ordinal, const std::string& fingerprint) {
        SetFingerprint({std::move(program), ordinal}, fingerprint);
      },
      "program"_a, "ordinal"_a, "fingerprint"_a);
  m.def("ffi_targets", [] { return Bundles(CpuPlatform().calls); });
  m.def("ffi_state_type", [] { return StateType(CpuPlatform()); });
  m.def("cuda_ffi_targets", [] { return Bundles(CudaPlatform().calls); });
  m.def("cuda_ffi_state_type", [] { return StateType(CudaPlatform()); });
  m.def(
      "cuda_ffi_targets_on_cpu",
      [](std::string library) {
        CudaSums::Get().SetLibrary(std::move(library));
        return Bundles(CudaCallsOnCpu());
      },
      "library"_a);
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
