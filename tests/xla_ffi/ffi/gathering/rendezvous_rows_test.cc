#include <vector>

#include "../tests/xla_ffi/ffi/gathering/rendezvous_fixture.h"

namespace passing {
namespace {

class RendezvousRowsTest : public RendezvousTest {};  // a suite has one fixture, and this file one of its own

// Two members of rank 1, each of which takes its row of one element, with a replica each.
TEST_F(RendezvousRowsTest, rowsOfMembersAndOfTheirReplicas) {
  const auto site = MakeSite(7, 2, 2);
  ChangeSpec(site).leaf_elements = {4};
  ChangeSpec(site).member_count = 4;
  ChangeSpec(site).moves = Moves::kScatter;
  ChangeSpec(site).rows_inside = 2;
  ChangeSpec(site).rows_alone = true;
  Device devices[4] = {{1}, {2}, {3}, {4}};
  float* rows[4];
  for (int i = 0; i < 4; ++i) {
    Call call = devices[i].MakeCall(1, i / 2, i);
    call.outputs = {rows[i] = Ten(-1)};
    rendezvous_.Arrive(site, std::move(call));
  }
  ASSERT_EQ(collective_->count(), 1u);
  EXPECT_EQ(collective_->sums[0].rows, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(collective_->sums[0].own_rows, (std::vector<bool>{false, false, true, true}));
  collective_->Complete(0);
  for (Device& device : devices) EXPECT_EQ(device.Result(), "");
  for (const float* row : rows) {
    EXPECT_EQ(row[0], 2 * (1 + 3));
    EXPECT_EQ(row[1], -1);
  }
}

}  // namespace
}  // namespace passing
