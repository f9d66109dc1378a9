// A mixture of experts in the place of a layer's feed-forward part:
//
//   x += sum over the experts that a router chose for a token, in ascending order, of weight * part(h), h = norm(x)
//
// Each expert's tokens are one batch. A token's sum runs in the order of its experts, whoever else is in the batch.
// Scratch memory grows to the largest step seen and stays.

#ifndef EBB_ENGINE_EXPERTS_H_
#define EBB_ENGINE_EXPERTS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/model/architecture.h"
#include "engine/ops.h"

namespace ebb {

class Experts {
 public:
  // REQUIRES: config.experts > 0. `ops` outlives this.
  Experts(const ModelConfig& config, const LayerWeights& weights, Ops& ops);

  // x [rows, dim].
  void Add(const Norm& norm, int32_t rows, std::span<float> x);

  int64_t weight_bytes() const;  // packed, of all

 private:
  struct Expert {
    std::unique_ptr<PackedMatrix> gate = {}, up = {}, down = {};
  };
  void AddExpert(int32_t expert, std::span<float> x);

  Ops* ops_;
  Activation activation_;
  int32_t used_;
  int32_t dim_;
  std::unique_ptr<PackedMatrix> router_;
  std::vector<Expert> experts_;

  std::vector<float> h_ = {}, scores_ = {}, weights_ = {};  // [rows, dim], [rows, experts], [rows, used]
  std::vector<int32_t> chosen_ = {};                        // [rows, used]
  std::vector<int32_t> at_ = {};                            // of one expert, indices into chosen_
  std::vector<float> in_ = {}, out_ = {};                   // its tokens, [tokens, dim]
};

}  // namespace ebb

#endif  // EBB_ENGINE_EXPERTS_H_
