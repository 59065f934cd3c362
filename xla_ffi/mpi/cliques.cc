#include "mpi/cliques.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>

#include "mpi/elf_symbols.h"
#include "mpi/jaxlib.h"

namespace passing::mpi {
namespace {

// As compilers write the names of what XLA declares (xla/core/collectives, xla/backends/cpu/collectives). Names tell
// the types of arguments, so that with other arguments nothing is found. Abseil's version stands between the halves of
// two.
constexpr std::string_view kTable = "_ZTVN3xla3cpu14MpiCollectivesE";
constexpr std::string_view kDevices = "_ZNK3xla9CliqueKey7devicesEv";
constexpr std::string_view kNumDevices = "_ZNK3xla9CliqueKey11num_devicesEv";
constexpr std::array kBeginnings = {
    std::string_view(
        "_ZN3xla3cpu14MpiCollectives19CreateCommunicatorsERKNS_9CliqueKeyERKSt8optionalINS_9CliqueIdsEEN4absl"),
    std::string_view("_ZN3xla9CliqueKeyC2EN4absl"),
};
constexpr std::string_view kCreateEnd = "4SpanIKNS_11Collectives10DeviceRankEEERKNSD_6ConfigE";
constexpr std::string_view kKeyEnd = "4SpanIKN3tsl3gtl7IntTypeINS_19GlobalDeviceId_tag_EiEEEE";  // 'i': of 32 bits

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

// Both are methods; the first argument is the object.
using Create = Returned (*)(void* collectives, const void* key, const void* ids, Span ranks, const void* config);
using Devices = Span (*)(const void* key);
using NumDevices = size_t (*)(const void* key);

// XLA's. Set before the table has ours.
std::atomic<Create> create = nullptr;
Devices devices_of = nullptr;
NumDevices num_devices_of = nullptr;

thread_local const void* current = nullptr;  // the key of the clique for which XLA calls

Returned CreateAndRemember(void* collectives, const void* key, const void* ids, Span ranks, const void* config) {
  struct Remembered {
    explicit Remembered(const void* key) { current = key; }
    ~Remembered() { current = nullptr; }
  } const remembered(key);
  return create.load()(collectives, key, ids, ranks, config);
}

// Where the loader made memory read-only when it had written to it, that memory is so again afterwards.
bool Write(const Library& library, void** slot, void* value) {
  const uintptr_t page = sysconf(_SC_PAGESIZE);
  const uintptr_t begin = reinterpret_cast<uintptr_t>(slot) & ~(page - 1);
  bool is_protected = false;
  for (const ElfW(Phdr) & segment : library.segments) {
    const uintptr_t first = (library.base + segment.p_vaddr) & ~(page - 1);
    const uintptr_t end = (library.base + segment.p_vaddr + segment.p_memsz) & ~(page - 1);
    is_protected |= segment.p_type == PT_GNU_RELRO && first <= begin && begin < end;
  }
  if (is_protected && mprotect(reinterpret_cast<void*>(begin), page, PROT_READ | PROT_WRITE) != 0) return false;
  std::atomic_ref<void*>(*slot).store(value);
  if (is_protected) mprotect(reinterpret_cast<void*>(begin), page, PROT_READ);
  return true;
}

}  // namespace

std::optional<std::string> WatchCliques() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (create.load()) return std::nullopt;
  const std::optional<Library> jaxlib = Jaxlib();
  if (!jaxlib) return kNoJaxlib;
  const MappedFile file(jaxlib->path);
  const auto symbols = FindSymbols(file.bytes(), {kTable, kDevices, kNumDevices}, kBeginnings);
  void* create_code = nullptr;
  bool has_key = false;
  for (const auto& [name, symbol] : symbols) {
    if (name.starts_with(kBeginnings[0]) && name.ends_with(kCreateEnd)) {
      create_code = jaxlib->FindCode(symbol, file.bytes());
    }
    has_key |= name.starts_with(kBeginnings[1]) && name.ends_with(kKeyEnd);
  }
  const auto code = [&](std::string_view name) {
    const auto found = symbols.find(name);
    return found == symbols.end() ? nullptr : jaxlib->FindCode(found->second, file.bytes());
  };
  void* const devices = code(kDevices);
  void* const num_devices = code(kNumDevices);
  const auto table = symbols.find(kTable);
  if (!create_code || !has_key || !devices || !num_devices || table == symbols.end()) {
    return jaxlib->path + " makes its communicators in another way, or its table of symbols was stripped";
  }
  auto* const slots = static_cast<void**>(jaxlib->Find(table->second, PF_R));
  void** slot = nullptr;
  for (size_t i = 0; slots && i < table->second.size / sizeof(void*); ++i) {
    if (slots[i] == create_code) slot = &slots[i];
  }
  if (!slot) return jaxlib->path + " doesn't make its communicators by a virtual function";
  devices_of = reinterpret_cast<Devices>(devices);
  num_devices_of = reinterpret_cast<NumDevices>(num_devices);
  create = reinterpret_cast<Create>(create_code);
  if (!Write(*jaxlib, slot, reinterpret_cast<void*>(&CreateAndRemember))) {
    create = nullptr;
    return "this system forbids to write to the tables of " + jaxlib->path;
  }
  return std::nullopt;
}

std::vector<int32_t> CliqueOfThread(int32_t color) {
  if (!current) return {};
  const Span span = devices_of(current);
  if (!span.data || span.size == 0 || span.size != num_devices_of(current)) return {};
  std::vector<int32_t> devices(span.size);
  std::memcpy(devices.data(), span.data, span.size * sizeof(int32_t));
  return devices[0] == color ? devices : std::vector<int32_t>();
}

}  // namespace passing::mpi
