#include "cuda/driver.h"

#include <gtest/gtest.h>

#include <string>

#include "../tests/xla_ffi/cuda/fake_driver.h"

namespace passing {
namespace {

TEST(DriverTest, findsAllFunctions) {
  const CudaDriver driver(FAKE_CUDA_DRIVER);
  CUdevice device = -1;
  driver.Check(driver.DeviceGet(&device, 1), "finding a GPU");
  EXPECT_EQ(device, 1);
}

TEST(DriverTest, libraryThatIsntThere_isNamed) {
  const std::string error = ErrorOf([] { CudaDriver("libnocuda.so.1"); });
  EXPECT_NE(error.find("can't be opened"), std::string::npos) << error;
  EXPECT_NE(error.find("libnocuda.so.1"), std::string::npos) << error;
}

TEST(DriverTest, functionThatIsntThere_isNamed) {
  const std::string error = ErrorOf([] { CudaDriver("libc.so.6"); });
  EXPECT_NE(error.find("has no cuInit"), std::string::npos) << error;
}

TEST(DriverTest, errorsHaveTheirNames) {
  const CudaDriver driver(FAKE_CUDA_DRIVER);
  EXPECT_EQ(ErrorOf([&] { driver.Check(0, "trying"); }), "");
  EXPECT_TRUE(ErrorOf([&] {
                driver.Check(kFakeOutOfMemory, "trying");
              }).starts_with("trying failed: CUDA_ERROR_OUT_OF_MEMORY (2 "));
  EXPECT_TRUE(ErrorOf([&] { driver.Check(12345, "trying"); }).starts_with("trying failed: unknown error (12345 "));
}

TEST(DriverTest, memoryThatIsntPinnedIsRefused) {
  const CudaDriver driver(FAKE_CUDA_DRIVER);
  const CUstream stream = Fake().make_stream(0);
  float there = 0, here = 0;
  void* pinned = nullptr;
  driver.Check(driver.HostAlloc(&pinned, 4096, 0), "pinning");
  const auto copy = [&](void* to) {
    return driver.CopyToHost(to, reinterpret_cast<CUdeviceptr>(&there), sizeof(float), stream);
  };
  EXPECT_EQ(copy(&here), kFakeInvalidValue);
  EXPECT_EQ(copy(static_cast<char*>(pinned) + 4092), 0);
  EXPECT_EQ(copy(static_cast<char*>(pinned) + 4093), kFakeInvalidValue);
  Fake().synchronize(stream);
  driver.Check(driver.HostFree(pinned), "unpinning");
  Fake().destroy_stream(stream);
}

TEST(DriverTest, driverThatDoesntStart) {
  Fake().fail("cuInit", kFakeInvalidContext, 0);
  const std::string error = ErrorOf([] { CudaDriver(FAKE_CUDA_DRIVER); });
  Fake().fail("cuInit", 0, 0);
  EXPECT_TRUE(error.starts_with("starting the CUDA driver failed: CUDA_ERROR_INVALID_CONTEXT")) << error;
}

}  // namespace
}  // namespace passing
