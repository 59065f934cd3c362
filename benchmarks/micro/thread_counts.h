// The kernel counts these of a thread: processor time, sleeps, preemptions and calls of futex.
#ifndef BENCHMARKS_MICRO_THREAD_COUNTS_H_
#define BENCHMARKS_MICRO_THREAD_COUNTS_H_

#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace passing {

// Counts a thread's calls of futex, if this process may.
class FutexCalls {
 public:
  explicit FutexCalls(pid_t thread) {
    uint64_t id = 0;
    for (const char* root : {"/sys/kernel/tracing", "/sys/kernel/debug/tracing"}) {
      if (std::ifstream(std::string(root) + "/events/syscalls/sys_enter_futex/id") >> id) break;
    }
    if (id == 0) return;
    perf_event_attr what{};
    what.type = PERF_TYPE_TRACEPOINT;
    what.size = sizeof what;
    what.config = id;
    fd_ = static_cast<int>(syscall(SYS_perf_event_open, &what, thread, -1, -1, 0));
  }
  ~FutexCalls() {
    if (fd_ >= 0) close(fd_);
  }
  FutexCalls(const FutexCalls&) = delete;
  FutexCalls& operator=(const FutexCalls&) = delete;
  // -1 if it may not.
  int64_t Count() const {
    int64_t count = 0;
    return fd_ >= 0 && read(fd_, &count, sizeof count) == sizeof count ? count : -1;
  }

 private:
  int fd_ = -1;
};

struct ThreadCounts {
  double cpu_s = 0;
  uint64_t waits = 0;        // voluntary switches
  uint64_t preemptions = 0;  // involuntary ones
  int64_t futexes = 0;       // calls; -1 if nobody may know
};

inline ThreadCounts CountsOf(pid_t thread, const FutexCalls& futexes) {
  const std::string task = "/proc/self/task/" + std::to_string(thread);
  ThreadCounts counts{.futexes = futexes.Count()};
  uint64_t ns = 0;
  std::ifstream(task + "/schedstat") >> ns;
  counts.cpu_s = static_cast<double>(ns) / 1e9;
  std::ifstream status(task + "/status");
  for (std::string name; status >> name;) {
    if (name == "voluntary_ctxt_switches:") status >> counts.waits;
    if (name == "nonvoluntary_ctxt_switches:") status >> counts.preemptions;
  }
  return counts;
}

// The ids of this process's threads of that name, in the order in which they were started.
inline std::vector<pid_t> ThreadsNamed(const std::string& wanted) {
  std::vector<pid_t> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name == wanted) found.push_back(static_cast<pid_t>(std::stoi(task.path().filename())));
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace passing

#endif  // BENCHMARKS_MICRO_THREAD_COUNTS_H_
