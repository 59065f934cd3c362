// AES by the instructions that CPUs have for it.
#ifndef XLA_FFI_HOST_PACKETS_AES_INSTRUCTIONS_H_
#define XLA_FFI_HOST_PACKETS_AES_INSTRUCTIONS_H_

#include <vector>

#include "host/packets/aes.h"

namespace passing {

// Returns those that this CPU has, the fastest first. None of them has a branch or an address that depends on the key.
std::vector<Aes::Implementation> AesByInstructions();

}  // namespace passing

#endif  // XLA_FFI_HOST_PACKETS_AES_INSTRUCTIONS_H_
