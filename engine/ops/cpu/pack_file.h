// Packed weights kept in a file, so that the next start reads them instead of packing them again.
//
//   0      header: "EBBPACK\n", version and layout, whose model it is, where the table lies, checksums of both
//   4096   the matrices in the order in which a model packs them, each as PackedPanels holds it
//   end    table: of each matrix what it is, where it lies, its length and its checksum
//
// A file is used as far as it is whole and this model's: each matrix is told by its name, type, shape and first bytes,
// and summed while it is read. What does not fit is packed anew and the file written again, beside the old one, which
// it then replaces: whoever reads the old one keeps it. Nothing is forced to disk, since a file that a power cut tore
// is found out by its sums. Trouble with the file never is trouble of who asked: the report tells of it.
//
// The bytes are read into memory of our own, not mapped: there they lie on large pages, on the memory node of the
// thread that reads them at every step, and nobody who truncates the file can end the process.
//
// Used by one thread. Of several processes that would write at once, one does.

#ifndef EBB_ENGINE_OPS_CPU_PACK_FILE_H_
#define EBB_ENGINE_OPS_CPU_PACK_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/pack_report.h"
#include "engine/parallel.h"
#include "engine/tensor.h"

namespace ebb::cpu {

// One more whenever packed bytes mean something else (kernels.h): pack_file_test pins them.
inline constexpr uint32_t kPackLayout = 1;

// The model whose weights are packed. A changed file may have the same fingerprint, which reads only the beginnings of
// tensors; hence its size and the time of its last change.
struct PackedModel {
  std::string fingerprint = {};  // ModelFingerprint: 16 characters
  int64_t bytes = 0;
  int64_t changed = 0;  // in units of the file system's clock
};

class PackFile {
 public:
  // Looks at what is at `path`, without failing.
  PackFile(const std::string& path, const PackedModel& model);
  ~PackFile();
  PackFile(const PackFile&) = delete;
  PackFile& operator=(const PackFile&) = delete;

  // The matrix that is packed next, of the tensor. True: `to` holds it. False: pack it, and give it to Write before the
  // next is asked for. REQUIRES: to.size() is a multiple of 64.
  bool Read(const TensorView& tensor, std::span<std::byte> to, Parallel& parallel);
  void Write(const TensorView& tensor, std::span<const std::byte> packed, Parallel& parallel);

  // When all are packed: puts a new file in its place where one is due. Call it once.
  PackReport Finish();

 private:
  struct Entry {
    uint64_t what = 0;  // WhatIs the matrix
    int64_t at = 0, bytes = 0;
    uint64_t sum = 0;
  };
  struct Header;

  void ReadTable();
  void Ignore(const std::string& why);
  void StartWriting();
  void Append(uint64_t what, std::span<const std::byte> packed, uint64_t sum);
  void GiveUp(std::string_view call, int error);
  bool PutAll(std::span<const std::byte> bytes, int64_t at);
  int64_t end() const;

  std::string path_;
  PackedModel model_;
  PackReport report_;
  int old_ = -1;              // what there was, while it is read
  std::vector<Entry> found_;  // its table, empty where it is no use
  size_t next_ = 0;           // the matrix that is asked for next
  int new_ = -1;              // what is written, locked
  bool wants_new_ = false;
  std::vector<Entry> made_;  // its table so far
};

}  // namespace ebb::cpu

#endif  // EBB_ENGINE_OPS_CPU_PACK_FILE_H_
