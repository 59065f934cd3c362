// Runs a fuzz target, without a fuzzer, on the inputs in the zip files that are named: as a test.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

uint32_t Read32(const uint8_t* at) { return at[0] | at[1] << 8 | at[2] << 16 | uint32_t{at[3]} << 24; }
uint32_t Read16(const uint8_t* at) { return at[0] | at[1] << 8; }

// Replays a zip whose files aren't compressed (run.py packs it): a header, a name and the bytes of each, one after the
// other.
int Replay(const std::vector<uint8_t>& zip) {
  constexpr uint32_t kFile = 0x04034b50;
  constexpr size_t kHeaderBytes = 30;
  int inputs = 0;
  size_t at = 0;
  for (; at + kHeaderBytes <= zip.size() && Read32(&zip[at]) == kFile; ++inputs) {
    const size_t size = Read32(&zip[at + 22]);
    const size_t name_size = Read16(&zip[at + 26]);
    const size_t begin = at + kHeaderBytes + name_size + Read16(&zip[at + 28]);
    if (Read32(&zip[at + 18]) != size || begin + size > zip.size()) return 0;
    const std::string name(zip.begin() + at + kHeaderBytes, zip.begin() + at + kHeaderBytes + name_size);
    std::fprintf(stderr, "%s\n", name.c_str());  // the last one is the one that failed
    const std::vector<uint8_t> input(zip.begin() + begin, zip.begin() + begin + size);  // reads behind it are found
    LLVMFuzzerTestOneInput(input.data(), input.size());
    at = begin + size;
  }
  return inputs;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    if (Replay({std::istreambuf_iterator<char>(file), {}}) == 0) {
      std::fprintf(stderr, "%s: no inputs that can be read\n", argv[i]);
      return 1;
    }
  }
  return argc > 1 ? 0 : 1;
}
