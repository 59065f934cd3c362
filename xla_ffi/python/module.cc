// The Python module jax_passing._native, put together from its parts.
#include <nanobind/nanobind.h>

#include <system_error>

#include "python/bindings.h"

namespace nb = nanobind;

NB_MODULE(_native, m) {
  // Sockets fail with OSError, as Python's own do.
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const std::system_error& error) {
      nb::object args = nb::make_tuple(error.code().value(), error.what());
      PyErr_SetObject(PyExc_OSError, args.ptr());
    }
  });
  passing::BindFfi(m);
  passing::BindSocket(m);
  passing::BindTransport(m);
  passing::BindMpi(m);
  passing::BindRecorder(m);
  passing::BindSwitch(m);
  passing::BindSlotPool(m);
}
