// A packet's lanes, and how the loops over them are compiled.
#ifndef XLA_FFI_WIRE_LANES_H_
#define XLA_FFI_WIRE_LANES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

// A loop over lanes or elements is plain C++ that the compiler vectorises, compiled for several instruction sets; the
// best one is chosen when the library is loaded.
//
// Clones need GCC and the GNU dynamic linker (ifunc), and the sanitizers' runtimes are not up yet when it makes the
// choice. Elsewhere the loops are compiled for the compiler's default instruction set.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define PASSING_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PASSING_CLONES __attribute__((noinline))
#endif

namespace passing::wire {

// Lanes stand in network order on the wire. The same swap leads there and back.
inline uint32_t NetworkOrder(uint32_t lane) {
  return std::endian::native == std::endian::little ? __builtin_bswap32(lane) : lane;
}

// `lanes` may be unaligned.
inline uint32_t LoadLane(const uint8_t* lanes, size_t index) {
  uint32_t lane;
  std::memcpy(&lane, lanes + 4 * index, sizeof lane);
  return NetworkOrder(lane);
}
inline void StoreLane(uint8_t* lanes, size_t index, uint32_t lane) {
  lane = NetworkOrder(lane);
  std::memcpy(lanes + 4 * index, &lane, sizeof lane);
}

}  // namespace passing::wire

#endif  // XLA_FFI_WIRE_LANES_H_
