// Lets XLA's MPI door reach the server in Python (jax_passing.for_jax), and that one answer.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ffi/local_collective.h"
#include "host/transport/transport.h"
#include "mpi/late_binding.h"
#include "mpi/server.h"
#include "mpi/transfer.h"
#include "python/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace passing::mpi {
namespace {

// A strong reference, or null. Read and written with the GIL held.
PyObject* registered = nullptr;

// After Python began to end, a thread that asks for the GIL never returns.
bool IsEnding() {
#if PY_VERSION_HEX >= 0x030d0000
  return !Py_IsInitialized() || Py_IsFinalizing();
#else
  return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

// What Python holds while bytes are on their way. Dropped, it fails: nobody waits for a channel that forgot it.
class Request {
 public:
  explicit Request(std::shared_ptr<Transfer> transfer) : transfer_(std::move(transfer)) {}
  Request(Request&&) = default;
  ~Request() {
    if (transfer_) transfer_->Done(Failure{"PassingError", "A transfer was dropped before it was done."});
  }
  Transfer& transfer() { return *transfer_; }

 private:
  std::shared_ptr<Transfer> transfer_;
};

nb::object View(Transfer& transfer, int flags) {
  static char nothing;
  const std::span<uint8_t> bytes = transfer.bytes();
  char* const data = bytes.empty() ? &nothing : reinterpret_cast<char*>(bytes.data());
  PyObject* const view = PyMemoryView_FromMemory(data, static_cast<Py_ssize_t>(bytes.size()), flags);
  if (!view) throw nb::python_error();
  return nb::steal(view);
}

std::shared_ptr<Collective> CollectiveOf(nb::handle object) {
  if (nb::isinstance<std::shared_ptr<LocalCollective>>(object)) {
    return nb::cast<std::shared_ptr<LocalCollective>&>(object);
  }
  return nb::cast<std::shared_ptr<Transport>&>(object);
}

// Calls f with the GIL held; what Python raises becomes a failure.
template <typename F>
auto CallPython(F&& f) {
  try {
    return f();
  } catch (const nb::python_error& error) {
    throw Failed(nb::cast<std::string>(error.type().attr("__name__")), nb::cast<std::string>(nb::str(error.value())));
  } catch (const Failed&) {
    throw;
  } catch (const std::exception& error) {  // a cast, most likely
    throw Failed("PassingError", std::string("jax_passing.for_jax gave something else than expected: ") + error.what());
  }
}

// Calls f(server).
template <typename F>
auto WithServer(F&& f) {
  if (IsEnding()) throw Failed("ClosedError", "Python is ending, so JAX's collectives are over.");
  const nb::gil_scoped_acquire gil;
  return CallPython([&] {
    // This library may be loaded before it is imported, so nothing else of nanobind may come first.
    if (!registered) nb::module_::import_("jax_passing.for_jax.serving");
    if (!registered) throw Failed("PassingError", "jax_passing.for_jax.serving didn't call _native.serve_mpi.");
    const nb::object server = nb::borrow(registered);  // another one may be registered meanwhile
    return f(server);
  });
}

// Every call takes the GIL, so that no caller may hold a lock.
class PythonServer final : public Server {
 public:
  World Begin() override {
    return WithServer([](nb::handle server) {
      nb::object world = server.attr("begin")();
      return World{nb::cast<int32_t>(world[0]), nb::cast<int32_t>(world[1])};
    });
  }

  Group Split(int32_t color, int32_t key) override {
    return WithServer([&](nb::handle server) {
      nb::object made = server.attr("split")(color, key);
      Group group{.id = nb::cast<int64_t>(made[0]),
                  .name = nb::cast<std::string>(made[1]),
                  .hosts = nb::cast<std::vector<int32_t>>(made[2]),
                  .own_index = nb::cast<int32_t>(made[3]),
                  .collective = CollectiveOf(made[4]),
                  .host_count = nb::cast<int32_t>(made[5]),
                  .deadline_s = nb::cast<double>(made[6])};
      if (group.own_index < 0 || static_cast<size_t>(group.own_index) >= group.hosts.size()) {
        throw std::invalid_argument("own_index isn't in the group");
      }
      return group;
    });
  }

  void Send(int64_t group, int32_t own_index, int32_t to_index, int32_t tag,
            std::shared_ptr<Transfer> transfer) override {
    WithServer([&](nb::handle server) {
      nb::object view = View(*transfer, PyBUF_READ);
      server.attr("send")(group, own_index, to_index, tag, view, Request(transfer));
    });
  }

  void Receive(int64_t group, int32_t own_index, int32_t from_index, int32_t tag,
               std::shared_ptr<Transfer> transfer) override {
    WithServer([&](nb::handle server) {
      nb::object view = View(*transfer, PyBUF_WRITE);
      server.attr("receive")(group, own_index, from_index, tag, view, Request(transfer));
    });
  }

  std::optional<Failure> Stalled(int64_t group, int32_t own_index, int64_t number, const std::string& what,
                                 double waited_s) override {
    return WithServer([&](nb::handle server) -> std::optional<Failure> {
      nb::object failure = server.attr("stalled")(group, own_index, number, what, waited_s);
      if (failure.is_none()) return std::nullopt;
      return Failure{nb::cast<std::string>(failure[0]), nb::cast<std::string>(failure[1])};
    });
  }

  void End() override {
    if (IsEnding()) return;
    const nb::gil_scoped_acquire gil;
    if (registered) WithServer([](nb::handle server) { server.attr("end")(); });
  }

  void Blocking(const std::function<void()>& work) override {
    if (!IsEnding() && PyGILState_Check()) {
      const nb::gil_scoped_release release;
      return work();
    }
    work();
  }
};

}  // namespace

Server& TheServer() {
  static PythonServer& server = *new PythonServer();
  return server;
}

}  // namespace passing::mpi

namespace passing {

void BindMpi(nb::module_& m) {
  using mpi::Request;
  nb::class_<Request>(m, "MpiRequest")
      .def("done", [](Request& self) { self.transfer().Done(std::nullopt); })
      .def(
          "done",
          [](Request& self, std::string kind, std::string message) {
            self.transfer().Done(Failure{std::move(kind), std::move(message)});
          },
          "kind"_a, "message"_a);
  m.def(
      "serve_mpi",
      [](nb::object server) {
        PyObject* const before = mpi::registered;
        mpi::registered = server.is_none() ? nullptr : server.release().ptr();
        Py_XDECREF(before);
      },
      "server"_a.none());
  m.def("bind_mpi_late", &mpi::BindLate, nb::call_guard<nb::gil_scoped_release>());
  // Lets go of all that the server holds, before nanobind counts what is left.
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] { Py_CLEAR(mpi::registered); }));
}

}  // namespace passing
