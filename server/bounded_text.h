// Text of unknown origin made safe to pass on: protobuf strings, log lines and labels must be UTF-8 and short, clients
// may send anything.

#ifndef EBB_SERVER_BOUNDED_TEXT_H_
#define EBB_SERVER_BOUNDED_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace ebb {

// `text` with U+FFFD for what is no character (engine/text/utf8.h), cut between characters to `bytes_max` bytes; what
// was cut ends in "...". REQUIRES: bytes_max >= 3.
std::string BoundedText(std::string_view text, size_t bytes_max);

}  // namespace ebb

#endif  // EBB_SERVER_BOUNDED_TEXT_H_
