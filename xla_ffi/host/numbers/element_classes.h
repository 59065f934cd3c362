// NaN and infinities, which fixed point can't express. Pure functions.
//
// An element that isn't finite travels as 0 and flags its chunk. The ranks then sum the classes of all elements in
// flagged chunks, and write the values that follow from them. `inputs` and `outputs` are as in fixed_point.h.
#ifndef XLA_FFI_HOST_NUMBERS_ELEMENT_CLASSES_H_
#define XLA_FFI_HOST_NUMBERS_ELEMENT_CLASSES_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "host/numbers/dtype.h"

namespace passing {

// Writes each element's class as two counters that add up over the ranks, +Inf << 16 | -Inf; a NaN counts as both. One
// lane an element, in host order.
void ClassifyElements(DType dtype, std::span<const void* const> inputs, size_t count, uint32_t* classes);

// "NaN", "inf" or "-inf"; of an element that isn't finite.
const char* NameOfClass(uint32_t element_class);

// MarkClasses keeps classes in the elements themselves, from DecodeLanes to ApplyClasses: an element that isn't finite
// becomes a NaN with its class as payload, which ReadClasses reads. No decoded sum is NaN.
void MarkClasses(DType dtype, std::span<const uint32_t> classes, void* output);
void ReadClasses(DType dtype, const void* output, size_t count, uint32_t* classes);

// Overwrites the elements that aren't finite according to the summed `classes`. An element becomes NaN if both counters
// are above zero, because a rank had NaN or both infinities met; else it becomes the infinity that was counted.
void ApplyClasses(DType dtype, std::span<const uint32_t> classes, std::span<void* const> outputs);

}  // namespace passing

#endif  // XLA_FFI_HOST_NUMBERS_ELEMENT_CLASSES_H_
