#include "ffi/attachment.h"

#include <gtest/gtest.h>

#include <string>

#include "../tests/xla_ffi/ffi/gathering/rendezvous_fixture.h"

namespace passing {
namespace {

using AttachmentTest = RendezvousTest;

TEST_F(AttachmentTest, flatSumsHaveACollectiveOfTheirOwn) {
  const auto site = MakeSite(7, 1);
  ChangeSpec(site).flat = true;
  Device refused{1}, summed{2};
  rendezvous_.Arrive(site, refused.MakeCall(10, 0));
  EXPECT_EQ(refused.Result().substr(0, 11), "ConfigError");
  EXPECT_EQ(session_failure(), "");
  rendezvous_.Detach();
  const auto flat = MakeCollective();
  Attach(60, flat);
  rendezvous_.Arrive(site, summed.MakeCall(11, 0));
  ASSERT_EQ(flat->count(), 1);
  EXPECT_EQ(collective_->count(), 0);
  flat->Complete(0);
  EXPECT_EQ(summed.Result(), "");
}

TEST_F(AttachmentTest, rankAndWorldSizeAreTheSessions) {
  ASSERT_TRUE(rendezvous_.attached());
  EXPECT_EQ(rendezvous_.attached()->rank, 1);
  EXPECT_EQ(rendezvous_.attached()->world_size, 2);
  rendezvous_.Detach();
  EXPECT_FALSE(rendezvous_.attached());
}

TEST_F(AttachmentTest, withoutSession) {
  rendezvous_.Detach();
  Device a{1};
  rendezvous_.Arrive(MakeSite(7, 1), a.MakeCall(10, 0));
  EXPECT_TRUE(a.Result().starts_with("UsageError"));
}

TEST_F(AttachmentTest, anotherWorldSize) {
  const auto site = MakeSite(7, 1);
  ChangeSpec(site).world_size = 3;
  Device a{1};
  rendezvous_.Arrive(site, a.MakeCall(10, 0));
  EXPECT_NE(a.Result().find("ConfigError: train.py:41 was compiled for 3 ranks, but the session has 2"),
            std::string::npos);
  EXPECT_EQ(session_failure(), "");
}

TEST_F(AttachmentTest, aWireWithTooFewBits) {
  for (const WireDtype wire_dtype : {WireDtype::kInt4, WireDtype::kFull}) {
    const auto site = MakeSite(wire_dtype == WireDtype::kFull ? 7 : 8, 1);
    ChangeSpec(site).wire_dtype = wire_dtype;
    ChangeSpec(site).world_size = kAnyWorldSize;
    collective_->ranks = 8;
    Device a{1};
    rendezvous_.Arrive(site, a.MakeCall(10, 0));
    if (wire_dtype == WireDtype::kFull) {
      collective_->Complete(0);
      EXPECT_EQ(a.Result(), "");
    } else {
      EXPECT_TRUE(a.Result().starts_with("ConfigError: train.py:41: with wire_dtype='int4' at most 7 ranks"))
          << a.Result();
    }
  }
  EXPECT_EQ(session_failure(), "");
}

TEST_F(AttachmentTest, anyWorldSize) {
  const auto site = MakeSite(7, 1);
  ChangeSpec(site).world_size = kAnyWorldSize;
  Device a{1};
  rendezvous_.Arrive(site, a.MakeCall(10, 0));
  collective_->Complete(0);
  EXPECT_EQ(a.Result(), "");
}

TEST_F(AttachmentTest, detachFailsOpenGatherings_andRefusesTheirExecutions) {
  const auto site = MakeSite(7, 2);
  Device a{1}, b{2}, c{3}, d{4};
  rendezvous_.Arrive(site, a.MakeCall(10, 0));
  rendezvous_.Detach();
  EXPECT_TRUE(a.Result().starts_with("ClosedError"));
  Attach();
  rendezvous_.Arrive(site, b.MakeCall(10, 1));  // the straggler of the execution that died
  EXPECT_TRUE(b.Result().starts_with("ClosedError"));
  rendezvous_.Arrive(site, c.MakeCall(11, 0));
  rendezvous_.Arrive(site, d.MakeCall(11, 1));
  ASSERT_EQ(collective_->count(), 1);
  EXPECT_EQ(collective_->sums[0].key, (SumKey{7, 0, 0}));  // counted from attach
}

TEST_F(AttachmentTest, executionSeenBetweenSessionsIsRefusedByTheNext) {
  rendezvous_.Detach();
  const auto site = MakeSite(7, 2);
  Device a{1}, b{2};
  rendezvous_.Arrive(site, a.MakeCall(10, 0));
  EXPECT_TRUE(a.Result().starts_with("UsageError"));
  Attach();
  rendezvous_.Arrive(site, b.MakeCall(10, 1));
  EXPECT_TRUE(b.Result().starts_with("ClosedError"));
}

TEST_F(AttachmentTest, oneSessionAtATime) { EXPECT_FALSE(rendezvous_.Attach({})); }

}  // namespace
}  // namespace passing
