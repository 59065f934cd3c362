#include "mpi/jaxlib/late_binding.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "mpi/jaxlib/elf_symbols.h"
#include "mpi/jaxlib/jaxlib.h"

namespace passing::mpi {
namespace {

constexpr std::string_view kInit = "mpitrampoline_init";
constexpr std::string_view kDidInit = "did_init_mpitrampoline";
constexpr std::string_view kInitThread = "MPIABI_Init_thread";  // where the trampoline jumps to

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
  if (!jaxlib) return kNoJaxlib;
  const MappedFile file(jaxlib->path);
  const auto symbols = FindSymbols(file.bytes(), {kInit, kDidInit, kInitThread});
  if (symbols.size() != 3) return jaxlib->path + " has no MPItrampoline, or its table of symbols was stripped";

  void* const init = jaxlib->FindCode(symbols.at(kInit), file.bytes());
  auto* const did_init = static_cast<unsigned char*>(jaxlib->Find(symbols.at(kDidInit), PF_R | PF_W));
  void* const init_thread = jaxlib->Find(symbols.at(kInitThread), PF_R | PF_W);
  if (!init || !did_init || symbols.at(kDidInit).size != 1 || !init_thread ||
      symbols.at(kInitThread).size != sizeof(void*)) {
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
