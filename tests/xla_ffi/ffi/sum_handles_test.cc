#include "ffi/sum_handles.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace passing {
namespace {

constexpr int32_t kFloat = 11;

class SumHandlesTest : public testing::Test {
 protected:
  // A device's part of the handle with this number: one float.
  std::shared_ptr<HandlePart> Put(uint32_t number, int64_t device, float value = 1) {
    auto part = std::make_shared<HandlePart>(std::vector{Leaf(&value)});
    const auto failure = handles_.Put(number, device, call_, part);
    EXPECT_FALSE(failure) << failure->message;
    return part;
  }
  // "" if the device's part is there, else what went wrong.
  std::string Take(float token, int64_t device, size_t bytes = sizeof(float)) {
    const auto taken = handles_.Take(token, device, {{kFloat, bytes, nullptr}}, "here");
    const auto* failure = std::get_if<Failure>(&taken);
    EXPECT_EQ(failure ? failure->kind : "UsageError", "UsageError");
    return failure ? failure->message : "";
  }
  static HandleLeaf Leaf(const float* value) { return {kFloat, sizeof(float), value}; }

  std::shared_ptr<HandleCall> call_ = std::make_shared<HandleCall>("the sum", 2);
  SumHandles handles_;
};

TEST_F(SumHandlesTest, eachDeviceTakesItsPartOnce) {
  const uint32_t number = handles_.NewNumber();
  const float token = SumHandles::TokenOf(number);
  Put(number, 0);
  Put(number, 1);
  EXPECT_EQ(handles_.Unfinished(), (std::map<std::string, size_t>{{"the sum", 1}}));
  EXPECT_EQ(Take(token, 1), "");
  EXPECT_TRUE(Take(token, 1).starts_with("here: this handle of the sum was finished on this device already"));
  EXPECT_EQ(Take(token, 0), "");
  EXPECT_TRUE(Take(token, 0).starts_with("here: this handle was finished already"));
  EXPECT_TRUE(handles_.Unfinished().empty());
}

TEST_F(SumHandlesTest, aCopyIsKept) {
  float value = 3;
  HandlePart part({Leaf(&value), Leaf(&value)});
  value = 4;
  float first = 0, second = 0;
  part.CopyTo({&first, &second});
  EXPECT_EQ(first, 3);
  EXPECT_EQ(second, 3);
}

TEST_F(SumHandlesTest, whoWaitsIsCalledOnce) {
  const auto part = Put(handles_.NewNumber(), 0);
  int calls = 0;
  part->WhenComplete([&](const Failure* failure) { calls += failure == nullptr; });
  EXPECT_EQ(calls, 0);
  part->Complete(nullptr);
  const Failure late{"ClosedError", ""};
  part->Complete(&late);
  EXPECT_EQ(calls, 1);
  part->WhenComplete([&](const Failure* failure) { calls += failure == nullptr; });
  EXPECT_EQ(calls, 2);
}

TEST_F(SumHandlesTest, whoComesAfterAFailureHearsOfIt) {
  const auto part = Put(handles_.NewNumber(), 0);
  const Failure failure{"HostLostError", "rank 1"};
  part->Complete(&failure);
  std::string kind;
  part->WhenComplete([&](const Failure* failure) { kind = failure ? failure->kind : ""; });
  EXPECT_EQ(kind, "HostLostError");
}

TEST_F(SumHandlesTest, calculationsWithTokensGiveNone) {
  std::vector<float> tokens;
  for (int i = 0; i < 200; ++i) {
    tokens.push_back(SumHandles::TokenOf(handles_.NewNumber()));
    Put(static_cast<uint32_t>(i), 0, 0);
    call_ = std::make_shared<HandleCall>("the sum", 2);
  }
  for (const float token : tokens) {
    for (float k : {2, 3, 4, 5, 6, 7, 8, 9, 16, 24, 32, 64, 256, 1024}) {
      EXPECT_TRUE(Take(token * k, 0).find("is no handle's number") != std::string::npos) << token << " * " << k;
      EXPECT_TRUE(Take(token / k, 0).find("is no handle's number") != std::string::npos) << token << " / " << k;
    }
    EXPECT_NE(Take(token + tokens.front(), 0), "");
    EXPECT_NE(Take(-token, 0), "");
  }
  for (const float none :
       {0.f, 1e30f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    EXPECT_NE(Take(none, 0), "");
  }
}

TEST_F(SumHandlesTest, theLastTokenIsExact) {
  const float last = SumHandles::TokenOf(SumHandles::kNumbers - 1);
  EXPECT_LT(last, 1 << 24);
  EXPECT_EQ(static_cast<uint32_t>(last), 1 + SumHandles::kTokenStep * (SumHandles::kNumbers - 1));
}

TEST_F(SumHandlesTest, numbersThatAreInUseAreLeftOut) {
  const uint32_t kept = handles_.NewNumber();
  Put(kept, 0);
  for (uint32_t i = 1; i < SumHandles::kNumbers; ++i) EXPECT_NE(handles_.NewNumber(), kept);
  EXPECT_NE(handles_.NewNumber(), kept);
  EXPECT_EQ(Take(SumHandles::TokenOf(kept), 0), "");
}

TEST_F(SumHandlesTest, handlesOfAnEarlierSessionAreRecognised) {
  const uint32_t old = handles_.NewNumber();
  Put(old, 0);
  handles_.EndSession();
  EXPECT_TRUE(handles_.Unfinished().empty());
  EXPECT_NE(Take(SumHandles::TokenOf(old), 0).find("former session"), std::string::npos);
  const uint32_t next = handles_.NewNumber();
  EXPECT_NE(next, old);
  Put(next, 0);
  EXPECT_EQ(Take(SumHandles::TokenOf(next), 0), "");
  EXPECT_NE(Take(SumHandles::TokenOf(next), 0).find("finished already"), std::string::npos);
}

TEST_F(SumHandlesTest, arraysOfOtherSizesArentThoseOfTheHandle) {
  const uint32_t number = handles_.NewNumber();
  Put(number, 0);
  EXPECT_NE(Take(SumHandles::TokenOf(number), 0, 8).find("that of the sum, whose arrays have other shapes"),
            std::string::npos);
  EXPECT_EQ(Take(SumHandles::TokenOf(number), 0), "");
}

TEST_F(SumHandlesTest, aCallHasOnlySoManyUnfinishedOnADevice) {
  for (size_t i = 0; i < SumHandles::kUnfinishedMax; ++i) Put(handles_.NewNumber(), 0);
  const float value = 0;
  const auto part = std::make_shared<HandlePart>(std::vector{Leaf(&value)});
  const uint32_t number = handles_.NewNumber();
  const auto failure = handles_.Put(number, 0, call_, part);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, "UsageError");
  EXPECT_TRUE(failure->message.starts_with("the sum: 64 handles"));
  EXPECT_FALSE(handles_.Put(number, 1, call_, part));                                     // another device
  EXPECT_FALSE(handles_.Put(number, 0, std::make_shared<HandleCall>("other", 1), part));  // another call
  EXPECT_EQ(Take(SumHandles::TokenOf(0), 0), "");
  EXPECT_FALSE(handles_.Put(handles_.NewNumber(), 0, call_, part));
}

TEST_F(SumHandlesTest, allDevicesOfAnExecutionGetTheSameNumbers) {
  const auto next = [this] { return handles_.NewNumber(); };
  const auto number = [&](int32_t run_id, int64_t device) { return call_->NumberFor(run_id, device, next); };
  const uint32_t first = number(1, 0), second = number(1, 0), third = number(2, 0);  // twice in the first, then again
  EXPECT_EQ(number(1, 5), first);
  EXPECT_EQ(number(1, 5), second);
  EXPECT_EQ(number(2, 5), third);
  EXPECT_EQ((std::set{first, second, third, number(3, 0), number(4, 5)}).size(), 5);
}

TEST_F(SumHandlesTest, executionsThatOverlapOnADeviceAreToldApart) {
  const auto next = [this] { return handles_.NewNumber(); };
  const auto number = [&](int32_t run_id, int64_t device) { return call_->NumberFor(run_id, device, next); };
  // A loop in each execution comes to the call twice; the second execution starts in the midst of the first.
  const uint32_t first = number(1, 0), other_first = number(2, 0), second = number(1, 0), other_second = number(2, 0);
  EXPECT_EQ((std::set{first, second, other_first, other_second}).size(), 4);
  EXPECT_EQ(number(2, 5), other_first);
  EXPECT_EQ(number(1, 5), first);
  EXPECT_EQ(number(1, 5), second);
  EXPECT_EQ(number(2, 5), other_second);
}

TEST_F(SumHandlesTest, noValueTakesAnothersPlace) {
  const uint32_t number = handles_.NewNumber();
  Put(number, 0, 3);
  const float value = 4;
  const auto failure = handles_.Put(number, 0, call_, std::make_shared<HandlePart>(std::vector{Leaf(&value)}));
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, "UsageError");
  EXPECT_EQ(handles_.Unfinished(), (std::map<std::string, size_t>{{"the sum", 1}}));
  EXPECT_EQ(Take(SumHandles::TokenOf(number), 0), "");
}

TEST_F(SumHandlesTest, executionsThatSomeDevicesNeverComeToAreForgotten) {
  const auto next = [this] { return handles_.NewNumber(); };
  const uint32_t first = call_->NumberFor(0, 0, next);
  for (int32_t run_id = 1; run_id < 5000; ++run_id) call_->NumberFor(run_id, 0, next);
  EXPECT_NE(call_->NumberFor(0, 1, next), first);
}

}  // namespace
}  // namespace passing
