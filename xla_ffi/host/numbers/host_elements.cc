#include "host/numbers/host_elements.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdint>
#include <cstring>
#include <vector>

#include "host/numbers/float_mode.h"

namespace passing {
namespace kernels {

// The same element of two devices; rounds where Wide is a float. A float to which +0 is added keeps its bits, those of
// -0 and of a NaN that signals among them, as elements are moved by adding zeros.
template <typename Format>
inline typename Format::Wide Combined(typename Format::Wide a, typename Format::Wide b) {
  using Wide = typename Format::Wide;
  if constexpr (std::is_same_v<Format, Maximum32>) {
    return std::max(a, b);
  } else if constexpr (std::is_floating_point_v<Wide>) {
    using Int = typename Bits<Wide>::Int;
    const auto a_bits = std::bit_cast<Int>(a), b_bits = std::bit_cast<Int>(b);
    const Int sum = Select(a_bits == 0, b_bits, std::bit_cast<Int>(a + b));
    return std::bit_cast<Wide>(Select(b_bits == 0, a_bits, sum));
  } else {
    return a + b;
  }
}

template <typename Format>
PASSING_CLONES void CombinePair(const void* a, const void* b, size_t count,
                                typename Format::Wide* __restrict combined) {
  using Stored = typename Format::Stored;
  for (size_t i = 0; i < count; ++i) {
    combined[i] = Combined<Format>(Format::Widen(Load<Stored>(a, i)), Format::Widen(Load<Stored>(b, i)));
  }
}

template <typename Format>
PASSING_CLONES void CombineTo(const void* a, size_t count, typename Format::Wide* __restrict combined) {
  for (size_t i = 0; i < count; ++i) {
    combined[i] = Combined<Format>(combined[i], Format::Widen(Load<typename Format::Stored>(a, i)));
  }
}

template <typename Format>
PASSING_CLONES void Widen(const void* a, size_t count, typename Format::Wide* __restrict out) {
  for (size_t i = 0; i < count; ++i) out[i] = Format::Widen(Load<typename Format::Stored>(a, i));
}

template <typename Format>
PASSING_CLONES void Narrow(const typename Format::Wide* __restrict wide, size_t count, void* __restrict out) {
  for (size_t i = 0; i < count; ++i) Store(out, i, Format::Narrow(wide[i]));
}

}  // namespace kernels

template <typename Format>
void CombineElements(std::span<const void* const> inputs, size_t count, Scratch<Format>& scratch) {
  assert(!inputs.empty() && count <= kMaxBlockElements);
  if (inputs.size() == 1) return kernels::Widen<Format>(inputs[0], count, scratch.data());
  kernels::CombinePair<Format>(inputs[0], inputs[1], count, scratch.data());
  for (const void* input : inputs.subspan(2)) kernels::CombineTo<Format>(input, count, scratch.data());
}

template void CombineElements<kernels::Integer<uint8_t>>(std::span<const void* const>, size_t,
                                                         Scratch<kernels::Integer<uint8_t>>&);
template void CombineElements<kernels::Integer<uint16_t>>(std::span<const void* const>, size_t,
                                                          Scratch<kernels::Integer<uint16_t>>&);
template void CombineElements<kernels::Integer<uint32_t>>(std::span<const void* const>, size_t,
                                                          Scratch<kernels::Integer<uint32_t>>&);
template void CombineElements<kernels::Integer<uint64_t>>(std::span<const void* const>, size_t,
                                                          Scratch<kernels::Integer<uint64_t>>&);
template void CombineElements<kernels::Maximum32>(std::span<const void* const>, size_t, Scratch<kernels::Maximum32>&);
template void CombineElements<kernels::Float16>(std::span<const void* const>, size_t, Scratch<kernels::Float16>&);
template void CombineElements<kernels::BFloat16>(std::span<const void* const>, size_t, Scratch<kernels::BFloat16>&);
template void CombineElements<kernels::Float32>(std::span<const void* const>, size_t, Scratch<kernels::Float32>&);
template void CombineElements<kernels::Float64>(std::span<const void* const>, size_t, Scratch<kernels::Float64>&);
template void CombineElements<kernels::Wider<kernels::Float16>>(std::span<const void* const>, size_t,
                                                                Scratch<kernels::Wider<kernels::Float16>>&);
template void CombineElements<kernels::Wider<kernels::BFloat16>>(std::span<const void* const>, size_t,
                                                                 Scratch<kernels::Wider<kernels::BFloat16>>&);

void CopyToOthers(std::span<void* const> outputs, size_t offset, size_t bytes) {
  const auto* first = static_cast<const uint8_t*>(outputs[0]) + offset;
  for (void* other : outputs.subspan(1)) std::memcpy(static_cast<uint8_t*>(other) + offset, first, bytes);
}

namespace {

// A tile at a time: all inputs are read before an output, which may be one of them, is written.
template <typename Format>
void JoinLocal(std::span<const void* const> inputs, size_t count, std::span<void* const> outputs) {
  constexpr size_t kBytes = sizeof(typename Format::Stored);
  Scratch<Format> scratch;
  std::vector<const void*> tile(inputs.size());
  for (size_t first = 0; first < count; first += kMaxBlockElements) {
    const size_t tile_count = std::min<size_t>(kMaxBlockElements, count - first);
    const size_t offset = first * kBytes;
    for (size_t k = 0; k < inputs.size(); ++k) tile[k] = static_cast<const uint8_t*>(inputs[k]) + offset;
    void* out = static_cast<uint8_t*>(outputs[0]) + offset;
    if constexpr (kernels::kNarrows<Format>) {
      CombineElements<Format>(tile, tile_count, scratch);
      kernels::Narrow<Format>(scratch.data(), tile_count, out);
    } else {
      const void* elements = HostElements<Format>(tile, tile_count, scratch);
      if (out != elements) std::memcpy(out, elements, tile_count * kBytes);
    }
    CopyToOthers(outputs, offset, tile_count * kBytes);
  }
}

}  // namespace

void SumLocal(DType dtype, std::span<const void* const> inputs, size_t count, std::span<void* const> outputs) {
  const DefaultFloatMode mode;
  kernels::WithFormat(dtype, [&]<typename Format>(Format) { JoinLocal<Format>(inputs, count, outputs); });
}

void MaxLocal(std::span<const void* const> inputs, size_t count, std::span<void* const> outputs) {
  JoinLocal<kernels::Maximum32>(inputs, count, outputs);
}

}  // namespace passing
