// Python reads here the sums that this process remembers, and hears the signal by which somebody asks for them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <optional>

#include "ffi/flight_recorder.h"
#include "ffi/gathering/rendezvous.h"
#include "net/clock.h"
#include "python/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace passing {
namespace {

std::atomic<int> signalled = -1;  // the descriptor that a signal makes readable

// Python runs its own handlers on the main thread, which may be inside of XLA for as long as a sum waits.
void OnSignal(int) {
  const int saved = errno;
  const int descriptor = signalled.load();
  const uint64_t one = 1;
  if (descriptor >= 0) static_cast<void>(!write(descriptor, &one, sizeof(one)));
  errno = saved;
}

std::optional<int> WatchSignal(int number) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  struct sigaction now {};
  if (sigaction(number, nullptr, &now) != 0) return std::nullopt;
  const bool is_ours = (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == OnSignal;
  if (!is_ours && ((now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != SIG_DFL)) return std::nullopt;
  if (signalled < 0) signalled = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (signalled < 0) return std::nullopt;
  if (!is_ours) {
    struct sigaction ours {};
    ours.sa_handler = OnSignal;
    ours.sa_flags = SA_RESTART;
    sigemptyset(&ours.sa_mask);
    if (sigaction(number, &ours, nullptr) != 0) return std::nullopt;
  }
  return signalled.load();
}

}  // namespace

void BindRecorder(nb::module_& m) {
  nb::class_<RecordedSum>(m, "RecordedSum")
      .def_ro("number", &RecordedSum::number)
      .def_prop_ro("site", [](const RecordedSum& self) { return self.key.site; })
      .def_prop_ro("execution", [](const RecordedSum& self) { return self.key.execution; })
      .def_prop_ro("step", [](const RecordedSum& self) { return self.key.step; })
      .def_prop_ro("site_name", [](const RecordedSum& self) { return self.site_name(); })
      .def_prop_ro("state", [](const RecordedSum& self) { return NameOf(self.state); })
      .def_prop_ro("dtype", [](const RecordedSum& self) { return NameOf(self.dtype); })
      .def_prop_ro("op", [](const RecordedSum& self) { return self.op == Op::kMax ? "max" : "sum"; })
      .def_ro("bytes", &RecordedSum::bytes)
      .def_ro("elements", &RecordedSum::elements)
      .def_ro("world_size", &RecordedSum::world_size)
      .def_ro("scheduled_us", &RecordedSum::scheduled_us)
      .def_ro("started_us", &RecordedSum::started_us)
      .def_ro("ended_us", &RecordedSum::ended_us);
  nb::class_<Rendezvous::OpenGathering>(m, "OpenGathering")
      .def_ro("site_name", &Rendezvous::OpenGathering::site_name)
      .def_ro("calls", &Rendezvous::OpenGathering::calls)
      .def_ro("call_count", &Rendezvous::OpenGathering::call_count)
      .def_ro("opened_us", &Rendezvous::OpenGathering::opened_us);
  m.def("recorded_sums", [] { return FlightRecorder::OfProcess().Sums(); });
  m.def("open_gatherings", [] { return Rendezvous::Get().open(); });
  m.def("monotonic_us", &MonotonicUs);
  m.def("watch_signal", &WatchSignal, "number"_a);
  m.def("unwatch_signals", [] { signalled = -1; });
}

}  // namespace passing
