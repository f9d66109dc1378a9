// A map that keeps the nodes of what was erased for what is inserted next, so that a queue whose entries come and go
// allocates nothing. Holds as many nodes as it ever had entries at once.

#ifndef EBB_SERVER_REUSING_MAP_H_
#define EBB_SERVER_REUSING_MAP_H_

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

namespace ebb {

template <typename Key, typename Value>
class ReusingMap {
 public:
  using iterator = typename std::map<Key, Value>::iterator;
  using const_iterator = typename std::map<Key, Value>::const_iterator;

  // As of std::map: where the key is now, and whether it was inserted.
  std::pair<iterator, bool> emplace(const Key& key, const Value& value) {
    if (spare_.empty()) return map_.emplace(key, value);
    spare_.back().key() = key;
    spare_.back().mapped() = value;
    auto inserted = map_.insert(std::move(spare_.back()));
    if (inserted.inserted) {
      spare_.pop_back();
    } else {
      spare_.back() = std::move(inserted.node);
    }
    return {inserted.position, inserted.inserted};
  }
  void erase(iterator position) { spare_.push_back(map_.extract(position)); }

  iterator begin() { return map_.begin(); }
  iterator end() { return map_.end(); }
  const_iterator begin() const { return map_.begin(); }
  const_iterator end() const { return map_.end(); }
  iterator find(const Key& key) { return map_.find(key); }
  const_iterator find(const Key& key) const { return map_.find(key); }
  bool contains(const Key& key) const { return map_.contains(key); }
  bool empty() const { return map_.empty(); }
  size_t size() const { return map_.size(); }

 private:
  std::map<Key, Value> map_;
  std::vector<typename std::map<Key, Value>::node_type> spare_;
};

}  // namespace ebb

#endif  // EBB_SERVER_REUSING_MAP_H_
