// Where the elements of a sum are NaN or infinite, which fixed point can't say. Pure functions.
//
// Such an element travels as 0, and flags its chunk. The ranks then sum the classes of the elements of all flagged
// chunks, and put the values in that follow from them. `inputs` and `outputs` are as in fixed_point.h.
#ifndef XLA_FFI_HOST_NUMBERS_ELEMENT_CLASSES_H_
#define XLA_FFI_HOST_NUMBERS_ELEMENT_CLASSES_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "host/numbers/dtype.h"

namespace passing {

// Each element's class as two counters that add up over the ranks, +Inf << 16 | -Inf; a NaN is counted as both. One
// lane an element, host order.
void ClassifyElements(DType dtype, std::span<const void* const> inputs, size_t count, uint32_t* classes);

// Keeps classes in the elements themselves, from DecodeLanes to ApplyClasses: those that aren't finite become NaN with
// their class as payload. No decoded sum is NaN.
void MarkClasses(DType dtype, std::span<const uint32_t> classes, void* output);
void ReadClasses(DType dtype, const void* output, size_t count, uint32_t* classes);

// Overwrites the elements that are not finite according to the summed `classes`: NaN if both counters are above zero,
// as any rank had NaN or both infinities met, else the infinity.
void ApplyClasses(DType dtype, std::span<const uint32_t> classes, std::span<void* const> outputs);

}  // namespace passing

#endif  // XLA_FFI_HOST_NUMBERS_ELEMENT_CLASSES_H_
