// Whose trace a call is part of: the header `traceparent` of W3C Trace Context, which callers send as gRPC metadata.
//
//   traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01     version, trace, span of the caller, flags
//
// Ebb makes no spans of its own; the ids go into log lines and refusals, so that they can be found from a trace. Pure.

#ifndef EBB_SERVER_TRACE_CONTEXT_H_
#define EBB_SERVER_TRACE_CONTEXT_H_

#include <string>
#include <string_view>

namespace ebb {

struct TraceContext {
  std::string trace_id = {};  // 32 lower-case hexadecimal digits, not all 0; empty: no trace
  std::string span_id = {};   // 16 of them: the caller's span
};

// Empty ids for a header that is not as the standard says; a caller's tracing never fails its call.
TraceContext ParseTraceparent(std::string_view header);

}  // namespace ebb

#endif  // EBB_SERVER_TRACE_CONTEXT_H_
