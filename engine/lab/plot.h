// A plot of many rows under a few measures, as SVG: a column for each measure, a line for each row, a dot with its
// interval for each series.

#ifndef EBB_ENGINE_LAB_PLOT_H_
#define EBB_ENGINE_LAB_PLOT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/lab/statistics.h"

namespace ebb::lab {

struct Dot {
  size_t row = 0;
  size_t series = 0;
  double value = 0;
  Interval interval = {};
};

struct Panel {
  std::string title = {};
  // The axis. Equal: from the dots' values and what of their intervals is finite.
  double min = 0;
  double max = 0;
  std::vector<Dot> dots = {};
};

struct Plot {
  std::string title = {};
  std::vector<std::string> rows = {};    // names, top to bottom
  std::vector<std::string> series = {};  // names in the legend, light to dark
  std::vector<Panel> panels = {};
};

// A whole SVG document; what lies beyond an axis is drawn at its end. REQUIRES: dots name rows and series that there
// are, and values are finite.
std::string Svg(const Plot& plot);

}  // namespace ebb::lab

#endif  // EBB_ENGINE_LAB_PLOT_H_
