// Lines on standard input (corpus.py packs them) to tokens on standard output: of each line how many, then their ids, 4
// bytes each, and how long the text is that they stand for, and it; all lines trusted, each the beginning of a
// sequence. `tokenize_lines FOLDER`
//
// `tokenize_lines FOLDER --pre RULE`: the same, but texts are cut by the rule of this name, as those of a GGUF file
// are, whatever the folder's own steps are.
//
// `tokenize_lines FOLDER --speed FILE`: how long it takes to open the tokenizer, and to encode the file's text in one
// go.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "engine/model/hub_tokenizer.h"
#include "engine/text/read_vocabulary.h"
#include "engine/text/tokenizer.h"
#include "policies/status.h"

namespace ebb {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string ReadAll(std::istream& from) { return {std::istreambuf_iterator<char>(from), {}}; }

void Write(uint32_t number) { std::fwrite(&number, sizeof(number), 1, stdout); }

void TokenizeLines(const Tokenizer& tokenizer) {
  const std::string input = ReadAll(std::cin);
  uint32_t size = 0;
  for (size_t at = 0; at + sizeof(size) <= input.size(); at += size) {
    std::memcpy(&size, input.data() + at, sizeof(size));
    at += sizeof(size);
    const auto ids = tokenizer.Encode(std::string_view(input).substr(at, size), Special::kParse, Start::kSequence);
    Write(static_cast<uint32_t>(ids.size()));
    for (const int32_t id : ids) Write(static_cast<uint32_t>(id));
    const bool begins = tokenizer.adds_bos();
    const std::string text = tokenizer.Decode(std::span(ids).subspan(begins ? 1 : 0), Special::kParse);
    Write(static_cast<uint32_t>(text.size()));
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> OpenBy(const char* folder, const std::string& rule) {
  if (rule.empty()) return Tokenizer::Open(folder);
  EBB_ASSIGN(const GgufFile file, OpenTokenizerFile(folder));
  EBB_ASSIGN(Vocabulary vocabulary, ReadVocabulary(file));
  vocabulary.rules.clear();
  vocabulary.pre = rule;
  return Tokenizer::Make(std::move(vocabulary));
}

int Main(int argc, char** argv) {
  if (argc != 2 && argc != 4) return 2;
  const bool by_rule = argc == 4 && std::string_view(argv[2]) == "--pre";
  const Clock::time_point start = Clock::now();
  const auto tokenizer = OpenBy(argv[1], by_rule ? argv[3] : "");
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status().message() << "\n";
    return 1;
  }
  if (argc == 2 || by_rule) {
    TokenizeLines(**tokenizer);
    return 0;
  }
  const double opened = SecondsSince(start);
  std::ifstream file(argv[3]);
  const std::string text = ReadAll(file);
  const Clock::time_point begin = Clock::now();
  const auto ids = (*tokenizer)->Encode(text);
  const double encoded = SecondsSince(begin);
  absl::PrintF("{\"open_s\": %.3f, \"encode_s\": %.3f, \"bytes\": %d, \"tokens\": %d}\n", opened, encoded, text.size(),
               ids.size());
  return 0;
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) { return ebb::Main(argc, argv); }
