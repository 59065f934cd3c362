#include "mpi/work.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "host/huge_pages.h"
#include "host/numbers/float_mode.h"
#include "host/numbers/host_elements.h"
#include "mpi/elements.h"
#include "mpi/failures.h"

namespace passing::mpi {
namespace {

// A call's devices, and how much memory each has.
struct Layout {
  explicit Layout(std::span<const Call> all_calls, std::span<const int32_t> own_indices, int32_t device_count,
                  int32_t host_count)
      : calls(all_calls.begin(), all_calls.end()),
        indices(own_indices.begin(), own_indices.end()),
        signature(calls[0].signature),
        device_count(static_cast<uint64_t>(device_count)),
        host_count(static_cast<uint64_t>(host_count)),
        is_cut(signature.operation == Operation::kReduceScatter),
        elements(signature.count * (is_cut ? this->device_count : 1)) {}

  std::vector<Call> calls;       // of the local devices
  std::vector<int32_t> indices;  // of the local devices, among all
  Signature signature;
  uint64_t device_count;
  uint64_t host_count;
  bool is_cut;        // does each device get only its part of the result?
  uint64_t elements;  // that a device gives

  uint64_t bytes() const { return elements * signature.type.bytes(); }
  // Gives each local device its share of the whole result.
  void Distribute(const void* result) const {
    const uint64_t share = signature.count * signature.type.bytes();
    for (size_t k = 0; k < calls.size(); ++k) {
      const uint64_t offset = is_cut ? static_cast<uint64_t>(indices[k]) * share : 0;
      std::memcpy(calls[k].output, static_cast<const uint8_t*>(result) + offset, share);
    }
  }
};

// The transport's own sums, in the callers' memory.
Work AllReduceSum(const Layout& layout) {
  Work work;
  const ElementType& type = layout.signature.type;
  work.spec.dtype = type.dtype;
  work.spec.leaf_elements = {layout.elements * (type.is_complex ? 2 : 1)};
  for (const Call& call : layout.calls) {
    work.inputs.push_back(call.input);
    work.outputs.push_back(call.output);
  }
  return work;
}

void SumInPlace(Work& work, DType dtype, uint64_t elements) {
  work.spec.dtype = dtype;
  work.spec.leaf_elements = {elements};
  work.inputs = {work.scratch.get()};
  work.outputs = {work.scratch.get()};
}

// The devices of a host are added up before, so that there is one copy of the whole sum, not one for each device.
Work ReduceScatterSum(const Layout& layout) {
  Work work = AllReduceSum(layout);
  const uint64_t elements = work.spec.leaf_elements[0];
  work.scratch = NewMemory<uint32_t>((layout.bytes() + 3) / 4);
  void* const output = work.scratch.get();
  SumLocal(work.spec.dtype, work.inputs, elements, {&output, 1});
  SumInPlace(work, work.spec.dtype, elements);
  work.spec.moves = Moves::kScatter;
  work.own_rows.resize(layout.device_count);
  for (const int32_t index : layout.indices) work.own_rows.at(static_cast<size_t>(index)) = true;
  work.finish = [layout, output] { layout.Distribute(output); };
  return work;
}

// The extreme of up to 32 bits: the transport finds the largest int32.
Work ExtremeOfKeys(const Layout& layout) {
  Work work;
  const bool smallest = layout.signature.reduction == Reduction::kMin;
  work.scratch = NewMemory<uint32_t>(layout.elements);
  auto* const keys = reinterpret_cast<int32_t*>(work.scratch.get());
  WithType(layout.signature.type, [&]<typename T>(T) {
    if constexpr (sizeof(T) <= 4) {
      std::fill_n(keys, layout.elements, std::numeric_limits<int32_t>::min());
      for (const Call& call : layout.calls) {
        const T* const input = static_cast<const T*>(call.input);
        for (uint64_t i = 0; i < layout.elements; ++i) keys[i] = std::max(keys[i], ToKey(input[i], smallest));
      }
      work.finish = [layout, keys, smallest] {
        auto* const result = reinterpret_cast<T*>(keys);  // an element is written where its key, or an earlier one, was
        for (uint64_t i = 0; i < layout.elements; ++i) {
          int32_t key;
          std::memcpy(&key, keys + i, sizeof(key));
          const T element = FromKey<T>(key, smallest);
          std::memcpy(result + i, &element, sizeof(element));
        }
        layout.Distribute(result);
      };
    }
  });
  SumInPlace(work, DType::kInt32, layout.elements);
  work.spec.op = Op::kMax;
  return work;
}

// A sum of the whole carries a host's own part in vain; an exchange costs a message for each other host, as much
// time as about 64 KiB of a sum.
constexpr uint64_t kMessageBytes = 64 * 1024;

bool IsExchanged(const Layout& layout) {
  const uint64_t saved = layout.bytes() * layout.device_count / layout.host_count;
  return layout.host_count > 1 && saved >= (layout.host_count - 1) * kMessageBytes;
}

// All devices' elements, one device after the other: by an exchange, or as a sum of words, where each host adds zeros
// to the others'.
Work Gather(const Layout& layout, void* into) {
  Work work;
  const uint64_t bytes = layout.bytes() * layout.device_count;
  const uint64_t words = (bytes + 3) / 4;
  const bool is_exchanged = IsExchanged(layout);
  if (!into) {
    work.scratch = NewMemory<uint32_t>(words);
    into = work.scratch.get();
  }
  if (!is_exchanged) std::memset(into, 0, words * 4);
  for (size_t k = 0; k < layout.calls.size(); ++k) {
    auto* const part = static_cast<uint8_t*>(into) + static_cast<uint64_t>(layout.indices[k]) * layout.bytes();
    std::memcpy(part, layout.calls[k].input, layout.bytes());
  }
  SumInPlace(work, DType::kInt32, words);
  work.inputs = {into};
  work.outputs = {into};
  if (is_exchanged) work.parts = {static_cast<uint8_t*>(into), bytes};
  return work;
}

Work AllGather(const Layout& layout) {
  const uint64_t bytes = layout.bytes() * layout.device_count;
  void* const first = layout.calls[0].output;
  const auto lies_there = [&](const Call& call) {
    return reinterpret_cast<uintptr_t>(call.input) - reinterpret_cast<uintptr_t>(first) < bytes;
  };
  // Not where an input lies, which is still to be read.
  const bool in_place = bytes % 4 == 0 && reinterpret_cast<uintptr_t>(first) % 4 == 0 &&
                        std::none_of(layout.calls.begin(), layout.calls.end(), lies_there);
  Work work = Gather(layout, in_place ? first : nullptr);
  work.finish = [calls = layout.calls, result = work.outputs[0], bytes] {
    for (const Call& call : calls) {
      if (call.output != result) std::memcpy(call.output, result, bytes);
    }
  };
  return work;
}

// Each host reduces all devices' elements by itself, in the devices' order: the bits are the same on all of them.
Work GatherAndReduce(const Layout& layout) {
  Work work = Gather(layout, nullptr);
  work.finish = [layout, all = work.outputs[0]] {
    const DefaultFloatMode mode;
    const Reduction reduction = layout.signature.reduction;
    WithType(layout.signature.type, [&]<typename T>(T) {
      T* const result = static_cast<T*>(all);
      for (uint64_t i = 0; i < layout.elements; ++i) {
        T element = result[i];
        for (uint64_t device = 1; device < layout.device_count; ++device) {
          const T other = result[device * layout.elements + i];
          if constexpr (kIsComplex<T> || sizeof(T) <= 4) {  // others have no order, or went another way
            element = Product(element, other);
          } else {
            element = reduction == Reduction::kProduct ? Product(element, other)
                                                       : Extreme(element, other, reduction == Reduction::kMin);
          }
        }
        result[i] = element;
      }
    });
    layout.Distribute(all);
  };
  return work;
}

}  // namespace

Work WorkFor(std::span<const Call> calls, std::span<const int32_t> indices, int32_t device_count, int32_t host_count) {
  const Layout layout(calls, indices, device_count, host_count);
  const Signature& signature = layout.signature;
  const uint64_t copies = signature.operation == Operation::kAllGather ? layout.device_count : 1;
  for (const Call& call : calls) PreferHugePages(call.output, copies * signature.count * signature.type.bytes());
  if (signature.operation == Operation::kAllGather) return AllGather(layout);
  if (signature.reduction == Reduction::kSum) return layout.is_cut ? ReduceScatterSum(layout) : AllReduceSum(layout);
  if (signature.reduction == Reduction::kProduct) return GatherAndReduce(layout);
  if (signature.type.is_complex) {
    throw Failed("UsageError", NameOf(signature) + ": complex numbers have no order. Take the real part.");
  }
  return signature.type.bytes() > 4 ? GatherAndReduce(layout) : ExtremeOfKeys(layout);
}

}  // namespace passing::mpi
