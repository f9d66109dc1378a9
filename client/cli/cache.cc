#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/cli/shell.h"
#include "client/cli/terminal.h"

namespace ebb::cli {
namespace {

// Which part of the log a lane still holds: the log cut into `width` cells, each shaded by the share of its tokens that
// live.
std::string KeptMap(const v1::LaneDescription& lane, uint64_t session_tokens, uint32_t stride, size_t width) {
  static const char* const kShades[] = {" ", "░", "▒", "▓", "█"};
  if (session_tokens == 0) return {};
  width = std::min<size_t>(width, session_tokens);
  std::vector<uint64_t> kept(width, 0);
  for (const uint64_t token : lane.tokens()) kept[token * width / session_tokens] += stride;
  std::string map;
  for (size_t cell = 0; cell < width; ++cell) {
    const uint64_t size = (cell + 1) * session_tokens / width - cell * session_tokens / width;
    const uint64_t shade = kept[cell] == 0 ? 0 : 1 + std::min<uint64_t>(3, kept[cell] * 4 / (size + 1));
    map += kShades[shade];
  }
  return map;
}

void Print(const v1::DescribeCacheResponse& cache, uint32_t stride) {
  constexpr size_t kWidth = 72;
  std::printf("%u layers of %u KV heads; %llu tokens in the log, capacity %u per lane\n", cache.layers(), cache.heads(),
              static_cast<unsigned long long>(cache.session_tokens()), cache.capacity());
  std::printf("%s\n", Styled("1", "LAYER HEAD  LIVE  KEPT, from the first token of the log to the last").c_str());
  for (const v1::LaneDescription& lane : cache.lanes()) {
    std::printf("%5u %4u %5u  |%s|\n", lane.layer(), lane.head(), lane.length(),
                KeptMap(lane, cache.session_tokens(), stride, kWidth).c_str());
  }
}

}  // namespace

void AddCache(CLI::App& app, Shell& shell) {
  CLI::App* command = app.add_subcommand("cache", "What a session's cache holds, lane by lane");
  struct Flags {
    std::string id;
    std::optional<uint32_t> layer, head, stride;
  };
  auto flags = std::make_shared<Flags>();
  command->add_option("id", flags->id, "Session")->required();
  command->add_option("--layer", flags->layer, "Only this layer");
  command->add_option("--head", flags->head, "Only this KV head");
  command->add_option("--stride", flags->stride, "Every n-th live slot");
  command->callback([&shell, flags] {
    client::Client client = shell.Connect();
    v1::DescribeCacheRequest request;
    request.set_session(SessionName(flags->id));
    if (flags->layer) request.set_layer(*flags->layer);
    if (flags->head) request.set_head(*flags->head);
    if (flags->stride) request.set_stride(*flags->stride);
    v1::DescribeCacheResponse response;
    if (!shell.Check(client.DescribeCache(request, &response))) return;
    shell.json ? shell.PrintJson(response) : Print(response, flags->stride.value_or(1));
  });
}

}  // namespace ebb::cli
