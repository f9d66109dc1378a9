// Any bytes as a file of head gates. What is taken is a gate in [0, 1] for every lane.

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/model/head_gates_file.h"
#include "policies/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ebb::ModelConfig model;
  model.layers = 2;
  model.kv_heads = 2;
  model.fingerprint = "00000000000000aa";
  const auto gates = ebb::ParseHeadGates("fuzz.json", {reinterpret_cast<const char*>(data), size}, model);
  if (!gates.ok()) return 0;
  EBB_CHECK((*gates)->size() == 4);
  for (const double gate : **gates) EBB_CHECK(gate >= 0 && gate <= 1);
  return 0;
}
