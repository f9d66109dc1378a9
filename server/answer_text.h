// The text of an answer, from its tokens' bytes: never half a character, and cut before the first stop text.
//
// A stop may begin in one token and end in another, so text that could still become one is held back until it is
// certain.

#ifndef EBB_SERVER_ANSWER_TEXT_H_
#define EBB_SERVER_ANSWER_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/utf8_stream.h"

namespace ebb {

class AnswerText {
 public:
  AnswerText() = default;
  explicit AnswerText(std::vector<std::string> stops);  // none is empty

  // Bytes that stand before the answer, newest last: half a character there is completed by the answer's first bytes.
  void Follow(std::string_view bytes);

  // Takes a token's bytes and returns the text that is certain now. After a stop text: what stood before it, and from
  // then on nothing.
  std::string Add(std::string_view bytes);

  // A stop text is complete.
  bool stopped() const { return stopped_; }

  // What was held back for a stop that did not come. Half a character stays half: the next answer may complete it.
  std::string Release();
  // The same at the end of the text: half a character becomes U+FFFD.
  std::string Finish();

 private:
  std::string Cut(std::string text);

  std::vector<std::string> stops_ = {};
  Utf8Stream characters_ = {};
  std::string held_ = {};  // shorter than the longest stop
  bool stopped_ = false;
};

}  // namespace ebb

#endif  // EBB_SERVER_ANSWER_TEXT_H_
