#include "server/trace_context.h"

namespace ebb {
namespace {

constexpr size_t kLength = 55;  // of version 00; later ones may go on after a dash

bool IsHex(std::string_view text) { return text.find_first_not_of("0123456789abcdef") == std::string_view::npos; }

bool IsId(std::string_view text) { return IsHex(text) && text.find_first_not_of('0') != std::string_view::npos; }

}  // namespace

TraceContext ParseTraceparent(std::string_view header) {
  if (header.size() < kLength) return {};
  const std::string_view version = header.substr(0, 2);
  const std::string_view trace = header.substr(3, 32);
  const std::string_view span = header.substr(36, 16);
  const std::string_view flags = header.substr(53, 2);
  if (header[2] != '-' || header[35] != '-' || header[52] != '-') return {};
  if (!IsHex(version) || version == "ff" || !IsHex(flags) || !IsId(trace) || !IsId(span)) return {};
  if (header.size() > kLength && (version == "00" || header[kLength] != '-')) return {};
  return {.trace_id = std::string(trace), .span_id = std::string(span)};
}

}  // namespace ebb
