// The protocol core sends packets by a Driver. They may be lost, doubled or reordered.
#ifndef XLA_FFI_NET_DRIVER_H_
#define XLA_FFI_NET_DRIVER_H_

#include <cstddef>
#include <cstdint>

#include "wire/header.h"

namespace passing {

class Driver {
 public:
  virtual ~Driver() = default;

  // Returns memory for one packet of wire::kMaxPacketBytes, which the driver owns: write, then Commit. Consecutive
  // packets lie side by side, so that a UDP driver can hand a run of them to the kernel at once.
  virtual uint8_t* Reserve() = 0;

  // Queues the packet just written, `bytes` long.
  virtual void Commit(size_t bytes) = 0;

  // Sends what is queued.
  virtual void Flush() = 0;
};

}  // namespace passing

#endif  // XLA_FFI_NET_DRIVER_H_
