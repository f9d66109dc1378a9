#include "server/answer_text.h"

#include <algorithm>
#include <utility>

#include "policies/check.h"

namespace ebb {

AnswerText::AnswerText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) EBB_CHECK(!stop.empty());
}

void AnswerText::Follow(std::string_view bytes) { characters_.Add(bytes); }

std::string AnswerText::Add(std::string_view bytes) { return Cut(characters_.Add(bytes)); }

std::string AnswerText::Release() { return std::exchange(held_, {}); }

std::string AnswerText::Finish() {
  std::string text = Cut(characters_.Flush());
  return text + Release();
}

std::string AnswerText::Cut(std::string text) {
  if (stopped_) return {};
  text = std::exchange(held_, {}) + text;

  size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, text.find(stop));
  if (first != std::string::npos) {
    stopped_ = true;
    text.resize(first);
    return text;
  }

  size_t hold = 0;  // the longest end of the text that begins a stop
  for (const std::string& stop : stops_) {
    for (size_t size = std::min(stop.size() - 1, text.size()); size > hold; --size) {
      if (std::string_view(text).ends_with(std::string_view(stop).substr(0, size))) hold = size;
    }
  }
  held_ = text.substr(text.size() - hold);
  text.erase(text.size() - hold);
  return text;
}

}  // namespace ebb
