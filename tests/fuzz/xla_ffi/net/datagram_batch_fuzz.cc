// Runs hold every datagram once, in order, and the kernel cuts each run into just these.
#include <vector>

#include "../tests/fuzz/xla_ffi/operations.h"
#include "net/datagram_batch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace passing;
  constexpr size_t kMaxSegments = 64;
  Operations input(data, size);
  std::vector<uint16_t> sizes;
  while (!input.empty() && sizes.size() < 400) {
    const uint8_t repeats = input.Byte();
    // Nearly always what packets have: sizes that come again and again.
    const auto bytes = static_cast<uint16_t>(repeats < 128 ? 20 + 4 * size_t{input.Byte()} : input.Number16());
    sizes.insert(sizes.end(), 1 + repeats % 80, bytes);
  }
  std::vector<DatagramRun> runs = {{1, 2, 3}};
  GroupRuns(sizes, runs);

  size_t next = 0, offset = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const DatagramRun& run = runs[i];
    EXPECT_ALWAYS(run.offset == offset);
    // As the kernel cuts it.
    size_t left = run.bytes, segments = 0, last_bytes = 0;
    do {
      EXPECT_ALWAYS(next < sizes.size());
      last_bytes = left < run.segment_bytes ? left : run.segment_bytes;
      EXPECT_ALWAYS(sizes[next] == last_bytes);
      left -= last_bytes;
      ++next, ++segments;
    } while (left > 0);
    EXPECT_ALWAYS(segments == 1 || (segments <= kMaxSegments && run.bytes <= kMaxUdpBytes));
    offset += run.bytes;
    // It couldn't be longer.
    if (i + 1 == runs.size()) continue;
    const size_t following = sizes[next];
    const bool has_room = segments < kMaxSegments && run.bytes + following <= kMaxUdpBytes;
    EXPECT_ALWAYS(!has_room || following == 0 || last_bytes < run.segment_bytes || following > run.segment_bytes);
  }
  EXPECT_ALWAYS(next == sizes.size());
  return 0;
}
