// A test stands still as by SIGSTOP: all threads of this process, for some milliseconds.
#ifndef TESTS_XLA_FFI_NET_STAND_STILL_H_
#define TESTS_XLA_FFI_NET_STAND_STILL_H_

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace passing {

inline void StandStill(int milliseconds) {
  const pid_t own = getpid();
  const pid_t child = fork();
  if (child == 0) {  // only what is safe in a child of a process with threads
    kill(own, SIGSTOP);
    usleep(static_cast<useconds_t>(milliseconds) * 1'000);
    kill(own, SIGCONT);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
}

}  // namespace passing

#endif  // TESTS_XLA_FFI_NET_STAND_STILL_H_
