// The parts of the Python module jax_passing._native (described in jax_passing/_native.pyi).
#ifndef XLA_FFI_PYTHON_BINDINGS_H_
#define XLA_FFI_PYTHON_BINDINGS_H_

#include <nanobind/nanobind.h>

#include "ffi/rendezvous.h"
#include "host/all_reduce.h"
#include "net/udp_socket.h"

namespace passing {

void BindFfi(nanobind::module_& m);
void BindFixedPoint(nanobind::module_& m);
void BindSocket(nanobind::module_& m);
void BindTransport(nanobind::module_& m);
void BindSwitch(nanobind::module_& m);
void BindSlotPool(nanobind::module_& m);

nanobind::dict StatsDict(const AllReduceStats& stats);
void AddSocketStats(nanobind::dict& dict, const UdpSocketStats& stats);
// Raises RuntimeError if a session is attached.
void AttachOrThrow(Attachment attachment);

}  // namespace passing

#endif  // XLA_FFI_PYTHON_BINDINGS_H_
