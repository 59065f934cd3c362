// Looks symbols up in the table that a linker leaves in a file for debuggers: also those that no other library sees.
#ifndef XLA_FFI_MPI_JAXLIB_ELF_SYMBOLS_H_
#define XLA_FFI_MPI_JAXLIB_ELF_SYMBOLS_H_

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string_view>

namespace passing::mpi {

struct ElfSymbol {
  uint64_t address = 0;  // before the file is loaded somewhere
  uint64_t size = 0;
  uint64_t file_offset = 0;  // of its bytes, if it is code
  bool is_code = false;
};

// Finds those of `names` that `file` defines, and all that begin with one of `beginnings`, by names that lie in the
// file. Finds nothing unless it is a library or program of 64 bits and has such a table; its bytes may be anything.
std::map<std::string_view, ElfSymbol> FindSymbols(std::span<const uint8_t> file,
                                                  const std::set<std::string_view>& names,
                                                  std::span<const std::string_view> beginnings = {});

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_JAXLIB_ELF_SYMBOLS_H_
