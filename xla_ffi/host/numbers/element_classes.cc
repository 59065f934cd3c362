#include "host/numbers/element_classes.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "host/numbers/fixed_point.h"
#include "host/numbers/float_mode.h"
#include "host/numbers/formats.h"
#include "host/numbers/host_elements.h"

namespace passing {
namespace {

using kernels::Bits;
using kernels::WithFormat;

// The class of one element as ClassifyElements counts it.
constexpr uint32_t kPosInfClass = 1 << 16, kNegInfClass = 1, kNaNClass = kPosInfClass | kNegInfClass;
constexpr uint32_t kCountMask = 0xFFFF;
static_assert(kMaxWorldSize <= kCountMask);

template <typename Wide>
uint32_t ClassOf(const void* elements, size_t index) {
  using Int = typename Bits<Wide>::Int;
  const auto bits = kernels::Load<Int>(elements, index);
  const Int magnitude = bits & Bits<Wide>::kMagnitude;
  if (magnitude < Bits<Wide>::kInfinity) return 0;
  if (magnitude > Bits<Wide>::kInfinity) return kNaNClass;
  return bits < 0 ? kNegInfClass : kPosInfClass;
}

// NaN without a payload, as an integer of the element's size.
template <typename Format>
using StoredBits = std::conditional_t<sizeof(typename Format::Stored) == 2, uint16_t,
                                      std::conditional_t<sizeof(typename Format::Stored) == 4, uint32_t, uint64_t>>;
template <typename Format>
constexpr uint64_t kQuietNaN = std::is_same_v<Format, kernels::Float16>    ? 0x7E00
                               : std::is_same_v<Format, kernels::BFloat16> ? 0x7FC0
                               : sizeof(typename Format::Stored) == 4      ? 0x7FC00000
                                                                           : 0x7FF8000000000000;

}  // namespace

void ClassifyElements(DType dtype, std::span<const void* const> inputs, size_t count, uint32_t* classes) {
  const DefaultFloatMode mode;
  WithFormat(dtype, [&]<typename Format>(Format) {
    if constexpr (std::is_floating_point_v<typename Format::Wide>) {
      Scratch<Format> scratch;
      const void* elements = HostElements<Format>(inputs, count, scratch);
      for (size_t i = 0; i < count; ++i) classes[i] = ClassOf<typename Format::Wide>(elements, i);
    } else {
      std::fill_n(classes, count, 0u);
    }
  });
}

const char* NameOfClass(uint32_t element_class) {
  return element_class == kNaNClass ? "NaN" : element_class == kPosInfClass ? "inf" : "-inf";
}

void MarkClasses(DType dtype, std::span<const uint32_t> classes, void* output) {
  WithFormat(dtype, [&]<typename Format>(Format) {
    if constexpr (std::is_floating_point_v<typename Format::Wide>) {
      for (size_t i = 0; i < classes.size(); ++i) {
        if (classes[i] == 0) continue;
        const int mark = classes[i] == kNaNClass ? 1 : classes[i] == kPosInfClass ? 2 : 3;
        kernels::Store(output, i, static_cast<StoredBits<Format>>(kQuietNaN<Format> + mark));
      }
    }
  });
}

void ReadClasses(DType dtype, const void* output, size_t count, uint32_t* classes) {
  WithFormat(dtype, [&]<typename Format>(Format) {
    constexpr uint32_t kClasses[] = {0, kNaNClass, kPosInfClass, kNegInfClass};
    if constexpr (std::is_floating_point_v<typename Format::Wide>) {
      for (size_t i = 0; i < count; ++i) {
        const auto mark = kernels::Load<StoredBits<Format>>(output, i) - kQuietNaN<Format>;
        classes[i] = mark >= 1 && mark <= 3 ? kClasses[mark] : 0;
      }
    } else {
      std::fill_n(classes, count, 0u);
    }
  });
}

void ApplyClasses(DType dtype, std::span<const uint32_t> classes, std::span<void* const> outputs) {
  WithFormat(dtype, [&]<typename Format>(Format) {
    if constexpr (std::is_floating_point_v<typename Format::Wide>) {
      using Limits = std::numeric_limits<typename Format::Wide>;
      for (size_t i = 0; i < classes.size(); ++i) {
        if (classes[i] == 0) continue;
        const bool positive = classes[i] / kPosInfClass, negative = classes[i] & kCountMask;
        const auto value = positive && negative ? Limits::quiet_NaN()
                           : positive           ? Limits::infinity()
                                                : -Limits::infinity();
        for (void* output : outputs) kernels::Store(output, i, Format::Narrow(value));
      }
    }
  });
}

}  // namespace passing
