// Any bytes as the header `traceparent`. What is taken is as the standard says, is what stands in the header, and is
// taken again when it is sent on; what is cut short, or goes on where version 00 ends, is not taken.

#include <cstdint>
#include <string>
#include <string_view>

#include "policies/check.h"
#include "server/trace_context.h"

namespace ebb {
namespace {

bool IsEmpty(const TraceContext& context) { return context.trace_id.empty() && context.span_id.empty(); }

void CheckId(std::string_view id, size_t size) {
  EBB_CHECK(id.size() == size);
  EBB_CHECK(id.find_first_not_of("0123456789abcdef") == std::string_view::npos);
  EBB_CHECK(id.find_first_not_of('0') != std::string_view::npos);
}

void CheckHeader(std::string_view header) {
  const TraceContext context = ParseTraceparent(header);
  if (IsEmpty(context)) return;
  CheckId(context.trace_id, 32);
  CheckId(context.span_id, 16);
  const std::string ids = "-" + context.trace_id + "-" + context.span_id + "-";
  EBB_CHECK(header.substr(2).starts_with(ids));

  const std::string sent = "00" + ids + "01";
  const TraceContext again = ParseTraceparent(sent);
  EBB_CHECK(again.trace_id == context.trace_id);
  EBB_CHECK(again.span_id == context.span_id);
  for (size_t size = 0; size < sent.size(); ++size) EBB_CHECK(IsEmpty(ParseTraceparent(header.substr(0, size))));
  EBB_CHECK(IsEmpty(ParseTraceparent(sent + "-")));
}

}  // namespace
}  // namespace ebb

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ebb::CheckHeader({reinterpret_cast<const char*>(data), size});
  return 0;
}
