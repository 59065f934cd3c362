// Reads the text that Python writes of a sum.
#ifndef XLA_FFI_HOST_SUMS_SPEC_LINES_H_
#define XLA_FFI_HOST_SUMS_SPEC_LINES_H_

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "host/sums/sum_spec.h"

namespace passing {

inline std::invalid_argument WrongSpec(std::string_view name, std::string_view found) {
  return std::invalid_argument(
      "jax_passing wrote a sum's description that its own _native can't read, so the two are of different versions: "
      "install the package again. It expects " +
      std::string(name) + ", not \"" + std::string(found) + '"');
}

template <typename T>
T ParseSpecNumber(std::string_view name, std::string_view text) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) throw WrongSpec(name, text);
  return number;
}

// Takes the lines "name=value" of a text, one after the other.
class SpecLines {
 public:
  explicit SpecLines(std::string_view text) : rest_(text) {}

  void Take(std::string_view name, std::string& value) { value = Value(name); }
  void Take(std::string_view name, bool& value) { value = ParseSpecNumber<uint8_t>(name, Value(name)) != 0; }
  template <typename T>
  void Take(std::string_view name, T& value) {
    value = ParseSpecNumber<T>(name, Value(name));
  }
  template <typename T>
  void Take(std::string_view name, std::vector<T>& values) {
    for (std::string_view rest = Value(name); !rest.empty();) {
      const std::string_view number = rest.substr(0, rest.find(','));
      values.push_back(ParseSpecNumber<T>(name, number));
      rest.remove_prefix(number.size() == rest.size() ? rest.size() : number.size() + 1);
    }
  }
  void Take(std::string_view name, DType& value) {
    const std::string_view text = Value(name);
    const auto dtype = ParseDType(std::string(text));
    if (!dtype) throw WrongSpec(name, text);
    value = *dtype;
  }
  void Take(std::string_view name, Op& value) {
    const std::string_view text = Value(name);
    if (text != "sum" && text != "max") throw WrongSpec(name, text);
    value = text == "max" ? Op::kMax : Op::kSum;
  }
  void Take(std::string_view name, Moves& value) {
    const std::string_view text = Value(name);
    const auto* const found = std::find(kMoves.begin(), kMoves.end(), text);
    if (found == kMoves.end()) throw WrongSpec(name, text);
    value = static_cast<Moves>(found - kMoves.begin());
  }
  void Take(std::string_view name, WireDtype& value) {
    const std::string_view text = Value(name);
    const auto wire_dtype = ParseWireDtype(text);
    if (!wire_dtype) throw WrongSpec(name, text);
    value = *wire_dtype;
  }
  void End() const {
    if (!rest_.empty()) throw WrongSpec("the end", rest_);
  }

 private:
  static constexpr std::array<std::string_view, 4> kMoves{"all", "gather", "scatter", "broadcast"};

  std::string_view Value(std::string_view name) {
    const size_t end = rest_.find('\n');
    const std::string_view line = rest_.substr(0, end), key = line.substr(0, line.find('='));
    if (end == std::string_view::npos || key != name || key.size() == line.size()) throw WrongSpec(name, line);
    rest_.remove_prefix(end + 1);
    return line.substr(key.size() + 1);
  }

  std::string_view rest_;
};

}  // namespace passing

#endif  // XLA_FFI_HOST_SUMS_SPEC_LINES_H_
