// The fixed-point codec for Python: for tests, and for data planes that are checked from there.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "host/numbers/fixed_point.h"
#include "python/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace passing {
namespace {

DType DTypeOf(const std::string& name) {
  const auto dtype = ParseDType(name);
  if (!dtype) throw std::invalid_argument("no such dtype: " + name);
  return *dtype;
}

// The same elements of one block on each local device.
struct Block {
  std::vector<const void*> inputs;
  size_t count;

  Block(DType dtype, const std::vector<nb::bytes>& buffers) {
    if (buffers.empty()) throw std::invalid_argument("no buffers");
    count = buffers[0].size() / SizeOf(dtype);
    for (const nb::bytes& buffer : buffers) {
      if (buffer.size() != count * SizeOf(dtype)) throw std::invalid_argument("buffers of different or odd sizes");
      inputs.push_back(buffer.data());
    }
    if (count > kBlockElements) throw std::invalid_argument("more elements than a block");
  }
};

void CheckHeadroom(uint32_t headroom_bits) {
  if (headroom_bits > HeadroomBits(kMaxWorldSize))
    throw std::invalid_argument("more headroom_bits than the largest world needs");
}

nb::bytes ToBytes(const std::vector<uint8_t>& buffer) { return nb::bytes(buffer.data(), buffer.size()); }

int32_t PyBlockExponent(const std::string& dtype_name, const std::vector<nb::bytes>& buffers) {
  const DType dtype = DTypeOf(dtype_name);
  const Block block(dtype, buffers);
  return BlockExponent(dtype, block.inputs, block.count);
}

nb::tuple PyEncodeLanes(const std::string& dtype_name, const std::vector<nb::bytes>& buffers, int32_t exponent,
                        uint32_t headroom_bits) {
  const DType dtype = DTypeOf(dtype_name);
  const Block block(dtype, buffers);
  CheckHeadroom(headroom_bits);
  std::vector<uint8_t> lanes(4 * LaneCount(dtype, block.count, headroom_bits));
  const uint8_t flags = EncodeLanes(dtype, block.inputs, block.count, exponent, headroom_bits, lanes.data());
  return nb::make_tuple(ToBytes(lanes), flags);
}

nb::bytes PyDecodeLanes(const std::string& dtype_name, const nb::bytes& lanes, size_t count, int32_t exponent,
                        uint32_t headroom_bits) {
  const DType dtype = DTypeOf(dtype_name);
  CheckHeadroom(headroom_bits);
  if (lanes.size() != 4 * LaneCount(dtype, count, headroom_bits)) {
    throw std::invalid_argument("lanes of another number of elements");
  }
  std::vector<uint8_t> elements(count * SizeOf(dtype));
  void* output = elements.data();
  DecodeLanes(dtype, static_cast<const uint8_t*>(lanes.data()), count, exponent, headroom_bits, {&output, 1});
  return ToBytes(elements);
}

}  // namespace

void BindFixedPoint(nb::module_& m) {
  m.def("block_exponent", PyBlockExponent, "dtype"_a, "buffers"_a);
  m.def("encode_lanes", PyEncodeLanes, "dtype"_a, "buffers"_a, "exponent"_a, "headroom_bits"_a);
  m.def("decode_lanes", PyDecodeLanes, "dtype"_a, "lanes"_a, "count"_a, "exponent"_a, "headroom_bits"_a);
}

}  // namespace passing
