#include "ffi/handler_parts.h"

#include <string>

namespace passing {
namespace {

namespace ffi = xla::ffi;

// Reads attributes, and keeps the first error.
class Reader {
 public:
  explicit Reader(const ffi::Dictionary& attributes) : attributes_(attributes) {}

  template <typename T>
  T Get(std::string_view name) {
    auto value = attributes_.get<T>(name);
    if (value.has_value()) return *value;
    if (error_.success()) error_ = value.error();
    return T{};
  }
  std::string GetText(std::string_view name) { return std::string(Get<std::string_view>(name)); }
  uint32_t GetCount(std::string_view name) { return static_cast<uint32_t>(Get<int64_t>(name)); }
  const ffi::Error& error() const { return error_; }

 private:
  const ffi::Dictionary& attributes_;
  ffi::Error error_;
};

}  // namespace

ffi::Error ToError(const Failure& failure) {
  return ffi::Error(ffi::ErrorCode::kAborted, failure.kind + ": " + failure.message);
}

std::string SetElements(SiteInfo& info, const std::string& dtype_name, const std::string& op_name) {
  const auto dtype = ParseDType(dtype_name);
  if (!dtype) return "passing_psum of unknown dtype " + dtype_name;
  if (op_name != "sum" && op_name != "max") return "passing_psum of unknown op " + op_name;
  if (op_name == "max" && *dtype != DType::kInt32) return "passing_psum: maxima are of int32, not " + dtype_name;
  info.dtype = *dtype;
  info.op = op_name == "max" ? Op::kMax : Op::kSum;
  return "";
}

ffi::ErrorOr<SiteInfo> ParseSite(const ffi::Dictionary& attributes) {
  Reader reader(attributes);
  const std::string dtype_name = reader.GetText("dtype"), op_name = reader.GetText("op");
  const auto leaf_elements = reader.Get<ffi::Span<const int64_t>>("leaf_elements");
  SiteInfo info{.program = reader.GetText("program"),
                .ordinal = reader.Get<int64_t>("ordinal"),
                .site = reader.Get<int64_t>("site"),
                .identity = reader.GetText("identity"),
                .site_name = reader.GetText("site_name"),
                .leaf_elements = {leaf_elements.begin(), leaf_elements.end()},
                .member_count = reader.GetCount("member_count"),
                .local_member_count = reader.GetCount("local_member_count"),
                .replica_count = reader.GetCount("replica_count"),
                .world_size = reader.GetCount("world_size"),
                .flat = reader.Get<int64_t>("flat") != 0,
                .conditional = reader.Get<int64_t>("conditional") != 0,
                .devices = reader.GetText("devices")};
  if (reader.error().failure()) return ffi::Unexpected(reader.error());
  if (const auto wrong = SetElements(info, dtype_name, op_name); !wrong.empty()) {
    return ffi::Unexpected(ffi::Error::InvalidArgument(wrong));
  }
  return info;
}

SiteInfo ParseVisit(std::string_view program, int64_t ordinal) {
  SiteInfo info;
  info.program = program;
  info.ordinal = ordinal;
  return info;
}

}  // namespace passing
