// The golden data: families of cases as /golden/README.md there describes them, run on an engine and compared.
//
// A case is a list of steps of ops on an empty cache: D computes a token at a position and gives a row of logits, R
// removes tokens by position, A moves positions. Removal is given, so the session's policy is `full`, its cache F32.

#ifndef EBB_ENGINE_LAB_GOLDEN_FAMILY_H_
#define EBB_ENGINE_LAB_GOLDEN_FAMILY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"

namespace ebb::lab {

struct GoldenOp {
  char kind = 0;  // D: token, position; R: start, end; A: start, delta
  int32_t a = 0;
  int32_t b = 0;
};

struct GoldenCase {
  std::string name = {};
  std::vector<std::vector<GoldenOp>> steps = {};
  int32_t rows = 0;
  std::string reference = {};  // "logits" or "exact": which stored numbers the engine is held to
  std::string file = {};       // of these numbers
  double max_abs = 0;          // largest deviation allowed
  double rms = 0;
  int32_t prompt = 0;                // tokens before the first greedy one
  std::vector<int32_t> greedy = {};  // what greedy decoding gives after it; empty where not to be checked
};

struct GoldenFamily {
  std::string name = {};  // of the file, without .json
  std::string model = {};
  std::vector<GoldenCase> cases = {};
};

// What an engine of that accuracy is held to; a case that says nothing of fast arithmetic is left out for it. NOT_FOUND
// where the file cannot be read, DATA_LOSS naming it where its content is not as described.
absl::StatusOr<GoldenFamily> ReadGoldenFamily(const std::string& path, Accuracy accuracy = Accuracy::kExact);

// Every family of a folder, by name. NOT_FOUND where there is none.
absl::StatusOr<std::vector<GoldenFamily>> ReadGoldenFolder(const std::string& folder,
                                                           Accuracy accuracy = Accuracy::kExact);

// How one case went. `error` is empty where the logits are within tolerance and the greedy tokens as stored.
struct GoldenResult {
  double max_abs = 0;
  double rms = 0;
  std::string error = {};
};

// REQUIRES: the engine runs the family's model.
GoldenResult RunGoldenCase(Engine& engine, const GoldenCase& golden);

// Whether an engine refused a model because it does not support it yet, as opposed to failing on it.
bool IsUnsupported(const absl::Status& status);

}  // namespace ebb::lab

#endif  // EBB_ENGINE_LAB_GOLDEN_FAMILY_H_
