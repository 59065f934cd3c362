// An exchange: the hosts send each other, as messages, what their devices give, each part once to each host.
#ifndef XLA_FFI_MPI_EXCHANGE_H_
#define XLA_FFI_MPI_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "mpi/server.h"

namespace passing::mpi {

// Begins one and returns at once. `whole`: the parts of all devices in their order, equally long, of which those of
// `own_host` are there. It is touched until `done` is called, once, from any thread. Exchanges with another tag never
// meet this one. Returns why it can't begin, if so: then fail the session, so that the messages that were begun end,
// and `done` follows.
std::optional<Failure> Exchange(Server& server, const Group& group, int32_t own_host, std::span<uint8_t> whole,
                                int32_t tag, std::function<void(const Failure*)> done);

}  // namespace passing::mpi

#endif  // XLA_FFI_MPI_EXCHANGE_H_
