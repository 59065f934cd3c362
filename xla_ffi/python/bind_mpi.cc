// Lets XLA's MPI interface reach the server in Python (jax_passing.for_jax), and that one answer.
#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ffi/local_collective.h"
#include "host/transport/striped_transport.h"
#include "mpi/entrance.h"
#include "mpi/failures.h"
#include "mpi/jaxlib/late_binding.h"
#include "mpi/jaxlib/watch_xla.h"
#include "mpi/message.h"
#include "mpi/process.h"
#include "mpi/server.h"
#include "python/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace passing::mpi {
namespace {

// A strong reference, or null. Read and written with the GIL held.
PyObject* registered = nullptr;

// Never destroyed: XLA's threads may come while the process ends.
Entrance& TheEntrance() {
  static Entrance& entrance = *new Entrance();
  return entrance;
}

// Python's stable ABI, for which our wheel is built, lacks these two functions, but every Python has them.
using Question = int (*)();
Question FunctionOfPython(const char* name, const char* older_name) {
  void* found = dlsym(RTLD_DEFAULT, name);
  if (found == nullptr) found = dlsym(RTLD_DEFAULT, older_name);
  if (found == nullptr) throw std::runtime_error("this Python has no function " + std::string(name));
  return reinterpret_cast<Question>(found);
}

// After Python began to end, a thread that asks for the GIL never returns.
bool IsEnding() {
  static const Question is_finalizing = FunctionOfPython("Py_IsFinalizing", "_Py_IsFinalizing");
  return !Py_IsInitialized() || is_finalizing() != 0;
}

bool HasGil() {
  static const Question check = FunctionOfPython("PyGILState_Check", "PyGILState_Check");
  return check() != 0;
}

// What Python holds while bytes are on their way. Dropped, it fails: nobody waits for a channel that forgot it.
class Request {
 public:
  explicit Request(std::shared_ptr<Message> message) : message_(std::move(message)) {}
  Request(Request&&) = default;
  ~Request() {
    if (message_) message_->Drop();
  }
  Message& message() { return *message_; }

 private:
  std::shared_ptr<Message> message_;
};

nb::object View(Message& message, int flags) {
  static char nothing;
  const std::span<uint8_t> bytes = message.bytes();
  char* const data = bytes.empty() ? &nothing : reinterpret_cast<char*>(bytes.data());
  PyObject* const view = PyMemoryView_FromMemory(data, static_cast<Py_ssize_t>(bytes.size()), flags);
  if (!view) throw nb::python_error();
  return nb::steal(view);
}

std::shared_ptr<Collective> CollectiveOf(nb::handle object) {
  if (nb::isinstance<std::shared_ptr<LocalCollective>>(object)) {
    return nb::cast<std::shared_ptr<LocalCollective>&>(object);
  }
  return nb::cast<std::shared_ptr<StripedTransport>&>(object);
}

// Empty if there is none: an exception may fail to tell its text, and that may be no text for others.
std::string TextOf(nb::handle object) {
  const nb::object text = nb::steal(PyObject_Str(object.ptr()));
  const nb::object bytes =
      nb::steal(text.is_valid() ? PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace") : nullptr);
  PyErr_Clear();
  if (!bytes.is_valid()) return "";
  return {PyBytes_AsString(bytes.ptr()), static_cast<size_t>(PyBytes_Size(bytes.ptr()))};
}

// Is this type one of jax_passing.errors, whose names a switch and other hosts know?
bool IsOurs(nb::handle type) {
  const nb::object name = nb::steal(PyUnicode_FromString("jax_passing.errors"));
  const nb::object errors = nb::steal(name.is_valid() ? PyImport_GetModule(name.ptr()) : nullptr);
  const nb::object base = nb::steal(errors.is_valid() ? PyObject_GetAttrString(errors.ptr(), "PassingError") : nullptr);
  const bool is_ours = base.is_valid() && PyObject_IsSubclass(type.ptr(), base.ptr()) == 1;
  PyErr_Clear();
  return is_ours;
}

// XLA's thread may be Python's main thread, and then a signal's handler, as that of Ctrl-C, raises here what is meant
// for the program.
void RaiseInProgram(nb::handle exception) {
  const auto raise = [](void* kept) {
    const nb::object raised = nb::steal(static_cast<PyObject*>(kept));
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
    return -1;
  };
  if (Py_AddPendingCall(raise, exception.inc_ref().ptr()) != 0) exception.dec_ref();
}

Failure FailureOf(const nb::python_error& error) {
  const auto name = nb::cast<std::string>(error.type().attr("__name__"));
  const std::string text = TextOf(error.value());
  if (IsOurs(error.type())) return {name, text.empty() ? "there is no more to say" : text};
  return {"PassingError", text.empty() ? name : name + ": " + text};
}

// Calls f with the GIL held; what Python raises becomes a failure.
template <typename F>
auto CallPython(F&& f) {
  try {
    return f();
  } catch (const nb::python_error& error) {
    if (PyErr_GivenExceptionMatches(error.type().ptr(), PyExc_Exception) == 0) RaiseInProgram(error.value());
    throw Failed(FailureOf(error));
  } catch (const Failed&) {
    throw;
  } catch (const std::exception& error) {  // a cast, most likely
    throw Failed("PassingError", std::string("jax_passing.for_jax gave something else than expected: ") + error.what());
  }
}

// Calls f(server).
template <typename F>
auto WithServer(F&& f) {
  const Entrance::Visit visit(TheEntrance());
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
      nb::object made = server.attr("split")(color, key, nb::tuple(nb::cast(CliqueOfThread(color))));
      return Group{.id = nb::cast<int64_t>(made.attr("id")),
                   .name = nb::cast<std::string>(made.attr("name")),
                   .hosts = nb::cast<std::vector<int32_t>>(made.attr("hosts")),
                   .collective = CollectiveOf(made.attr("collective")),
                   .deadline_s = nb::cast<double>(made.attr("deadline_s"))};
    });
  }

  void Send(int64_t group, int32_t own_index, int32_t to_index, int32_t tag,
            std::shared_ptr<Message> message) override {
    WithServer([&](nb::handle server) {
      nb::object view = View(*message, PyBUF_READ);
      server.attr("send")(group, own_index, to_index, tag, view, Request(message));
    });
  }

  void Receive(int64_t group, int32_t own_index, int32_t from_index, int32_t tag,
               std::shared_ptr<Message> message) override {
    WithServer([&](nb::handle server) {
      nb::object view = View(*message, PyBUF_WRITE);
      server.attr("receive")(group, own_index, from_index, tag, view, Request(message));
    });
  }

  uint64_t MovedBytes() override {
    return WithServer([](nb::handle server) { return nb::cast<uint64_t>(server.attr("moved_bytes")()); });
  }

  std::optional<Failure> Stalled(int64_t group, int32_t own_index, int64_t number, const std::string& what,
                                 double still_s) override {
    return WithServer([&](nb::handle server) -> std::optional<Failure> {
      nb::object failure = server.attr("stalled")(group, own_index, number, what, still_s);
      if (failure.is_none()) return std::nullopt;
      return Failure{nb::cast<std::string>(failure[0]), nb::cast<std::string>(failure[1])};
    });
  }

  void End() override {
    WithServer([](nb::handle server) { server.attr("end")(); });
  }

  void Blocking(const std::function<void()>& work) override {
    if (!IsEnding() && HasGil()) {
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
namespace {

// Each visit has a deadline of its own; this is for those whose settings have it far away.
constexpr double kLeaveTimeout_s = 60;

}  // namespace

void BindMpi(nb::module_& m) {
  using mpi::Request;
  nb::class_<Request>(m, "MpiRequest")
      .def("done", [](Request& self) { self.message().Done(std::nullopt); })
      .def(
          "done",
          [](Request& self, std::string kind, std::string message) {
            self.message().Done(Failure{std::move(kind), std::move(message)});
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
  m.def(
      "watch_xla", [] { return mpi::WatchXla(mpi::TheProcess()); }, nb::call_guard<nb::gil_scoped_release>());
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([home = getpid()] {
    if (getpid() != home) return;  // a child that was forked has none of the threads
    {
      const nb::gil_scoped_release release;
      mpi::TheEntrance().Close(kLeaveTimeout_s);
    }
    if (PyObject* const server = std::exchange(mpi::registered, nullptr)) {
      const nb::object last = nb::steal(server);  // nanobind counts what is left when all it holds is gone
      last.attr("end")();                         // again: whoever was in may have opened a session
    }
  }));
}

}  // namespace passing
