// Finds the jaxlib of this process: its file, and where that is in memory.
#ifndef XLA_FFI_MPI_JAXLIB_JAXLIB_H_
#define XLA_FFI_MPI_JAXLIB_JAXLIB_H_

#include <link.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mpi/jaxlib/elf_symbols.h"

namespace passing::mpi {

class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  std::span<const uint8_t> bytes() const { return bytes_; }  // empty if it can't be read

 private:
  std::span<const uint8_t> bytes_;
};

// A library in memory.
struct Library {
  std::string path;
  uintptr_t base = 0;
  std::vector<ElfW(Phdr)> segments;

  // The memory of a symbol; null unless all of it is in a segment with these permissions.
  void* Find(const ElfSymbol& symbol, uint32_t permissions) const;
  // The memory of a function; null unless it has the bytes that are in the file, too.
  void* FindCode(const ElfSymbol& symbol, std::span<const uint8_t> file) const;
};

// libjax_common.so, if it is loaded.
std::optional<Library> Jaxlib();
inline constexpr const char* kNoJaxlib = "jaxlib isn't loaded, or has no libjax_common.so";

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_JAXLIB_JAXLIB_H_
