#include <gtest/gtest.h>

#include <utility>

#include "../tests/xla_ffi/ffi/gathering/rendezvous_fixture.h"
#include "ffi/gathering/rendezvous.h"

namespace passing {
namespace {

class RendezvousOnceTest : public RendezvousTest {};  // a suite has one fixture, and this file one of its own

TEST_F(RendezvousOnceTest, aSumThatComesOnceIsStartedOnceInASession) {
  // A host may compile a program anew that other hosts go on with: that is another site of the same name.
  const auto site = MakeSite(7, 1), anew = MakeSite(7, 1);
  for (int round = 0; round < 2; ++round) {
    Device first{1};
    Call call = first.MakeCall(10 * round + 1, 0);
    call.once = true;
    rendezvous_.Arrive(site, std::move(call));
    ASSERT_EQ(collective_->count(), 1) << "in session " << round;
    collective_->Complete(0);
    EXPECT_EQ(first.Result(), "");
    EXPECT_EQ(first.value, 2);
    for (const auto& again : {site, anew}) {
      Device later{5};
      Call other = later.MakeCall(10 * round + 2, 0);
      other.once = true;
      rendezvous_.Arrive(again, std::move(other));
      EXPECT_EQ(later.Result(), "");
      EXPECT_EQ(later.value, 5);  // its own
    }
    EXPECT_EQ(collective_->count(), 1);
    if (round == 0) {
      rendezvous_.Detach();
      collective_->DropSums();
      Attach();
    }
  }
}

}  // namespace
}  // namespace passing
