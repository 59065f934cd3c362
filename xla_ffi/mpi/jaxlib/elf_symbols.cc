#include "mpi/jaxlib/elf_symbols.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace passing::mpi {
namespace {

using Bytes = std::span<const uint8_t>;

constexpr size_t kLongest = 1000;  // a name that is longer isn't looked for

// Empty if the file is shorter.
Bytes Part(Bytes file, uint64_t offset, uint64_t size) {
  if (offset > file.size() || size > file.size() - offset) return {};
  return file.subspan(offset, size);
}

template <typename T>
std::optional<T> At(Bytes bytes, uint64_t index) {
  if (index >= bytes.size() / sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

std::string_view NameAt(Bytes names, uint64_t offset, size_t longest) {
  if (offset >= names.size()) return {};
  const auto* const begin = reinterpret_cast<const char*>(names.data()) + offset;
  const size_t most = std::min<uint64_t>(names.size() - offset, longest + 1);
  const void* const end = std::memchr(begin, 0, most);
  return end ? std::string_view(begin, static_cast<const char*>(end) - begin) : std::string_view();
}

}  // namespace

std::map<std::string_view, ElfSymbol> FindSymbols(Bytes file, const std::set<std::string_view>& names,
                                                  std::span<const std::string_view> beginnings) {
  std::map<std::string_view, ElfSymbol> found;
  const auto header = At<Elf64_Ehdr>(file, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64 ||
      header->e_shentsize != sizeof(Elf64_Shdr)) {
    return found;
  }
  size_t longest = beginnings.empty() ? 0 : kLongest;
  for (const std::string_view name : names) longest = std::max(longest, name.size());
  const Bytes sections = Part(file, header->e_shoff, uint64_t{header->e_shnum} * sizeof(Elf64_Shdr));
  const auto contents = [&](const Elf64_Shdr& section) { return Part(file, section.sh_offset, section.sh_size); };
  for (uint64_t index = 0; const auto section = At<Elf64_Shdr>(sections, index); ++index) {
    if (section->sh_type != SHT_SYMTAB) continue;
    const auto strings = At<Elf64_Shdr>(sections, section->sh_link);
    if (!strings) continue;
    const Bytes symbols = contents(*section);
    const Bytes text = contents(*strings);
    for (uint64_t i = 0; i < symbols.size() / sizeof(Elf64_Sym); ++i) {
      const Elf64_Sym symbol = *At<Elf64_Sym>(symbols, i);
      const auto type = ELF64_ST_TYPE(symbol.st_info);
      if (type != STT_FUNC && type != STT_OBJECT) continue;
      std::string_view name = NameAt(text, symbol.st_name, longest);
      const auto known = names.find(name);
      if (known != names.end()) {
        name = *known;
      } else if (std::ranges::none_of(beginnings, [&](std::string_view each) { return name.starts_with(each); })) {
        continue;
      }
      const auto home = At<Elf64_Shdr>(sections, symbol.st_shndx);
      if (symbol.st_shndx == SHN_UNDEF || !home) continue;
      found[name] = {.address = symbol.st_value,
                     .size = symbol.st_size,
                     .file_offset = home->sh_offset + (symbol.st_value - home->sh_addr),
                     .is_code = type == STT_FUNC};
    }
  }
  return found;
}

}  // namespace passing::mpi
