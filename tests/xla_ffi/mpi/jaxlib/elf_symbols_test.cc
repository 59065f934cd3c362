#include "mpi/jaxlib/elf_symbols.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "mpi/jaxlib/late_binding.h"

// No other library sees these.
__attribute__((noinline)) static int Code() asm("elf_symbols_test_code");
__attribute__((used)) static int data asm("elf_symbols_test_data") = 6;
static int Code() { return ++data; }

namespace passing::mpi {
namespace {

std::vector<uint8_t> OwnFile() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

uintptr_t OwnBase() {
  uintptr_t base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        *static_cast<uintptr_t*>(result) = info->dlpi_addr;
        return 1;  // the first is the program
      },
      &base);
  return base;
}

TEST(ElfSymbolsTest, findsLocalOnes) {
  const std::vector<uint8_t> file = OwnFile();
  const auto found = FindSymbols(file, {"elf_symbols_test_code", "elf_symbols_test_data", "not there"});
  ASSERT_EQ(found.size(), 2U);
  const ElfSymbol& code = found.at("elf_symbols_test_code");
  EXPECT_EQ(OwnBase() + code.address, reinterpret_cast<uintptr_t>(&Code));
  EXPECT_TRUE(code.is_code);
  ASSERT_LE(code.file_offset + code.size, file.size());
  EXPECT_EQ(std::memcmp(file.data() + code.file_offset, reinterpret_cast<void*>(&Code), code.size), 0);
  const ElfSymbol& variable = found.at("elf_symbols_test_data");
  EXPECT_EQ(OwnBase() + variable.address, reinterpret_cast<uintptr_t>(&data));
  EXPECT_EQ(variable.size, sizeof(int));
}

TEST(ElfSymbolsTest, takesAnyBytes) {
  std::vector<uint8_t> file = OwnFile();
  EXPECT_TRUE(FindSymbols({}, {"x"}).empty());
  EXPECT_TRUE(FindSymbols(std::vector<uint8_t>(1000), {"x"}).empty());
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  uint64_t table;  // of sections, at the file's end: where broken numbers lead somewhere
  std::memcpy(&table, file.data() + 40, sizeof(table));
  for (int i = 0; i < 30; ++i) {
    std::vector<uint8_t> broken = file;
    for (int k = 0; k < 8; ++k) {
      const bool header = random() % 2 == 0;
      const size_t begin = header ? 16 : table;
      const size_t end = header ? 64 : file.size();
      broken[begin + random() % (end - begin)] = static_cast<uint8_t>(random());
    }
    if (i % 3 == 0) broken.resize(random() % broken.size());
    EXPECT_LE(FindSymbols(broken, {"elf_symbols_test_code"}).size(), 1U);
  }
}

TEST(LateBindingTest, saysWhyItCannot) {
  unsetenv("MPITRAMPOLINE_LIB");
  EXPECT_NE(BindLate().value().find("MPITRAMPOLINE_LIB doesn't name"), std::string::npos);
  Dl_info own;  // this program, or a library of it
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&BindLate), &own), 0);
  setenv("MPITRAMPOLINE_LIB", own.dli_fname, 1);
  EXPECT_EQ(BindLate().value(), "jaxlib isn't loaded, or has no libjax_common.so");
  setenv("MPITRAMPOLINE_DLOPEN_MODE", "dlmopen", 1);
  EXPECT_NE(BindLate().value().find("second copy"), std::string::npos);
  unsetenv("MPITRAMPOLINE_DLOPEN_MODE");
  unsetenv("MPITRAMPOLINE_LIB");
}

}  // namespace
}  // namespace passing::mpi
