// A model's weights on a device, and which models a device computes.

#ifndef EBB_ENGINE_GPU_GPU_MODEL_H_
#define EBB_ENGINE_GPU_GPU_MODEL_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/gpu/device_matrix.h"
#include "engine/gpu/gpu.h"
#include "engine/model/architecture.h"
#include "engine/ops.h"

namespace ebb {

struct GpuModel {
  struct Norm {
    GpuMemory weight = {}, bias = {};  // [dim] floats; a bias of layer norms alone
  };
  struct Layer {
    Norm attn_norm = {}, ffn_norm = {};  // no bytes of ffn_norm: attn_norm serves for both
    // Of every head [head_dim], and of what a part of the layer adds [dim]; no bytes where the model has none.
    GpuMemory q_norm = {}, k_norm = {}, post_attn_norm = {}, post_ffn_norm = {};
    DeviceMatrix q = {}, k = {}, v = {}, o = {};  // see LayerWeights
    DeviceMatrix gate = {}, up = {}, down = {};   // with experts those of all, one behind the other
    DeviceMatrix router = {};                     // of experts alone
    // Floats; no bytes where the model has none. Nor has it a gate always.
    GpuMemory q_bias = {}, k_bias = {}, v_bias = {}, o_bias = {}, up_bias = {}, down_bias = {};
  };

  // Copies the weights of `config` to the device. FAILED_PRECONDITION UNSUPPORTED_MODEL_FEATURE names what the model
  // has that the device does not compute, UNSUPPORTED_TENSOR_TYPE the tensor. GPU_OUT_OF_MEMORY before anything is
  // copied, with the bytes of all weights; a device that rounds each up may refuse a tensor yet, by its name.
  static absl::StatusOr<GpuModel> Upload(const Gpu& gpu, const ModelConfig& config, const Weights& weights);

  // What Upload allocates. As Upload.
  static absl::StatusOr<int64_t> Bytes(const ModelConfig& config, const Weights& weights);

  // As large as a model of that shape, of random BF16 weights that are made on the device: for measuring what a shape
  // costs. As Upload. REQUIRES: RMS norms and RoPE, as of llamas, whose weights it has.
  static absl::StatusOr<GpuModel> Random(const Gpu& gpu, const ModelConfig& config);

  ModelConfig config = {};
  DeviceMatrix embedding = {};
  DeviceMatrix positions = {};              // [context, dim], and
  Norm embedding_norm = {};                 // of what they make together; no bytes where the model has none
  std::optional<DeviceMatrix> output = {};  // absent: the embedding
  Norm output_norm = {};
  GpuMemory output_bias = {};  // [vocab], or no bytes
  std::vector<Layer> layers = {};
  Rope rope = {};
  // Components of a query or key as they lie on the device, [head_dim]: the first is the model's component
  // head_order[0]. Empty: as the model has them. Pairs of halves that fill no whole units (ops/gpu/rope.h) lie as
  // neighbours.
  std::vector<int32_t> head_order = {};
  GpuMemory turns = {}, slopes = {};  // Rope's
  int64_t bytes = 0;                  // of all matrices

  // Of the weights that a step of so many rows multiplies with: all but tables that only rows are looked up in, learned
  // positions and an embedding that is no head; of experts no more than the rows can choose.
  int64_t MultipliedBytes(int64_t rows) const;

  // Of all layers, in the order of a step, but of a mixture's router and experts: weights, biases, and what stands
  // behind a row of y. Without rows.
  std::vector<gpu::LinearArgs> Products() const;

  const gpu::Matrix& head() const { return output ? output->matrix() : embedding.matrix(); }

 private:
  absl::Status UploadRope(const Gpu& gpu);
};

}  // namespace ebb

#endif  // EBB_ENGINE_GPU_GPU_MODEL_H_
