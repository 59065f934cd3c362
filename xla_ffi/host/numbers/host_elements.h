// A host's elements are those of its devices, added up (or their maxima) in a fixed order.
#ifndef XLA_FFI_HOST_NUMBERS_HOST_ELEMENTS_H_
#define XLA_FFI_HOST_NUMBERS_HOST_ELEMENTS_H_

#include <array>
#include <cstddef>
#include <span>
#include <type_traits>

#include "host/numbers/dtype.h"
#include "host/numbers/fixed_point.h"
#include "host/numbers/formats.h"

namespace passing {

template <typename Format>
using Scratch = std::array<typename Format::Wide, kMaxBlockElements>;

template <typename Format>
constexpr bool kStoredWide = std::is_same_v<typename Format::Stored, typename Format::Wide>;

// Writes the elements of one device or several, combined, to `scratch`.
template <typename Format>
void CombineElements(std::span<const void* const> inputs, size_t count, Scratch<Format>& scratch);

// Returns `scratch` with the combined elements, or the only input itself if it needs no widening. At most
// kMaxBlockElements, in the scope of a DefaultFloatMode.
template <typename Format>
const void* HostElements(std::span<const void* const> inputs, size_t count, Scratch<Format>& scratch) {
  if constexpr (kStoredWide<Format>) {
    if (inputs.size() == 1) return inputs[0];
  }
  CombineElements<Format>(inputs, count, scratch);
  return scratch.data();
}

// Sums over the local devices alone (world size 1, no switch), for any `count`: outputs[k][i] = host element i, rounded
// once. An output may be the same device's input. Inputs are as in fixed_point.h.
void SumLocal(DType dtype, std::span<const void* const> inputs, size_t count, std::span<void* const> outputs);

// The same for the maximum of int32.
void MaxLocal(std::span<const void* const> inputs, size_t count, std::span<void* const> outputs);

// Copies the first output, which has the result, to those of the other devices.
void CopyToOthers(std::span<void* const> outputs, size_t offset, size_t bytes);

}  // namespace passing

#endif  // XLA_FFI_HOST_NUMBERS_HOST_ELEMENTS_H_
