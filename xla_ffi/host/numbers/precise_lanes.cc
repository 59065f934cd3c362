#include "host/numbers/precise_lanes.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "host/numbers/fixed_point.h"
#include "host/numbers/float_mode.h"
#include "host/numbers/formats.h"
#include "host/numbers/host_elements.h"
#include "wire/header.h"
#include "wire/lanes.h"

namespace passing {
namespace {

__extension__ typedef __int128 Int128;

constexpr uint64_t kSign = uint64_t{1} << 63, kInfinity = uint64_t{0x7FF} << 52;

// The s of the bounds. The agreed exponent comes from the network: whatever it says, the arithmetic stays defined.
int ShiftOf(DType dtype, int32_t exponent, int digit_bits) {
  const bool is_double = dtype == DType::kFloat64;
  const int agreed = std::clamp(exponent, is_double ? -1074 : -149, is_double ? 1024 : 128);
  const auto lower_digits = static_cast<int>(PreciseLanesOf(dtype)) - 1;
  return std::min(digit_bits - 1 - agreed + lower_digits * digit_bits, is_double ? 1074 : 149);
}

int DigitBits(uint32_t headroom_bits) { return 31 - static_cast<int>(headroom_bits); }

int Width(uint64_t number) { return static_cast<int>(std::bit_width(number)); }

// A finite number as magnitude * 2^exponent.
struct Binary {
  uint64_t magnitude;
  int exponent;
};
Binary BinaryOf(uint64_t bits) {
  const auto field = static_cast<int>(bits >> 52 & 0x7FF);
  const uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
  return {field == 0 ? fraction : fraction | uint64_t{1} << 52, std::max(field, 1) - 1075};
}

// x * 2^shift, rounded to nearest, ties to even. Of what no rank may send, as |x| is too large, it is any integer.
Int128 Quantised(double x, int shift) {
  const auto bits = std::bit_cast<uint64_t>(x);
  const Binary binary = BinaryOf(bits);
  const int places = binary.exponent + shift;
  Int128 q = 0;
  if (places >= 0) {
    q = Int128{binary.magnitude} << std::min(places, 64);
  } else if (places >= -60) {  // else less than half of the last bit
    const uint64_t floor = binary.magnitude >> -places;
    const uint64_t rest = binary.magnitude - (floor << -places), half = uint64_t{1} << (-places - 1);
    q = floor + (rest > half || (rest == half && floor % 2 != 0));
  }
  return bits & kSign ? -q : q;
}

// An integer as a float that rounds to any format of at most 15 bits as the integer itself would, as ToOddFloat.
float OddFloat(int64_t sum) {
  const uint64_t magnitude = sum < 0 ? -static_cast<uint64_t>(sum) : static_cast<uint64_t>(sum);
  const int dropped = std::max(Width(magnitude) - 24, 0);
  const uint64_t kept = magnitude >> dropped << dropped;
  const auto odd = static_cast<float>(kept | uint64_t{kept != magnitude} << dropped);  // exact: 24 bits
  return sum < 0 ? -odd : odd;
}

// Two lanes, so up to 61 bits.
template <typename Format>
void DecodePairs(const uint8_t* lanes, size_t count, int shift, int digit_bits, void* out) {
  const double scale = kernels::PowerOfTwo(-shift);  // shift is from -90 to 149
  for (size_t i = 0; i < count; ++i) {
    const int64_t high = static_cast<int32_t>(wire::LoadLane(lanes, 2 * i));
    const int64_t sum = high * (int64_t{1} << digit_bits) + static_cast<int32_t>(wire::LoadLane(lanes, 2 * i + 1));
    const float rounded = kernels::kNarrows<Format> ? OddFloat(sum) : static_cast<float>(sum);  // rounds
    kernels::Store(out, i, Format::Narrow(static_cast<float>(double{rounded} * scale)));
  }
}

}  // namespace

int32_t PreciseExponent(std::span<const double> elements) {
  uint64_t largest = 0, any = 0;
  for (const double x : elements) {
    const auto bits = std::bit_cast<uint64_t>(x);
    any |= bits;
    if ((bits & ~kSign) < kInfinity) largest = std::max(largest, bits & ~kSign);
  }
  if (largest == 0) return any == 0 ? kNoExponent : kMinExponent;
  const Binary binary = BinaryOf(largest);
  return binary.exponent + Width(binary.magnitude);
}

// An element is an integer in units of 2^-shift, and below 2^exponent. -0 isn't exact: an integer doesn't keep its
// sign.
bool ArePreciselyExact(DType dtype, uint32_t headroom_bits, std::span<const double> elements, int32_t exponent) {
  const int shift = ShiftOf(dtype, exponent, DigitBits(headroom_bits));
  for (const double x : elements) {
    const auto bits = std::bit_cast<uint64_t>(x);
    if (bits == 0) continue;
    if (bits == kSign || (bits & ~kSign) >= kInfinity) return false;
    const Binary binary = BinaryOf(bits);
    if (std::countr_zero(binary.magnitude) + binary.exponent + shift < 0) return false;
    if (Width(binary.magnitude) + binary.exponent > exponent) return false;
  }
  return true;
}

uint8_t EncodePrecise(DType dtype, uint32_t headroom_bits, std::span<const double> elements, int32_t exponent,
                      uint8_t* lanes) {
  const int digit_bits = DigitBits(headroom_bits), shift = ShiftOf(dtype, exponent, digit_bits);
  const uint32_t lane_count = PreciseLanesOf(dtype);
  const int64_t half = int64_t{1} << (digit_bits - 1);
  uint8_t flags = 0;
  for (size_t i = 0; i < elements.size(); ++i) {
    const auto bits = std::bit_cast<uint64_t>(elements[i]);
    Int128 q = 0;
    if ((bits & ~kSign) < kInfinity) {
      q = Quantised(elements[i], shift);
    } else {
      flags |= (bits & ~kSign) > kInfinity ? wire::kFlagNaN : bits & kSign ? wire::kFlagNegInf : wire::kFlagPosInf;
    }
    for (uint32_t digit = lane_count - 1; digit > 0; --digit) {
      const Int128 carried = (q + half) >> digit_bits;
      wire::StoreLane(lanes, lane_count * i + digit, static_cast<uint32_t>(q - (carried << digit_bits)));
      q = carried;
    }
    wire::StoreLane(lanes, lane_count * i, static_cast<uint32_t>(q));
  }
  return flags;
}

void DecodePrecise(DType dtype, uint32_t headroom_bits, const uint8_t* lanes, size_t count, int32_t exponent,
                   void* out) {
  const int digit_bits = DigitBits(headroom_bits), shift = ShiftOf(dtype, exponent, digit_bits);
  kernels::WithFormat(dtype, [&]<typename Format>(Format) {
    if constexpr (std::is_same_v<typename Format::Wide, float>) {
      DecodePairs<Format>(lanes, count, shift, digit_bits, out);
    } else if constexpr (std::is_same_v<Format, kernels::Float64>) {
      // Two factors, since 2^-shift may be no normal number.
      const double a = kernels::PowerOfTwo(-shift / 2), b = kernels::PowerOfTwo(-shift - -shift / 2);
      for (size_t i = 0; i < count; ++i) {
        Int128 sum = 0;
        for (size_t digit = 0; digit < 3; ++digit) {
          sum = (sum << digit_bits) + static_cast<int32_t>(wire::LoadLane(lanes, 3 * i + digit));
        }
        kernels::Store(out, i, static_cast<double>(sum) * a * b);  // the conversion rounds
      }
    }
  });
}

void AppendHostElements(DType dtype, std::span<const void* const> inputs, size_t count, std::vector<double>& elements) {
  const DefaultFloatMode mode;
  kernels::WithFormat(dtype, [&]<typename Format>(Format) {
    if constexpr (std::is_floating_point_v<typename Format::Wide>) {
      Scratch<Format> scratch;
      const void* wide = HostElements<Format>(inputs, count, scratch);
      for (size_t i = 0; i < count; ++i) {
        elements.push_back(kernels::Load<typename Format::Wide>(wide, i));
      }
    }
  });
}

}  // namespace passing
