#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/lab/lab.h"
#include "engine/lab/progress.h"
#include "engine/lab/ranks.h"
#include "engine/lab/statistics.h"
#include "engine/lab/table.h"
#include "engine/lab/windows.h"
#include "policies/hash_random.h"
#include "policies/status.h"

namespace ebb::lab {
namespace {

struct QueriesOptions {
  std::string model = {};
  TextWindows text = {.block = 128, .window = 512, .windows = 8};
  std::vector<double> shares = {0.01, 0.05, 0.2};
  double keep = 0.2;
  int64_t seed = 0;
  TableForm form = TableForm::kText;
};

constexpr int32_t kQueriesMax = 512;  // that the scorer `semantic` remembers

using Scores = std::vector<std::vector<double>>;  // [lane][token]: attention received from some queries

Scores ScoresOf(const Engine& engine, const Session& session) {
  Scores scores;
  const auto lanes = engine.Describe(session, {}, {});
  for (const LaneReport& lane : *lanes) {
    std::vector<double>& of = scores.emplace_back(session.log().size());
    for (size_t i = 0; i < lane.slots.size(); ++i) of[static_cast<size_t>(lane.tokens[i])] = lane.scores[i];
  }
  return scores;
}

absl::StatusOr<std::unique_ptr<Session>> OpenSession(Engine& engine, PolicySpec spec, const QueriesOptions& options) {
  spec.budget = options.text.window;
  spec.schedule = Schedule::kEveryStep;
  spec.kv_type = KvType::kF32;
  EBB_ASSIGN(const ValidSpec policy, Resolve(spec, LimitsOf(engine.config())));
  return engine.OpenSession({.policy = policy, .block_size_max = options.text.block});
}

void Feed(Engine& engine, Session& session, std::span<const int32_t> tokens, int32_t block) {
  for (size_t first = 0; first < tokens.size(); first += static_cast<size_t>(block)) {
    BatchRow row = {
        .session = &session,
        .tokens = tokens.subspan(first, std::min<size_t>(static_cast<size_t>(block), tokens.size() - first))};
    engine.Run({&row, 1});
  }
}

// What the queries that `semantic` names give each token: of largest norm, and the newest.
absl::StatusOr<Scores> Named(Engine& engine, const Window& window, double largest, double newest,
                             const QueriesOptions& options) {
  const PolicySpec spec = {
      .scorer = "semantic",
      .parameters = {{"semantic_ratio", largest}, {"recent_ratio", newest}, {"rows_max", kQueriesMax}}};
  EBB_ASSIGN(const auto session, OpenSession(engine, spec, options));
  Feed(engine, *session, window, options.text.block);
  return ScoresOf(engine, *session);
}

// What `count` queries drawn at random give each token: of `tova`, whose scores are the newest query's attention.
absl::StatusOr<Scores> Drawn(Engine& engine, const Window& window, int64_t count, uint64_t draw,
                             const QueriesOptions& options) {
  HashRandom random(static_cast<uint64_t>(options.seed), draw);
  std::vector<size_t> order(window.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::set<size_t> drawn;
  for (int64_t i = 0; i < count; ++i) {
    const auto pick =
        static_cast<size_t>(random.Uniform(static_cast<int32_t>(i), static_cast<int32_t>(order.size()) - 1));
    std::swap(order[static_cast<size_t>(i)], order[pick]);
    drawn.insert(order[static_cast<size_t>(i)]);
  }
  EBB_ASSIGN(const auto session, OpenSession(engine, {.scorer = "tova"}, options));
  Scores sums;
  size_t fed = 0;
  for (const size_t query : drawn) {
    Feed(engine, *session, std::span(window).subspan(fed, query + 1 - fed), options.text.block);
    fed = query + 1;
    const Scores row = ScoresOf(engine, *session);
    sums.resize(row.size(), std::vector<double>(window.size()));
    for (size_t lane = 0; lane < row.size(); ++lane) {
      for (size_t token = 0; token < row[lane].size(); ++token) sums[lane][token] += row[lane][token];
    }
  }
  return sums;
}

struct Likeness {
  double correlation = 0;  // Spearman's, mean over lanes
  double kept = 0;         // share of the tokens that both would keep, mean over lanes
};

Likeness LikenessOf(const Scores& few, const Scores& all, double keep) {
  Likeness likeness;
  for (size_t lane = 0; lane < all.size(); ++lane) {
    const double part = 1.0 / static_cast<double>(all.size());
    likeness.correlation += part * Spearman(few[lane], all[lane]);
    likeness.kept +=
        part * SharedTop(few[lane], all[lane], static_cast<size_t>(keep * static_cast<double>(all[lane].size())));
  }
  return likeness;
}

absl::Status RunQueries(const Lab& lab, const QueriesOptions& options) {
  EBB_ASSIGN(const std::unique_ptr<Engine> engine, lab.Open(options.model));
  EBB_TRY(RefuseWindows(*engine, "queries"));
  EBB_ASSIGN(const std::vector<Window> windows, CutWindows(engine->tokenizer(), options.text));
  constexpr const char* kKinds[] = {"largest norm", "newest", "random"};
  // [share][kind][window]
  std::vector<std::vector<std::vector<double>>> correlation(options.shares.size(),
                                                            std::vector<std::vector<double>>(std::size(kKinds)));
  auto kept = correlation;
  Progress progress(static_cast<int64_t>(windows.size() * options.shares.size()));
  for (size_t w = 0; w < windows.size(); ++w) {
    EBB_ASSIGN(const Scores all, Named(*engine, windows[w], 1, 0, options));
    for (size_t s = 0; s < options.shares.size(); ++s) {
      const double share = options.shares[s];
      const auto count = static_cast<int64_t>(std::ceil(share * static_cast<double>(windows[w].size())));
      std::vector<Scores> few;
      EBB_ASSIGN(few.emplace_back(), Named(*engine, windows[w], share, 0, options));
      EBB_ASSIGN(few.emplace_back(), Named(*engine, windows[w], 0, share, options));
      EBB_ASSIGN(few.emplace_back(), Drawn(*engine, windows[w], count, w, options));
      for (size_t kind = 0; kind < few.size(); ++kind) {
        const Likeness likeness = LikenessOf(few[kind], all, options.keep);
        correlation[s][kind].push_back(likeness.correlation);
        kept[s][kind].push_back(likeness.kept);
      }
      progress.Add(1, absl::StrFormat("%g of the queries", share));
    }
  }
  progress.Clear();
  Table table = {.header = {"queries", "share", "rank correlation", "kept alike"}};
  for (size_t s = 0; s < options.shares.size(); ++s) {
    for (size_t kind = 0; kind < std::size(kKinds); ++kind) {
      const Mean rank = MeanOf(correlation[s][kind]);
      const Mean alike = MeanOf(kept[s][kind]);
      table.rows.push_back(
          {kKinds[kind], absl::StrFormat("%g", options.shares[s]), PlusMinus(rank, 3), PlusMinus(alike, 3)});
      if (lab.json) {
        const nlohmann::json line = {{"queries", kKinds[kind]},   {"share", options.shares[s]},
                                     {"correlation", rank.value}, {"correlation_half", rank.half_width},
                                     {"kept", alike.value},       {"kept_half", alike.half_width}};
        absl::PrintF("%s\n", line.dump());
      }
    }
  }
  if (!lab.json) absl::PrintF("%s", Format(table, options.form));
  return absl::OkStatus();
}

}  // namespace

void AddQueries(Command app, Lab& lab) {
  const Command command =
      app.add_subcommand("queries", "Whether a few queries speak for all: of largest norm, the newest, or drawn");
  const auto options = std::make_shared<QueriesOptions>();
  command.add_option("FILE", options->model, "Model file (GGUF)").required();
  AddTextOptions(command, options->text);
  command.get_option("--window").range(4, kQueriesMax);
  command.add_option("--shares", options->shares, "Of all queries, that speak")
      .delimiter(',')
      .range(0.0, 1.0)
      .capture_default_str();
  command.add_option("--keep", options->keep, "Share of the tokens that would be kept")
      .range(0.0, 1.0)
      .capture_default_str();
  command.add_option("--seed", options->seed, "Of the draw").non_negative().capture_default_str();
  AddTableOptions(command, options->form);
  AddComputeOptions(command, lab);
  command.footer(
      "SemanticKV's claim. Each window of the text is read with nothing evicted; what each token received from a few\n"
      "queries is compared with what it received from all. rank correlation: Spearman's; kept alike: the share of the\n"
      "best --keep tokens by the one that are also best by the other. Means over lanes, then windows, with Student's\n"
      "95 % intervals.");
  command.callback([&lab, options] { lab.Check(RunQueries(lab, *options)); });
}

}  // namespace ebb::lab
