// Texts as a tree of their bytes: finds all of them that some text begins with, in one walk.

#ifndef EBB_ENGINE_TEXT_BYTE_TREE_H_
#define EBB_ENGINE_TEXT_BYTE_TREE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace ebb {

class ByteTree {
 public:
  // The empty text is not kept; of two that are the same the later one counts. REQUIRES: id >= 0.
  void Insert(std::string_view text, int32_t id) {
    if (text.empty()) return;
    int32_t node = 0;
    for (const char byte : text) {
      const auto [edge, is_new] = edges_.try_emplace(Edge(node, byte), static_cast<int32_t>(id_of_node_.size()));
      if (is_new) id_of_node_.push_back(kNone);
      node = edge->second;
    }
    id_of_node_[node] = id;
  }

  // Calls `found(size, id)` for each text that `text` begins with, shortest first.
  template <typename Found>
  void ForEachPrefix(std::string_view text, const Found& found) const {
    int32_t node = 0;
    for (size_t size = 0; size < text.size();) {
      const auto edge = edges_.find(Edge(node, text[size]));
      if (edge == edges_.end()) return;
      node = edge->second;
      ++size;
      if (id_of_node_[node] != kNone) found(size, id_of_node_[node]);
    }
  }

 private:
  static constexpr int32_t kNone = -1;
  static uint64_t Edge(int32_t node, char byte) {
    return static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(byte);
  }

  absl::flat_hash_map<uint64_t, int32_t> edges_ = {};  // Edge(node, byte) to node
  std::vector<int32_t> id_of_node_ = {kNone};          // node 0 is the root
};

}  // namespace ebb

#endif  // EBB_ENGINE_TEXT_BYTE_TREE_H_
