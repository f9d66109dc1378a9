#ifndef EBB_ENGINE_ACCURACY_H_
#define EBB_ENGINE_ACCURACY_H_

namespace ebb {

// How linear layers multiply; sums are float32 either way.
//
//   kExact  weights are dequantised, activations are float32
//   kFast   activations are rounded before products with weights that have instructions for it: to bytes that share a
//           scale per 128 columns for quantised types, to BF16 for BF16. F16 and F32 weights as in kExact
enum class Accuracy { kExact, kFast };

}  // namespace ebb

#endif  // EBB_ENGINE_ACCURACY_H_
