// Bytes that arrive in pieces, as the tokens of an answer do, to text that never holds half a character.
//
//   Utf8Stream stream;
//   for (int32_t token : answer) Send(stream.Add(tokenizer.Piece(token)));
//   Send(stream.Flush());
//
// However the bytes are cut into pieces, the texts put together are SanitisedUtf8 of all bytes: a character appears
// with its last byte, and U+FFFD only when no further byte can make a character of what came.

#ifndef EBB_ENGINE_TEXT_UTF8_STREAM_H_
#define EBB_ENGINE_TEXT_UTF8_STREAM_H_

#include <string>
#include <string_view>

namespace ebb {

class Utf8Stream {
 public:
  // Takes more bytes and returns the text that is certain now; may be empty.
  std::string Add(std::string_view bytes);

  // Ends the text: U+FFFD if it ended inside a character, else empty. The stream is as new afterwards.
  std::string Flush();

  // Bytes that wait for the rest of their character.
  size_t held() const { return held_.size(); }

 private:
  std::string held_ = {};  // at most 3 bytes
};

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_UTF8_STREAM_H_
