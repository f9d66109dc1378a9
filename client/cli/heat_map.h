// What a cache holds as a picture: one row per lane, the log from left to right, cut into equal cells.

#ifndef EBB_CLIENT_CLI_HEAT_MAP_H_
#define EBB_CLIENT_CLI_HEAT_MAP_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ebb/v1/eviction.pb.h"

namespace ebb::cli {

// What a cell's shade says.
enum class Shade {
  kKept,   // the share of its tokens that live
  kScore,  // the rank of the mean keep score of its live tokens among the lane's cells; 1 is the highest
};

struct HeatRow {
  uint32_t layer = 0;
  uint32_t head = 0;
  uint32_t length = 0;             // live tokens
  uint32_t capacity = 0;           // slots reserved
  std::vector<double> cells = {};  // 0 where nothing lives, else in (0, 1]
};

// At most `columns` cells a row, and no more than the log has tokens; none for an empty log. `stride` is that of the
// request: each entry of `cache` stands for so many. Scores that are not finite, or that the policy does not have, give
// cells of 0.
std::vector<HeatRow> HeatMap(const v1::DescribeCacheResponse& cache, uint32_t stride, Shade shade, size_t columns);

// The row as text: one character a cell, of five shades.
std::string HeatText(const HeatRow& row);

// Writes the rows as a PNG of 8-bit RGB: bands of equal height, a thin line between heads and a thicker one between
// layers; white is 0, dark blue 1. Cells are widened until a row has at least 512 pixels. Returns what went wrong,
// empty if nothing. REQUIRES: at least one row with cells.
std::string WriteHeatPng(const std::vector<HeatRow>& rows, const std::string& path);

}  // namespace ebb::cli

#endif  // EBB_CLIENT_CLI_HEAT_MAP_H_
