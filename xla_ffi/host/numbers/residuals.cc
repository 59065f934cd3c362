// The bounds. Let q be the integer that an element x of p = 24 bits (53 of a float64) is sent as, at a scale of 2^s.
// Either x * 2^s is an integer, and q is the same; or it has a fraction, so it is below 2^p, and |q| <= 2^p. So q has p
// bits, and DecodeOwnLanes gives y = q * 2^-s without an error, unless it is infinite.
//
// x - y is a multiple of the last bit of x. If q is x * 2^s rounded to nearest, |x - y| <= |x|: so x - y has no more
// bits than x, and the subtraction is exact. If it is rounded to one of both neighbours by chance, the same holds from
// |x| = 2^-s on, as |x - y| < 2^-s. Below it q is 0, and x - y is x; or 1 in magnitude, and the difference is rounded
// to a float, which is off by 2^-25 (2^-54) units at most.
//
// On a narrow wire y is q * M / Q, rounded to float32: off by 2^-24 of it, and so is the residual. That is far less
// than what there is to make up for, a part of M / Q itself.
//
// The division by L is exact where L is a power of two and the quotient isn't denormal; else it is off by half a step
// of a float, as is the rounding to a dtype of 16 bits.
#include "host/numbers/residuals.h"

#include <bit>
#include <cassert>
#include <type_traits>

#include "host/numbers/fixed_point.h"
#include "host/numbers/float_mode.h"
#include "host/numbers/formats.h"
#include "host/numbers/host_elements.h"

namespace passing {
namespace {

template <typename Format>
void Subtract(const void* elements, const typename Format::Wide* sent, size_t count, size_t devices, void* outputs) {
  using Wide = typename Format::Wide;
  using Bits = kernels::Bits<Wide>;
  const auto share = static_cast<Wide>(devices);
  for (size_t i = 0; i < count; ++i) {
    const Wide lost = (kernels::Load<Wide>(elements, i) - sent[i]) / share;
    const typename Format::Stored stored = Format::Narrow(lost);
    const auto magnitude = std::bit_cast<typename Bits::Int>(Format::Widen(stored)) & Bits::kMagnitude;
    kernels::Store(outputs, i, magnitude < Bits::kInfinity ? stored : typename Format::Stored{0});
  }
}

}  // namespace

void WriteResiduals(const ElementFormat& format, std::span<const void* const> inputs, const uint8_t* lanes,
                    size_t count, int32_t exponent, std::span<void* const> outputs) {
  const DefaultFloatMode mode;
  kernels::WithFormat(format.dtype, [&]<typename Format>(Format) {
    using Wide = typename Format::Wide;
    using Stored = typename Format::Stored;
    if constexpr (std::is_floating_point_v<Wide> && std::is_same_v<decltype(Format::Narrow(Wide{})), Stored>) {
      Scratch<Format> scratch, sent;
      DecodeOwnLanes(format, lanes, count, exponent, sent.data());
      const void* elements = HostElements<Format>(inputs, count, scratch);
      Subtract<Format>(elements, sent.data(), count, inputs.size(), outputs[0]);
      CopyToOthers(outputs, 0, count * sizeof(Stored));
    } else {
      assert(false);
    }
  });
}

}  // namespace passing
