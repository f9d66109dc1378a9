// Any bytes as those of an answer, in any pieces: a byte of length for each piece, then its bytes. However they were
// cut, each text is UTF-8 and all of them together are what the bytes are at once; what is held back may still become a
// character.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/text/utf8.h"
#include "engine/text/utf8_stream.h"
#include "policies/check.h"

namespace ebb {
namespace {

void CheckPieces(std::string_view input) {
  Utf8Stream stream;
  std::string bytes, text;
  while (!input.empty()) {
    const size_t length = std::min(input.size() - 1, static_cast<size_t>(static_cast<uint8_t>(input[0])));
    const std::string_view piece = input.substr(1, length);
    input.remove_prefix(1 + length);
    bytes += piece;
    const std::string added = stream.Add(piece);
    EBB_CHECK(SanitisedUtf8(added) == added);
    text += added;
    if (stream.held() > 0) {
      EBB_CHECK(stream.held() <= bytes.size());
      const Utf8Unit unit = FirstUtf8(std::string_view(bytes).substr(bytes.size() - stream.held()));
      EBB_CHECK(unit.kind == Utf8Kind::kCut && static_cast<size_t>(unit.size) == stream.held());
    }
  }
  text += stream.Flush();
  EBB_CHECK(text == SanitisedUtf8(bytes));
  EBB_CHECK(stream.held() == 0);
  EBB_CHECK(stream.Flush().empty());
}

}  // namespace
}  // namespace ebb

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ebb::CheckPieces({reinterpret_cast<const char*>(data), size});
  return 0;
}
