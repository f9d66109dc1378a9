// Text that remembers, byte by byte, who wrote it.
//
// A chat template mixes what its maker wrote with what a caller says. Only the maker's bytes may become special tokens,
// so every operation on text carries the origin of each byte along with it.

#ifndef EBB_ENGINE_TEXT_JINJA_TEXT_H_
#define EBB_ENGINE_TEXT_JINJA_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace ebb::jinja {

enum class Origin : char {
  kTemplate = 't',  // the template, or a value that its user vouches for
  kCaller = 'c',    // anything else
  kMarked = 'm',    // as kCaller, but to be found again in the output
};

class Text {
 public:
  Text() = default;
  Text(std::string_view bytes, Origin origin) : bytes_(bytes), origins_(bytes.size(), static_cast<char>(origin)) {}

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  // REQUIRES: at < size().
  Origin origin(size_t at) const { return static_cast<Origin>(origins_[at]); }

  // Bytes [begin, begin + size), as many of them as there are. REQUIRES: begin <= size().
  Text Sub(size_t begin, size_t size = std::string::npos) const {
    Text part;
    part.bytes_ = bytes_.substr(begin, size);
    part.origins_ = origins_.substr(begin, size);
    return part;
  }

  void Append(const Text& other) {
    bytes_ += other.bytes_;
    origins_ += other.origins_;
  }
  void Append(std::string_view bytes, Origin origin) {
    bytes_ += bytes;
    origins_.append(bytes.size(), static_cast<char>(origin));
  }

 private:
  std::string bytes_ = {};
  std::string origins_ = {};  // one character per byte
};

}  // namespace ebb::jinja

#endif  // EBB_ENGINE_TEXT_JINJA_TEXT_H_
