#include "mpi/jaxlib/watch_xla.h"

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string_view>

#include "mpi/jaxlib/jaxlib.h"
#include "mpi/jaxlib/virtual_tables.h"

namespace passing::mpi {
namespace {

// Names of what XLA declares (xla/core/collectives, xla/backends/cpu/collectives). Abseil's version stands between the
// halves of some.
constexpr std::string_view kCollectives = "_ZTVN3xla3cpu14MpiCollectivesE";
constexpr std::string_view kCommunicator = "_ZTVN3xla3cpu15MpiCommunicatorE";
constexpr std::string_view kExecutor = "_ZTVN3xla3cpu14CpuCollectives8ExecutorE";
constexpr std::string_view kDevices = "_ZNK3xla9CliqueKey7devicesEv";
constexpr std::string_view kNumDevices = "_ZNK3xla9CliqueKey11num_devicesEv";

struct Halves {
  std::string_view beginning, end;
};
constexpr Halves kCreate = {
    "_ZN3xla3cpu14MpiCollectives19CreateCommunicatorsERKNS_9CliqueKeyERKSt8optionalINS_9CliqueIdsEEN4absl",
    "4SpanIKNS_11Collectives10DeviceRankEEERKNSD_6ConfigE"};
constexpr Halves kKey = {"_ZN3xla9CliqueKeyC2EN4absl",
                         "4SpanIKN3tsl3gtl7IntTypeINS_19GlobalDeviceId_tag_EiEEEE"};  // 'i': of 32 bits
constexpr Halves kMakeExecutor = {"_ZN3xla3cpu14CpuCollectives8ExecutorC2ENS_13RendezvousKeyEN4absl", "8DurationE"};
constexpr Halves kAllReduce = {
    "_ZN3xla3cpu15MpiCommunicator9AllReduceE",
    "N15stream_executor17DeviceAddressBaseES3_NS_13PrimitiveTypeEmNS_13ReductionKindERKNS_12C"
    "ommunicator8ExecutorE"};
constexpr Halves kReduceScatter = {"_ZN3xla3cpu15MpiCommunicator13ReduceScatterE", kAllReduce.end};
constexpr Halves kAllGather = {
    "_ZN3xla3cpu15MpiCommunicator9AllGatherE",
    "N15stream_executor17DeviceAddressBaseES3_NS_13PrimitiveTypeEmRKNS_12Communicator8ExecutorE"};
constexpr Halves kAllToAll = {
    "_ZN3xla3cpu15MpiCommunicator8AllToAllEN4absl",
    "13InlinedVectorIN15stream_executor17DeviceAddressBaseELm4ESaIS6_EEES8_NS_13PrimitiveTypeE"
    "mRKNS_12Communicator8ExecutorE"};
constexpr Halves kPermute = {
    "_ZN3xla3cpu15MpiCommunicator17CollectivePermuteEN15stream_executor17DeviceAddressBaseES3_NS_"
    "13PrimitiveTypeEmSt8opti"
    "onalIN3tsl3gtl7IntTypeINS_11RankId_tag_ElEEEN4absl",
    "4SpanIKSA_EERKNS_12Communicator8ExecutorE"};
constexpr std::array kBeginnings = {kCreate.beginning,        kKey.beginning,       kMakeExecutor.beginning,
                                    kAllReduce.beginning,     kAllGather.beginning, kAllToAll.beginning,
                                    kReduceScatter.beginning, kPermute.beginning};

constexpr int kF16 = 10, kU16 = 7;  // XLA's PrimitiveType, which programs on disk name by these numbers, too

// absl::Span, which is passed and returned in two registers.
struct Span {
  const void* data;
  size_t size;
};

// A class that isn't trivial, so that it is returned where the caller says: whatever its size.
struct Returned {
  Returned(const Returned&) = delete;
  ~Returned() {}  // never called here
};

// Passed by value, as they are.
struct Address {
  void* data;
  uint64_t size, payload;
};
struct OptionalRank {
  int64_t rank;
  bool has_value;
};

// All are methods; the first argument is the object.
using Create = Returned (*)(void* collectives, const void* key, const void* ids, Span ranks, const void* config);
using Devices = Span (*)(const void* key);
using NumDevices = size_t (*)(const void* key);
using Reduce = Returned (*)(void*, Address, Address, int type, size_t count, int reduction, const void* executor);
using Gather = Returned (*)(void*, Address, Address, int type, size_t count, const void* executor);
using AllToAll = Returned (*)(void*, void* from, void* to, int type, size_t count, const void* executor);
using Permute = Returned (*)(void*, Address, Address, int type, size_t count, OptionalRank, Span, const void* executor);

// XLA's. Set before the tables have ours.
struct Watched {
  Create create;
  Devices devices;
  NumDevices num_devices;
  Reduce all_reduce, reduce_scatter;
  Gather all_gather;
  AllToAll all_to_all;
  Permute permute;
  const void* executor;  // what its first word is
  CallObserver* observer;
} xla;

thread_local const void* current = nullptr;  // the key of the clique for which XLA calls

Returned CreateAndRemember(void* collectives, const void* key, const void* ids, Span ranks, const void* config) {
  struct Remembered {
    explicit Remembered(const void* key) { current = key; }
    ~Remembered() { current = nullptr; }
  } const remembered(key);
  return xla.create(collectives, key, ids, ranks, config);
}

template <typename T>
T WordOf(const void* object, size_t index) {
  T word;
  std::memcpy(&word, static_cast<const uint8_t*>(object) + index * sizeof(void*), sizeof(word));
  return word;
}

class Observed {
 public:
  // A communicator has MPI's after its table. An executor has the run id there, the first word of its RendezvousKey.
  Observed(const void* communicator, int type, const void* executor)
      : communicator_(WordOf<abi::Handle>(communicator, 1)), type_(type) {
    std::optional<uint32_t> run_id;
    if (WordOf<const void*>(executor, 0) == xla.executor) run_id = static_cast<uint32_t>(WordOf<int64_t>(executor, 1));
    if (xla.observer->BeginCall(communicator_, run_id, type == kF16) && type == kF16) type_ = kU16;
  }
  ~Observed() { xla.observer->EndCall(communicator_); }
  Observed(const Observed&) = delete;

  int type() const { return type_; }

 private:
  const abi::Handle communicator_;
  int type_;
};

Returned WatchedAllReduce(void* self, Address from, Address to, int type, size_t count, int reduction,
                          const void* executor) {
  const Observed call(self, type, executor);
  return xla.all_reduce(self, from, to, call.type(), count, reduction, executor);
}
Returned WatchedReduceScatter(void* self, Address from, Address to, int type, size_t count, int reduction,
                              const void* executor) {
  const Observed call(self, type, executor);
  return xla.reduce_scatter(self, from, to, call.type(), count, reduction, executor);
}
Returned WatchedAllGather(void* self, Address from, Address to, int type, size_t count, const void* executor) {
  const Observed call(self, type, executor);
  return xla.all_gather(self, from, to, call.type(), count, executor);
}
Returned WatchedAllToAll(void* self, void* from, void* to, int type, size_t count, const void* executor) {
  const Observed call(self, type, executor);
  return xla.all_to_all(self, from, to, call.type(), count, executor);
}
Returned WatchedPermute(void* self, Address from, Address to, int type, size_t count, OptionalRank source, Span targets,
                        const void* executor) {
  const Observed call(self, type, executor);
  return xla.permute(self, from, to, call.type(), count, source, targets, executor);
}

// Sets `original`, and returns where the table has it; null if it hasn't.
template <typename Function>
void** Find(const VirtualTables& tables, std::string_view table, const Halves& name, Function& original) {
  void* const code = tables.Code(name.beginning, name.end);
  original = reinterpret_cast<Function>(code);
  return tables.Entry(table, code);
}

}  // namespace

std::optional<std::string> WatchXla(CallObserver& observer) {
  static std::mutex mutex;
  static bool watches = false;
  const std::lock_guard lock(mutex);
  if (watches) return std::nullopt;
  const std::optional<Library> jaxlib = Jaxlib();
  if (!jaxlib) return kNoJaxlib;
  const VirtualTables tables(*jaxlib, {kCollectives, kCommunicator, kExecutor, kDevices, kNumDevices}, kBeginnings);
  xla.observer = &observer;
  xla.devices = reinterpret_cast<Devices>(tables.Code(kDevices));
  xla.num_devices = reinterpret_cast<NumDevices>(tables.Code(kNumDevices));
  xla.executor = tables.Identity(kExecutor);
  const bool knows_types = tables.Code(kKey.beginning, kKey.end) && xla.devices && xla.num_devices && xla.executor &&
                           tables.Code(kMakeExecutor.beginning, kMakeExecutor.end);
  const std::array<std::pair<void**, void*>, 6> entries = {{
      {Find(tables, kCollectives, kCreate, xla.create), reinterpret_cast<void*>(&CreateAndRemember)},
      {Find(tables, kCommunicator, kAllReduce, xla.all_reduce), reinterpret_cast<void*>(&WatchedAllReduce)},
      {Find(tables, kCommunicator, kReduceScatter, xla.reduce_scatter), reinterpret_cast<void*>(&WatchedReduceScatter)},
      {Find(tables, kCommunicator, kAllGather, xla.all_gather), reinterpret_cast<void*>(&WatchedAllGather)},
      {Find(tables, kCommunicator, kAllToAll, xla.all_to_all), reinterpret_cast<void*>(&WatchedAllToAll)},
      {Find(tables, kCommunicator, kPermute, xla.permute), reinterpret_cast<void*>(&WatchedPermute)},
  }};
  for (const auto& [entry, _] : entries) {
    if (knows_types && entry) continue;
    return jaxlib->path + " makes or calls its communicators in another way, or its table of symbols was stripped";
  }
  for (const auto& [entry, ours] : entries) {  // the first of them fails, or none
    if (!tables.Write(entry, ours)) return "this system forbids to write to the tables of " + jaxlib->path;
  }
  watches = true;
  return std::nullopt;
}

std::vector<int32_t> CliqueOfThread(int32_t color) {
  if (!current) return {};
  const Span span = xla.devices(current);
  if (!span.data || span.size == 0 || span.size != xla.num_devices(current)) return {};
  std::vector<int32_t> devices(span.size);
  std::memcpy(devices.data(), span.data, span.size * sizeof(int32_t));
  return devices[0] == color ? devices : std::vector<int32_t>();
}

}  // namespace passing::mpi
