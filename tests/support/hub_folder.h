// A small model as hubs lay it out, in memory: of the llama family, two layers of width 8, random weights.

#ifndef EBB_TESTS_SUPPORT_HUB_FOLDER_H_
#define EBB_TESTS_SUPPORT_HUB_FOLDER_H_

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ebb {

// "F32": 4 bytes per element and so on; `data` as the file has it.
struct HubTensorBytes {
  std::string dtype = {};
  std::vector<int64_t> shape = {};
  std::vector<std::byte> data = {};
};

// A safetensors file, its tensors one after another.
std::vector<std::byte> MakeSafetensors(const std::map<std::string, HubTensorBytes>& tensors);
// The same with any text for its header.
std::vector<std::byte> RawSafetensors(const std::string& header, size_t data_bytes);

// Random numbers, scaled to deviate by 1.
HubTensorBytes RandomHubTensor(const std::vector<int64_t>& shape, uint64_t seed);

struct HubFolder {
  nlohmann::json config = {};
  std::map<std::string, HubTensorBytes> tensors = {};
  std::map<std::string, std::vector<std::byte>> files = {};  // beside config.json and model.safetensors

  HubFolder();

  // Writes config and tensors to `files`, unless they are there, and reads one of them.
  void Finish();
  absl::StatusOr<std::span<const std::byte>> Read(const std::string& name) const;
  // Puts the files into a folder that is there. A failure ends the test program.
  void Write(const std::string& path) const;
};

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_HUB_FOLDER_H_
