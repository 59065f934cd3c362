// The parts of the Python module jax_passing._native (described in jax_passing/_native.pyi).
#ifndef XLA_FFI_PYTHON_BINDINGS_H_
#define XLA_FFI_PYTHON_BINDINGS_H_

#include <nanobind/nanobind.h>

namespace passing {

void BindFfi(nanobind::module_& m);
void BindMpi(nanobind::module_& m);
void BindRecorder(nanobind::module_& m);
void BindSocket(nanobind::module_& m);
void BindTransport(nanobind::module_& m);
void BindSwitch(nanobind::module_& m);
void BindSlotPool(nanobind::module_& m);

}  // namespace passing

#endif  // XLA_FFI_PYTHON_BINDINGS_H_
