#include "engine/lab/plot.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "policies/check.h"

namespace ebb::lab {
namespace {

// Lengths in SVG units.
constexpr double kNames = 190;
constexpr double kPanel = 140;
constexpr double kGap = 24;
constexpr double kTop = 64;
constexpr double kLine = 18;
constexpr double kBottom = 32;

// Light to dark, so that they are told apart without color too.
constexpr std::string_view kColors[] = {"#f0a04b", "#c2405a", "#4b2a6b", "#101020"};

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string Text(double x, double y, std::string_view anchor, const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, Escaped(text));
}

std::string Rule(double x1, double y1, double x2, double y2, std::string_view color) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", x1, y1, x2, y2,
                         color);
}

struct Axis {
  double min = 0;
  double max = 1;

  double At(double value, double left) const {
    return left + kPanel * (std::clamp(value, min, max) - min) / (max - min);
  }
};

Axis AxisOf(const Panel& panel) {
  Axis axis = {.min = panel.min, .max = panel.max};
  if (panel.min != panel.max || panel.dots.empty()) return panel.min == panel.max ? Axis() : axis;
  axis = {.min = panel.dots.front().value, .max = panel.dots.front().value};
  for (const Dot& dot : panel.dots) {
    for (const double value : {dot.value, dot.interval.low, dot.interval.high}) {
      if (!std::isfinite(value)) continue;
      axis.min = std::min(axis.min, value);
      axis.max = std::max(axis.max, value);
    }
  }
  if (axis.min == axis.max) axis.max = axis.min + 1;
  return axis;
}

std::string_view ColorOf(size_t series) { return kColors[std::min(series, std::size(kColors) - 1)]; }

std::string DrawPanel(const Panel& panel, const Plot& plot, double left, double height) {
  const Axis axis = AxisOf(panel);
  const auto series = static_cast<double>(std::max<size_t>(plot.series.size(), 1));
  std::string svg = Text(left + kPanel / 2, kTop - 10, "middle", panel.title);
  for (const double at : {axis.min, (axis.min + axis.max) / 2, axis.max}) {
    const double x = axis.At(at, left);
    svg += Rule(x, kTop, x, height - kBottom, "#dddddd");
    svg += Text(x, height - kBottom + 14, "middle", absl::StrFormat("%.3g", at));
  }
  for (const Dot& dot : panel.dots) {
    EBB_CHECK(dot.row < plot.rows.size());
    EBB_CHECK(dot.series < plot.series.size());
    EBB_CHECK(std::isfinite(dot.value));
    const double within = (static_cast<double>(dot.series) + 0.5) / series - 0.5;
    const double y = kTop + kLine * (static_cast<double>(dot.row) + 0.5 + 0.7 * within);
    if (std::isfinite(dot.interval.low) && std::isfinite(dot.interval.high)) {
      svg += Rule(axis.At(dot.interval.low, left), y, axis.At(dot.interval.high, left), y, ColorOf(dot.series));
    }
    svg += absl::StrFormat("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.4\" fill=\"%s\"/>\n", axis.At(dot.value, left), y,
                           ColorOf(dot.series));
  }
  return svg;
}

}  // namespace

std::string Svg(const Plot& plot) {
  const double width = kNames + (kPanel + kGap) * static_cast<double>(plot.panels.size()) + kGap;
  const double height = kTop + kLine * static_cast<double>(plot.rows.size()) + kBottom;
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
      width, height, width, height);
  svg += Text(kGap, 22, "start", plot.title);
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const double x = kGap + 70 * static_cast<double>(i);
    svg += absl::StrFormat("<circle cx=\"%.1f\" cy=\"40\" r=\"3\" fill=\"%s\"/>\n", x, ColorOf(i));
    svg += Text(x + 8, 44, "start", plot.series[i]);
  }
  for (size_t i = 0; i < plot.rows.size(); ++i) {
    const double y = kTop + kLine * static_cast<double>(i);
    if (i % 2 == 0) {
      svg += absl::StrFormat("<rect x=\"0\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"#f6f6f6\"/>\n", y, width,
                             kLine);
    }
    svg += Text(kNames - 8, y + kLine / 2 + 4, "end", plot.rows[i]);
  }
  for (size_t i = 0; i < plot.panels.size(); ++i) {
    svg += DrawPanel(plot.panels[i], plot, kNames + (kPanel + kGap) * static_cast<double>(i) + kGap / 2, height);
  }
  return svg + "</svg>\n";
}

}  // namespace ebb::lab
