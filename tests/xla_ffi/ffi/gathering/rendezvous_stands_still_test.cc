#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "../tests/xla_ffi/ffi/gathering/rendezvous_fixture.h"
#include "../tests/xla_ffi/net/stand_still.h"

namespace passing {
namespace {

class RendezvousStandsStillTest : public RendezvousTest {};

// As when a job is suspended while one of the host's devices is ahead of the other.
TEST_F(RendezvousStandsStillTest, timeInWhichTheProcessStoodStillIsntCountedAgainstADevice) {
  rendezvous_.Detach();
  Attach(3);
  const auto site = MakeSite(7, 2);
  Device a{1}, b{2};
  rendezvous_.Arrive(site, a.MakeCall(10, 1));
  StandStill(4'000);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // the watch looks every 200 ms
  EXPECT_EQ(session_failure(), "");
  rendezvous_.Arrive(site, b.MakeCall(10, 0));
  EXPECT_EQ(collective_->count(), 1);
}

}  // namespace
}  // namespace passing
