// CRC-32 as zlib has it, by the processor's carry-less multiplication: snapshots and journals are checked with it.

#ifndef EBB_ENGINE_SNAPSHOT_CHECKSUM_H_
#define EBB_ENGINE_SNAPSHOT_CHECKSUM_H_

#include <libdeflate.h>

#include <cstddef>
#include <cstdint>

namespace ebb {

// Of all bytes that `before` is of (0: none), and these.
inline uint32_t Crc32(uint32_t before, const void* bytes, size_t size) {
  return size == 0 ? before : libdeflate_crc32(before, bytes, size);  // which takes no bytes at nullptr for a beginning
}

}  // namespace ebb

#endif  // EBB_ENGINE_SNAPSHOT_CHECKSUM_H_
