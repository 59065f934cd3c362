#include "mpi/entrance.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

#include "mpi/failures.h"

namespace passing::mpi {
namespace {

TEST(EntranceTest, closesOnceAllAreOut) {
  Entrance entrance;
  std::optional<Entrance::Visit> visit(std::in_place, entrance);
  EXPECT_FALSE(entrance.Close(0.01));
  EXPECT_THROW(Entrance::Visit late(entrance), Failed);
  std::atomic<bool> is_out = false;
  std::thread leaves([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    is_out = true;
    visit.reset();
  });
  EXPECT_TRUE(entrance.Close(60));
  EXPECT_TRUE(is_out);
  leaves.join();
  EXPECT_TRUE(entrance.Close(0));
}

}  // namespace
}  // namespace passing::mpi
