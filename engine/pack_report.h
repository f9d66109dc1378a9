// What became of a file that keeps packed weights (ops/cpu/pack_file.h) when a model was opened: for logs.

#ifndef EBB_ENGINE_PACK_REPORT_H_
#define EBB_ENGINE_PACK_REPORT_H_

#include <cstdint>
#include <string>

namespace ebb {

struct PackReport {
  std::string path = {};         // empty: no file was asked for
  int32_t read = 0, packed = 0;  // matrices that came from the file, and that were packed from the model
  std::string ignored = {};      // why a file that was there could not be used, or not all of it: where, and what was
                                 // expected; empty: all of it was, or there was none
  bool written = false;          // there is a new file
  std::string not_written = {};  // why there is none though there should be; empty: no fault
};

}  // namespace ebb

#endif  // EBB_ENGINE_PACK_REPORT_H_
