#include "mpi/late_binding.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mpi/elf_symbols.h"

namespace passing::mpi {
namespace {

constexpr std::string_view kJaxlib = "/libjax_common.so";
constexpr std::string_view kInit = "mpitrampoline_init";
constexpr std::string_view kDidInit = "did_init_mpitrampoline";
constexpr std::string_view kInitThread = "MPIABI_Init_thread";  // where the trampoline jumps to

class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status {};
    if (file >= 0 && fstat(file, &status) == 0 && status.st_size > 0) {
      void* const mapped = mmap(nullptr, status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
      if (mapped != MAP_FAILED) bytes_ = {static_cast<const uint8_t*>(mapped), static_cast<size_t>(status.st_size)};
    }
    if (file >= 0) close(file);
  }
  ~MappedFile() {
    if (!bytes_.empty()) munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size());
  }
  MappedFile(const MappedFile&) = delete;
  std::span<const uint8_t> bytes() const { return bytes_; }

 private:
  std::span<const uint8_t> bytes_;
};

// A library in memory.
struct Library {
  std::string path;
  uintptr_t base = 0;
  std::vector<ElfW(Phdr)> segments;

  // The memory of a symbol; null unless all of it is in a segment with these permissions.
  void* Find(const ElfSymbol& symbol, uint32_t permissions) const {
    for (const ElfW(Phdr) & segment : segments) {
      if (segment.p_type != PT_LOAD || (segment.p_flags & permissions) != permissions) continue;
      if (symbol.address < segment.p_vaddr || symbol.size > segment.p_memsz) continue;
      if (symbol.address - segment.p_vaddr > segment.p_memsz - symbol.size) continue;
      return reinterpret_cast<void*>(base + symbol.address);
    }
    return nullptr;
  }
};

std::optional<Library> Jaxlib() {
  std::optional<Library> found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        if (!std::string_view(info->dlpi_name).ends_with(kJaxlib)) return 0;
        *static_cast<std::optional<Library>*>(result) = {
            info->dlpi_name, info->dlpi_addr, {info->dlpi_phdr, info->dlpi_phdr + info->dlpi_phnum}};
        return 1;
      },
      &found);
  return found;
}

bool SameFile(const char* left, const char* right) {
  struct stat a {
  }, b{};
  return stat(left, &a) == 0 && stat(right, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// The file that has this address in memory; empty if none.
std::string FileOf(const void* address) {
  Dl_info info;
  return address && dladdr(address, &info) && info.dli_fname ? info.dli_fname : "";
}

}  // namespace

std::optional<std::string> BindLate() {
  const std::string own = FileOf(reinterpret_cast<const void*>(&BindLate));
  const char* const asked = std::getenv("MPITRAMPOLINE_LIB");
  if (!asked || !SameFile(asked, own.c_str())) return "MPITRAMPOLINE_LIB doesn't name " + own;
  const char* const mode = std::getenv("MPITRAMPOLINE_DLOPEN_MODE");
  if (mode && std::string_view(mode) != "dlopen") {
    return std::string("MPITRAMPOLINE_DLOPEN_MODE is ") + mode + ", which would load a second copy of " + own;
  }
  const std::optional<Library> jaxlib = Jaxlib();
  if (!jaxlib) return "jaxlib isn't loaded, or has no libjax_common.so";
  const MappedFile file(jaxlib->path);
  const auto symbols = FindSymbols(file.bytes(), {kInit, kDidInit, kInitThread});
  if (symbols.size() != 3) return jaxlib->path + " has no MPItrampoline, or its table of symbols was stripped";

  const ElfSymbol& code = symbols.at(kInit);
  void* const init = jaxlib->Find(code, PF_R | PF_X);
  auto* const did_init = static_cast<unsigned char*>(jaxlib->Find(symbols.at(kDidInit), PF_R | PF_W));
  void* const init_thread = jaxlib->Find(symbols.at(kInitThread), PF_R | PF_W);
  const bool in_file = code.file_offset <= file.bytes().size() && code.size <= file.bytes().size() - code.file_offset;
  if (!code.is_code || code.size == 0 || !init || !in_file || !did_init || symbols.at(kDidInit).size != 1 ||
      !init_thread || symbols.at(kInitThread).size != sizeof(void*) ||
      std::memcmp(init, file.bytes().data() + code.file_offset, code.size) != 0) {
    return jaxlib->path + " isn't the file that this process has loaded, or its MPItrampoline is of another kind";
  }
  void* target;
  std::memcpy(&target, init_thread, sizeof(target));
  const std::string bound = FileOf(target);
  if (!bound.empty() && SameFile(bound.c_str(), own.c_str())) return std::nullopt;
  if (target && bound != jaxlib->path) return "another MPI was loaded with jaxlib: " + bound;

  *did_init = 0;
  reinterpret_cast<void (*)()>(init)();
  std::memcpy(&target, init_thread, sizeof(target));
  if (!SameFile(FileOf(target).c_str(), own.c_str()))
    return "the MPItrampoline of " + jaxlib->path + " took no library";
  return std::nullopt;
}

}  // namespace passing::mpi
