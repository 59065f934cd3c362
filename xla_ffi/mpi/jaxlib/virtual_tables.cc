#include "mpi/jaxlib/virtual_tables.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

namespace passing::mpi {

VirtualTables::VirtualTables(const Library& library, const std::set<std::string_view>& names,
                             std::span<const std::string_view> beginnings)
    : library_(library), file_(library.path), symbols_(FindSymbols(file_.bytes(), names, beginnings)) {}

void* VirtualTables::Code(std::string_view name) const {
  const auto found = symbols_.find(name);
  return found == symbols_.end() ? nullptr : library_.FindCode(found->second, file_.bytes());
}

void* VirtualTables::Code(std::string_view beginning, std::string_view end) const {
  for (const auto& [name, symbol] : symbols_) {
    if (name.starts_with(beginning) && name.ends_with(end)) return library_.FindCode(symbol, file_.bytes());
  }
  return nullptr;
}

void** VirtualTables::Table(std::string_view table, size_t* words) const {
  const auto found = symbols_.find(table);
  if (found == symbols_.end()) return nullptr;
  *words = found->second.size / sizeof(void*);
  return static_cast<void**>(library_.Find(found->second, PF_R));
}

void** VirtualTables::Entry(std::string_view table, const void* code) const {
  size_t words = 0;
  void** const entries = Table(table, &words);
  for (size_t i = 0; entries && code && i < words; ++i) {
    if (entries[i] == code) return &entries[i];
  }
  return nullptr;
}

const void* VirtualTables::Identity(std::string_view table) const {
  size_t words = 0;
  void** const entries = Table(table, &words);
  return entries && words > 2 ? entries + 2 : nullptr;  // after the offset and the type
}

bool VirtualTables::Write(void** entry, void* value) const {
  const uintptr_t page = sysconf(_SC_PAGESIZE);
  const uintptr_t begin = reinterpret_cast<uintptr_t>(entry) & ~(page - 1);
  bool is_protected = false;
  for (const ElfW(Phdr) & segment : library_.segments) {
    const uintptr_t first = (library_.base + segment.p_vaddr) & ~(page - 1);
    const uintptr_t end = (library_.base + segment.p_vaddr + segment.p_memsz) & ~(page - 1);
    is_protected |= segment.p_type == PT_GNU_RELRO && first <= begin && begin < end;
  }
  if (is_protected && mprotect(reinterpret_cast<void*>(begin), page, PROT_READ | PROT_WRITE) != 0) return false;
  std::atomic_ref<void*>(*entry).store(value);
  if (is_protected) mprotect(reinterpret_cast<void*>(begin), page, PROT_READ);
  return true;
}

}  // namespace passing::mpi
