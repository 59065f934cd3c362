#include "mpi/jaxlib/jaxlib.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string_view>

namespace passing::mpi {

MappedFile::MappedFile(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (file >= 0 && fstat(file, &status) == 0 && status.st_size > 0) {
    void* const mapped = mmap(nullptr, status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (mapped != MAP_FAILED) bytes_ = {static_cast<const uint8_t*>(mapped), static_cast<size_t>(status.st_size)};
  }
  if (file >= 0) close(file);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size());
}

void* Library::Find(const ElfSymbol& symbol, uint32_t permissions) const {
  for (const ElfW(Phdr) & segment : segments) {
    if (segment.p_type != PT_LOAD || (segment.p_flags & permissions) != permissions) continue;
    if (symbol.address < segment.p_vaddr || symbol.size > segment.p_memsz) continue;
    if (symbol.address - segment.p_vaddr > segment.p_memsz - symbol.size) continue;
    return reinterpret_cast<void*>(base + symbol.address);
  }
  return nullptr;
}

void* Library::FindCode(const ElfSymbol& symbol, std::span<const uint8_t> file) const {
  void* const code = Find(symbol, PF_R | PF_X);
  const bool in_file = symbol.file_offset <= file.size() && symbol.size <= file.size() - symbol.file_offset;
  if (!code || !symbol.is_code || symbol.size == 0 || !in_file) return nullptr;
  return std::memcmp(code, file.data() + symbol.file_offset, symbol.size) == 0 ? code : nullptr;
}

std::optional<Library> Jaxlib() {
  std::optional<Library> found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        if (!std::string_view(info->dlpi_name).ends_with("/libjax_common.so")) return 0;
        *static_cast<std::optional<Library>*>(result) = {
            info->dlpi_name, info->dlpi_addr, {info->dlpi_phdr, info->dlpi_phdr + info->dlpi_phnum}};
        return 1;
      },
      &found);
  return found;
}

}  // namespace passing::mpi
