// SipHash-2-4 (Aumasson, Bernstein: SipHash: a fast short-input PRF, INDOCRYPT 2012), of whole words.
#ifndef XLA_FFI_WIRE_SIP_HASH_H_
#define XLA_FFI_WIRE_SIP_HASH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace passing::wire {

// `words`: what the paper reads, in little endian, from a message of 8 bytes for each.
uint64_t SipHash(const std::array<uint64_t, 2>& key, std::span<const uint64_t> words);

// Hashes of so many messages of one length take little longer than one of them, where the CPU has vectors.
inline constexpr size_t kSipHashesAtOnce = 8;
using WordOfEach = std::array<uint64_t, kSipHashesAtOnce>;
// `words`: the first word of each message, then the second one of each, and so on.
WordOfEach SipHashes(const std::array<uint64_t, 2>& key, std::span<const WordOfEach> words);

}  // namespace passing::wire

#endif  // XLA_FFI_WIRE_SIP_HASH_H_
