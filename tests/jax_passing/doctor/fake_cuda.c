// Stands in for libcuda.so.1 and libnccl.so.2 in tests of jax_passing/doctor. Environment variables say
// how it behaves: FAKE_CUDA_DEVICES and FAKE_CUDA_FAILS (name=code,...).
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kSuccess = 0, kInvalid = 1 };

static int retained;

static int setting(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text == NULL || *text == 0 ? otherwise : atoi(text);
}

static int fails(const char* function) {
  const char* found = getenv("FAKE_CUDA_FAILS");
  while (found != NULL && (found = strstr(found, function)) != NULL) {
    found += strlen(function);
    if (*found == '=') return atoi(found + 1);
  }
  return kSuccess;
}

#define MAY_FAIL()                     \
  do {                                 \
    const int code = fails(__func__);  \
    if (code != kSuccess) return code; \
  } while (0)
#define NEED(condition)                \
  do {                                 \
    if (!(condition)) return kInvalid; \
  } while (0)

int cuInit(unsigned flags) {
  MAY_FAIL();
  NEED(flags == 0);
  return kSuccess;
}

int cuDriverGetVersion(int* version) {
  *version = 12040;
  return kSuccess;
}

int cuGetErrorName(int code, const char** name) {
  *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_SOMETHING";
  return kSuccess;
}

int cuDeviceGetCount(int* count) {
  *count = setting("FAKE_CUDA_DEVICES", 1);
  return kSuccess;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal + 10;  // a handle isn't the ordinal
  return kSuccess;
}

int cuDeviceGetName(char* name, int size, int device) {
  snprintf(name, size, "Fake %d", device - 10);
  return kSuccess;
}

int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  NEED(device >= 10);
  *bytes = (size_t)80 << 30;
  return kSuccess;
}

int cuDeviceGetPCIBusId(char* text, int size, int device) {
  snprintf(text, size, "0000:%X:00.0", 0x3d + 0x10 * (device - 10));
  return kSuccess;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  MAY_FAIL();
  NEED(device >= 10);
  ++retained;
  *context = &retained;
  return kSuccess;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  NEED(device >= 10);
  --retained;
  return kSuccess;
}

int cuCtxSetCurrent(void* context) {
  NEED(context == NULL || context == &retained);
  return kSuccess;
}

int cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) {
  MAY_FAIL();
  NEED(retained == 1 && flags == 3);
  *memory = calloc(1, bytes);
  return kSuccess;
}

int cuMemFreeHost(void* memory) {
  free(memory);
  return kSuccess;
}

int cuMemAlloc_v2(uint64_t* pointer, size_t bytes) {
  MAY_FAIL();
  *pointer = (uint64_t)(uintptr_t)malloc(bytes);
  return kSuccess;
}

int cuMemFree_v2(uint64_t pointer) {
  free((void*)(uintptr_t)pointer);
  return kSuccess;
}

int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
  MAY_FAIL();
  memcpy((void*)(uintptr_t)to, from, bytes);
  return kSuccess;
}

int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
  memcpy(to, (void*)(uintptr_t)from, bytes);
  return kSuccess;
}

int ncclGetVersion(int* version) {
  MAY_FAIL();
  *version = setting("FAKE_NCCL_VERSION", 22703);
  return kSuccess;
}

int fake_contexts(void) { return retained; }
