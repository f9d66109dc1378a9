#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/cli/heat_map.h"
#include "client/cli/shell.h"
#include "client/cli/terminal.h"

namespace ebb::cli {
namespace {

constexpr size_t kPictureColumns = 2048;

struct CacheFlags {
  std::string id = {};
  std::optional<uint32_t> layer = {}, head = {}, stride = {};
  std::string shade = "kept";
  std::string png = {};
};

void Print(const v1::DescribeCacheResponse& cache, const CacheFlags& flags, Shade shade) {
  constexpr size_t kBeside = 27;  // what stands beside a row's cells
  constexpr size_t kColumnsMin = 20;
  const size_t terminal = StdoutColumns();
  const size_t columns = terminal > kBeside + kColumnsMin ? terminal - kBeside : kColumnsMin;
  std::printf("%u layers of %u KV heads; %llu tokens in the log, capacity %u in the largest lane\n", cache.layers(),
              cache.heads(), static_cast<unsigned long long>(cache.session_tokens()), cache.capacity());
  const std::string what = shade == Shade::kKept ? "KEPT" : "KEEP SCORE, BY RANK";
  std::printf("%s\n", Styled("1", absl::StrFormat(
                                      "LAYER HEAD  LIVE SLOTS   %s, from the first token of the log to the last", what))
                          .c_str());
  for (const HeatRow& row : HeatMap(cache, flags.stride.value_or(1), shade, columns)) {
    std::printf("%5u %4u %5u %5u  |%s|\n", row.layer, row.head, row.length, row.capacity, HeatText(row).c_str());
  }
}

void Describe(Shell& shell, const CacheFlags& flags) {
  client::Client client = shell.Connect();
  v1::DescribeCacheRequest request;
  request.set_session(SessionName(flags.id));
  if (flags.layer) request.set_layer(*flags.layer);
  if (flags.head) request.set_head(*flags.head);
  if (flags.stride) request.set_stride(*flags.stride);
  v1::DescribeCacheResponse response;
  if (!shell.Check(client.DescribeCache(request, &response))) return;
  const Shade shade = flags.shade == "score" ? Shade::kScore : Shade::kKept;
  if (!flags.png.empty()) {
    const std::vector<HeatRow> rows = HeatMap(response, flags.stride.value_or(1), shade, kPictureColumns);
    if (rows.empty() || rows.front().cells.empty()) return shell.Misused("--png: the session's log is empty");
    const std::string wrong = WriteHeatPng(rows, flags.png);
    if (!wrong.empty()) return shell.Misused(absl::StrFormat("--png: cannot write '%s': %s", flags.png, wrong));
  }
  shell.json ? shell.PrintJson(response) : Print(response, flags, shade);
}

}  // namespace

void AddCache(Command app, Shell& shell) {
  const Command command = app.add_subcommand("cache", "What a session's cache holds, lane by lane, as a heat map");
  auto flags = std::make_shared<CacheFlags>();
  command.add_option("id", flags->id, "Session").required();
  command.add_option("--layer", flags->layer, "Only this layer");
  command.add_option("--head", flags->head, "Only this KV head");
  command.add_option("--stride", flags->stride, "Every n-th live slot");
  command.add_option("--shade", flags->shade, "By the share of tokens kept, or by keep score (rank within the lane)")
      .one_of({"kept", "score"})
      .capture_default_str();
  command.add_option("--png", flags->png, "Also write the map to this file, as a PNG").type_name("FILE");
  command.footer(
      "Examples:\n"
      "  ebb cache tour --layer 0\n"
      "  ebb cache tour --shade score --png tour.png");
  command.callback([&shell, flags] { Describe(shell, *flags); });
}

}  // namespace ebb::cli
