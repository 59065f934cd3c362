// What Python needs to run sums in this process: attach, detach, the handlers.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
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
#include "ffi/handler_parts.h"
#include "ffi/handlers.h"
#include "ffi/host_calls.h"
#include "ffi/local_collective.h"
#include "ffi/rendezvous.h"
#include "host/transport/transport.h"
#include "python/bindings.h"
#include "python/stats.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace passing {
namespace {

using Handler = XLA_FFI_Error* (*)(XLA_FFI_CallFrame*);

nb::capsule Capsule(Handler handler) { return nb::capsule(reinterpret_cast<void*>(handler)); }

// The stages of a custom call; without a state there is nothing to instantiate.
nb::dict Bundle(Handler instantiate, Handler execute, Handler initialize = nullptr) {
  nb::dict bundle;
  if (instantiate) bundle["instantiate"] = Capsule(instantiate);
  if (initialize) bundle["initialize"] = Capsule(initialize);
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

size_t AddSum(HostProgram& self, std::string program, int64_t ordinal, int64_t site, std::string identity,
              std::string site_name, const std::string& dtype_name, const std::string& op_name,
              std::vector<uint64_t> leaf_elements, uint32_t member_count, uint32_t local_member_count,
              uint32_t replica_count, uint32_t world_size, bool flat, bool conditional, std::string devices) {
  SiteInfo info{.program = std::move(program),
                .ordinal = ordinal,
                .site = site,
                .identity = std::move(identity),
                .site_name = std::move(site_name),
                .leaf_elements = std::move(leaf_elements),
                .member_count = member_count,
                .local_member_count = local_member_count,
                .replica_count = replica_count,
                .world_size = world_size,
                .flat = flat,
                .conditional = conditional,
                .devices = std::move(devices)};
  if (const auto wrong = SetElements(info, dtype_name, op_name); !wrong.empty()) throw std::invalid_argument(wrong);
  return self.AddSite(std::move(info));
}

void AddVisit(HostProgram& self, const std::string& program, int64_t ordinal) {
  self.AddSite(ParseVisit(program, ordinal));
}

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstBytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::optional<std::pair<std::string, std::string>> SumOfHosts(HostProgram& self, size_t site, int32_t execution,
                                                              int64_t group, int64_t member, int64_t device,
                                                              const std::vector<ConstBytes>& inputs,
                                                              const std::vector<Bytes>& outputs) {
  HostProgram::Buffers buffers;
  for (const ConstBytes& input : inputs) {
    buffers.inputs.push_back(input.data());
    buffers.bytes.push_back(input.size());
  }
  std::vector<size_t> output_bytes;
  for (const Bytes& output : outputs) {
    buffers.outputs.push_back(output.data());
    output_bytes.push_back(output.size());
  }
  if (output_bytes != buffers.bytes) throw std::invalid_argument("results of other sizes than the operands");
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
  m.def("forget_in_child", &Rendezvous::ForgetInChild);

  nb::class_<HostProgram>(m, "HostProgram")
      .def("__init__", [](HostProgram* self) { new (self) HostProgram(Rendezvous::Get()); })
      .def("add_sum", AddSum, nb::kw_only(), "program"_a, "ordinal"_a, "site"_a, "identity"_a, "site_name"_a, "dtype"_a,
           "op"_a, "leaf_elements"_a, "member_count"_a, "local_member_count"_a, "replica_count"_a, "world_size"_a,
           "flat"_a, "conditional"_a, "devices"_a)
      .def("add_visit", AddVisit, nb::kw_only(), "program"_a, "ordinal"_a)
      .def("begin", &HostProgram::Begin, nb::kw_only(), "place"_a, "device"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("sum", SumOfHosts, "site"_a, nb::kw_only(), "execution"_a, "group"_a, "member"_a, "device"_a, "inputs"_a,
           "outputs"_a);

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
    targets["passing_psum"] = Bundle(CudaPsumInstantiate, CudaPsumExecute, CudaPsumInitialize);
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
