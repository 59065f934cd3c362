// Puts functions of ours in the place of virtual ones of jaxlib.
//
// Compilers write a class's virtual functions into a table. The names of what jaxlib declares stand in its file's table
// of symbols, and tell the types of arguments, so that with other arguments nothing is found.
#ifndef XLA_FFI_MPI_JAXLIB_VIRTUAL_TABLES_H_
#define XLA_FFI_MPI_JAXLIB_VIRTUAL_TABLES_H_

#include <map>
#include <set>
#include <span>
#include <string_view>

#include "mpi/jaxlib/elf_symbols.h"
#include "mpi/jaxlib/jaxlib.h"

namespace passing::mpi {

class VirtualTables {
 public:
  // Looks up those of `names`, and what begins with one of `beginnings`; the texts and the library have to stay.
  VirtualTables(const Library& library, const std::set<std::string_view>& names,
                std::span<const std::string_view> beginnings);

  // The code of a function; null if there is none.
  void* Code(std::string_view name) const;
  // The function whose name begins and ends so; null if there is none.
  void* Code(std::string_view beginning, std::string_view end) const;
  // Where the table of a class has this function; null if it hasn't.
  void** Entry(std::string_view table, const void* code) const;
  // An object of the class has this in its first word; null if there is no such class.
  const void* Identity(std::string_view table) const;
  // Where the loader made memory read-only when it had written to it, that memory is so again afterwards. False if the
  // system forbids it.
  bool Write(void** entry, void* value) const;

 private:
  void** Table(std::string_view table, size_t* words) const;

  const Library& library_;
  const MappedFile file_;
  const std::map<std::string_view, ElfSymbol> symbols_;
};

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_JAXLIB_VIRTUAL_TABLES_H_
