// The oracle of a session: a llama in float64 with a cache that is shifted and appended to, the way eviction is usually
// done. Loops and nothing else; for small shapes.

#ifndef EBB_TESTS_SUPPORT_REFERENCE_MODEL_H_
#define EBB_TESTS_SUPPORT_REFERENCE_MODEL_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/model/architecture.h"
#include "tests/support/attention_reference.h"

namespace ebb {

// Who leaves a lane that holds more than `budget` tokens after a step.
struct ReferencePolicy {
  // kLeastAttended: ever, or by the newest token alone. kOnceByHead: EndPrompt says who; the oldest, after it.
  enum class Rule { kNobody, kOldest, kLeastAttended, kLeastAttendedLast, kOnceByHead } rule = Rule::kNobody;
  int32_t budget = 0;
  int32_t sinks = 0;
  int32_t recent = 0;
  int32_t of_each_head = 0;  // tokens that each query head names
  bool compacted = false;    // positions are ranks in the lane, else indices in the log
};

class ReferenceModel {
 public:
  // Reads a model file with exact values of its weights. A failure ends the test program.
  ReferenceModel(const std::string& path, const ReferencePolicy& policy);

  // Appends a block, returns its logits [T][vocab], then evicts.
  std::vector<std::vector<double>> Step(std::span<const int32_t> tokens);

  // The first prompt ended with the last step. With kOnceByHead those of the tokens between sinks and recent stay that
  // each query head of the newest token attended to most, and beside them who was attended to most by all; whoever
  // stays is protected from then on.
  void EndPrompt();

  // Tokens of a lane, ascending.
  std::vector<int32_t> Live(int32_t layer, int32_t head) const;

 private:
  struct Entry {
    int32_t token = 0;
    std::vector<double> k = {}, v = {};
    double mass = 0;                // attention received, mean over the query heads of the group
    std::vector<double> last = {};  // what the newest token paid, each query head of the group
  };
  struct Matrix {
    int64_t rows = 0, cols = 0;
    std::vector<double> values = {};
    std::vector<double> Times(const std::vector<double>& x) const;
  };
  struct Layer {
    std::vector<double> attn_norm = {}, ffn_norm = {};
    Matrix q = {}, k = {}, v = {}, o = {}, gate = {}, up = {}, down = {};
  };
  using Lane = std::vector<Entry>;  // by age

  static Matrix Read(const TensorView& tensor);
  std::vector<double> Norm(const std::vector<double>& x, const std::vector<double>& weight) const;
  void Attend(int32_t layer, std::vector<std::vector<double>>& x);
  std::vector<double> AttendHead(Lane& lane, size_t visible, int32_t of_group, std::vector<double> q) const;
  void FeedForward(const Layer& layer, std::vector<double>& x) const;
  static double Attended(const Entry& entry);
  double Worth(const Entry& entry) const;  // who is worth least leaves
  void Evict(Lane& lane) const;

  ModelConfig config_;
  ReferencePolicy policy_;
  ReferenceRope rope_;
  Matrix embedding_, output_;
  std::vector<double> output_norm_;
  std::vector<Layer> layers_;
  std::vector<Lane> lanes_;  // layer-major
  int32_t seen_ = 0;
  bool prompt_ended_ = false;
};

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_REFERENCE_MODEL_H_
