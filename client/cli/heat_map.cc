#include "client/cli/heat_map.h"

#include <png.h>

#include <algorithm>
#include <cmath>

namespace ebb::cli {
namespace {

// Turns the means of the cells that have one into their ranks, ties sharing the highest.
void RankCells(const std::vector<double>& means, const std::vector<uint64_t>& counted, std::vector<double>& cells) {
  std::vector<double> sorted;
  for (size_t cell = 0; cell < cells.size(); ++cell) {
    if (counted[cell] > 0) sorted.push_back(means[cell]);
  }
  std::ranges::sort(sorted);
  for (size_t cell = 0; cell < cells.size(); ++cell) {
    if (counted[cell] == 0) continue;
    const auto rank = std::ranges::upper_bound(sorted, means[cell]) - sorted.begin();
    cells[cell] = static_cast<double>(rank) / static_cast<double>(sorted.size());
  }
}

std::vector<double> KeptCells(const v1::LaneDescription& lane, uint64_t tokens, uint32_t stride, size_t columns) {
  std::vector<double> cells(columns);
  for (const uint64_t token : lane.tokens()) cells[token * columns / tokens] += stride;
  for (size_t cell = 0; cell < columns; ++cell) {
    // Token t is in cell t * columns / tokens, rounded down.
    const auto first = [&](size_t c) { return (c * tokens + columns - 1) / columns; };
    cells[cell] = std::min(1.0, cells[cell] / static_cast<double>(first(cell + 1) - first(cell)));
  }
  return cells;
}

std::vector<double> ScoreCells(const v1::LaneDescription& lane, uint64_t tokens, size_t columns) {
  std::vector<double> cells(columns), means(columns);
  std::vector<uint64_t> counted(columns);
  for (int i = 0; i < std::min(lane.tokens_size(), lane.scores_size()); ++i) {
    if (!std::isfinite(lane.scores(i))) continue;
    const size_t cell = lane.tokens(i) * columns / tokens;
    means[cell] += lane.scores(i);
    ++counted[cell];
  }
  for (size_t cell = 0; cell < columns; ++cell) {
    if (counted[cell] > 0) means[cell] /= static_cast<double>(counted[cell]);
  }
  RankCells(means, counted, cells);
  return cells;
}

struct Pixel {
  png_byte red = 255, green = 255, blue = 255;
};

Pixel ColorOf(double cell) {
  const auto mix = [&](double full) { return static_cast<png_byte>(std::lround(255 + cell * (full - 255))); };
  return {mix(8), mix(48), mix(107)};
}

}  // namespace

std::vector<HeatRow> HeatMap(const v1::DescribeCacheResponse& cache, uint32_t stride, Shade shade, size_t columns) {
  const uint64_t tokens = cache.session_tokens();
  columns = std::min<size_t>(columns, tokens);
  std::vector<HeatRow> rows;
  for (const v1::LaneDescription& lane : cache.lanes()) {
    rows.push_back({.layer = lane.layer(), .head = lane.head(), .length = lane.length(), .capacity = lane.capacity()});
    if (columns == 0) continue;
    rows.back().cells =
        shade == Shade::kKept ? KeptCells(lane, tokens, stride, columns) : ScoreCells(lane, tokens, columns);
  }
  return rows;
}

std::string HeatText(const HeatRow& row) {
  static const char* const kShades[] = {" ", "░", "▒", "▓", "█"};
  std::string text;
  for (const double cell : row.cells) text += kShades[static_cast<size_t>(std::ceil(cell * 4))];
  return text;
}

std::string WriteHeatPng(const std::vector<HeatRow>& rows, const std::string& path) {
  constexpr size_t kWidthMin = 512;
  constexpr size_t kBand = 12;
  constexpr size_t kLine = 1;
  constexpr size_t kLayerLine = 4;
  const size_t columns = rows.front().cells.size();
  const size_t widened = (kWidthMin + columns - 1) / columns;
  const size_t width = columns * widened;
  const Pixel grey = {160, 160, 160};
  std::vector<Pixel> pixels;
  const HeatRow* above = nullptr;
  for (const HeatRow& row : rows) {
    const size_t line = above == nullptr ? 0 : above->layer == row.layer ? kLine : kLayerLine;
    pixels.insert(pixels.end(), line * width, grey);
    std::vector<Pixel> band;
    for (const double cell : row.cells) band.insert(band.end(), widened, ColorOf(cell));
    for (size_t i = 0; i < kBand; ++i) pixels.insert(pixels.end(), band.begin(), band.end());
    above = &row;
  }
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(pixels.size() / width);
  image.format = PNG_FORMAT_RGB;
  if (png_image_write_to_file(&image, path.c_str(), 0, pixels.data(), 0, nullptr) == 0) return image.message;
  return {};
}

}  // namespace ebb::cli
