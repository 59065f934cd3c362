#include "ffi/sum_spec.h"

#include <charconv>
#include <stdexcept>
#include <system_error>

namespace passing {
namespace {

std::invalid_argument Wrong(std::string_view name, std::string_view found) {
  return std::invalid_argument(
      "jax_passing wrote a sum's description that its own _native can't read, so the two are of different versions: "
      "install the package again. It expects " +
      std::string(name) + ", not \"" + std::string(found) + '"');
}

template <typename T>
T ParseNumber(std::string_view name, std::string_view text) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) throw Wrong(name, text);
  return number;
}

// Takes the lines "name=value" of a text, one after the other.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {}

  void Take(std::string_view name, std::string& value) { value = Value(name); }
  void Take(std::string_view name, bool& value) { value = ParseNumber<uint8_t>(name, Value(name)) != 0; }
  template <typename T>
  void Take(std::string_view name, T& value) {
    value = ParseNumber<T>(name, Value(name));
  }
  template <typename T>
  void Take(std::string_view name, std::vector<T>& values) {
    for (std::string_view rest = Value(name); !rest.empty();) {
      const std::string_view number = rest.substr(0, rest.find(','));
      values.push_back(ParseNumber<T>(name, number));
      rest.remove_prefix(number.size() == rest.size() ? rest.size() : number.size() + 1);
    }
  }
  void Take(std::string_view name, DType& value) {
    const std::string_view text = Value(name);
    const auto dtype = ParseDType(std::string(text));
    if (!dtype) throw Wrong(name, text);
    value = *dtype;
  }
  void Take(std::string_view name, Op& value) {
    const std::string_view text = Value(name);
    if (text != "sum" && text != "max") throw Wrong(name, text);
    value = text == "max" ? Op::kMax : Op::kSum;
  }
  void Take(std::string_view name, Wire& value) {
    const std::string_view text = Value(name);
    const auto wire = ParseWire(text);
    if (!wire) throw Wrong(name, text);
    value = *wire;
  }
  void End() const {
    if (!rest_.empty()) throw Wrong("the end", rest_);
  }

 private:
  std::string_view Value(std::string_view name) {
    const size_t end = rest_.find('\n');
    const std::string_view line = rest_.substr(0, end), key = line.substr(0, line.find('='));
    if (end == std::string_view::npos || key != name || key.size() == line.size()) throw Wrong(name, line);
    rest_.remove_prefix(end + 1);
    return line.substr(key.size() + 1);
  }

  std::string_view rest_;
};

}  // namespace

SumSpec ParseSumSpec(std::string_view text) {
  SumSpec spec;
  Lines lines(text);
  lines.Take("ordinal", spec.ordinal);
  lines.Take("program", spec.program);
  lines.Take("site", spec.site);
  lines.Take("identity", spec.identity);
  lines.Take("site_name", spec.site_name);
  lines.Take("dtype", spec.dtype);
  lines.Take("op", spec.op);
  lines.Take("wire", spec.wire);
  lines.Take("leaf_elements", spec.leaf_elements);
  lines.Take("member_count", spec.member_count);
  lines.Take("local_member_count", spec.local_member_count);
  lines.Take("replica_count", spec.replica_count);
  lines.Take("world_size", spec.world_size);
  lines.Take("flat", spec.flat);
  lines.Take("conditional", spec.conditional);
  lines.Take("devices", spec.devices);
  lines.Take("on_gpu", spec.on_gpu);
  lines.Take("overlap_group", spec.overlap_group);
  lines.Take("slice_elements", spec.slice_elements);
  lines.Take("residuals", spec.residuals);
  lines.Take("gpus", spec.gpus);
  lines.Take("gpu_groups", spec.gpu_groups);
  lines.Take("gpu_members", spec.gpu_members);
  lines.Take("gpu_slices", spec.gpu_slices);
  lines.End();
  if (spec.op == Op::kMax && spec.dtype != DType::kInt32) throw Wrong("maxima of int32", text);
  if (spec.wire != Wire::kFull && !MayBeNarrow(spec.dtype)) throw Wrong("floats on a narrow wire", text);
  for (const auto* each : {&spec.gpu_groups, &spec.gpu_members, &spec.gpu_slices}) {
    if (each->size() != spec.gpus.size()) throw Wrong("as many groups, members and slices as GPUs", text);
  }
  return spec;
}

}  // namespace passing
