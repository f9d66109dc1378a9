// What an edit of a warm cache costs against reading the text again, and how far each mode is from that.
//
//   build/release/tests/bench/edit_bench models/ebb-tiny-q8_0.gguf models/text/persuasion.txt 4096 [960 ...]
//
// A typing session: the first tokens of the text, so many as a number says, are a file that a session of `full` holds.
// A sentence is typed into it, a character at a time, after a tenth, half and nine tenths of it. After every keystroke
// the whole file is tokenized, what changed from the log is one span, and each mode edits a session of its own, which
// so gathers what is stale. Then the text that follows the file, 32 tokens, is run behind each session as a draft that
// is forgotten again: its next-token distributions are compared with those behind the session of RECOMPUTE_TAIL, whose
// every edit is EXACT. Times are of Engine calls alone, medians over the keystrokes; reading again is a fresh session
// that is fed the whole file in blocks.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/divergence.h"
#include "engine/engine.h"
#include "policies/status.h"
#include "tests/bench/bandwidth.h"
#include "tests/bench/rounds.h"

namespace ebb {
namespace {

constexpr int32_t kBlock = 128;
constexpr int32_t kAhead = 32;
const int kReadings = Rounds(3);
constexpr std::string_view kTyped = " She had not seen him.";

struct Mode {
  const char* name;
  EditMode mode;
  int32_t window;
};
constexpr Mode kModes[] = {{"tail", EditMode::kRecomputeTail, 0},
                           {"span, window 256", EditMode::kRecomputeSpan, 256},
                           {"span, window 64", EditMode::kRecomputeSpan, 64},
                           {"reposition", EditMode::kReposition, 0}};

struct Series {
  std::vector<double> seconds = {}, run = {};
  double kl = 0;
  int64_t agreed = 0, compared = 0;
};

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  std::exit(1);
}

ptrdiff_t First(std::span<const float> logits) { return std::ranges::max_element(logits) - logits.begin(); }

class Typing {
 public:
  Typing(Engine& engine, const std::string& text, int32_t tokens) : engine_(engine) {
    const std::vector<int32_t> all = Tokens(text);
    if (static_cast<int32_t>(all.size()) < tokens + kAhead) {
      std::fprintf(stderr, "the text has %zu tokens\n", all.size());
      std::exit(1);
    }
    file_ = engine.tokenizer().Decode(std::span(all).first(tokens));
    ahead_.assign(all.begin() + tokens, all.begin() + tokens + kAhead);
    const PolicySpec spec = {.scorer = "full", .budget = tokens + 4 * kBlock};
    policy_ = OrDie(Resolve(spec, LimitsOf(engine.config())));
  }

  void Run(double at) {
    std::string file = file_;
    auto cursor = static_cast<size_t>(at * static_cast<double>(file.size()));
    std::vector<int32_t> log = Tokens(file);
    std::vector<std::unique_ptr<Session>> sessions;
    for ([[maybe_unused]] const Mode& mode : kModes) sessions.push_back(Read(log));
    std::vector<Series> series(std::size(kModes));
    for (const char typed : kTyped.substr(0, IsShort() ? 2 : kTyped.size())) {
      file.insert(cursor++, 1, typed);
      const std::vector<int32_t> next = Tokens(file);
      const EditSpan span = Changed(log, next);
      std::vector<float> exact;
      for (size_t i = 0; i < sessions.size(); ++i) {
        Edit(*sessions[i], {.spans = {span}, .mode = kModes[i].mode, .window = kModes[i].window}, series[i]);
        const std::vector<float> ahead = LookAhead(*sessions[i]);
        if (i == 0) exact = ahead;
        Compare(exact, ahead, series[i]);
      }
      log = next;
    }
    std::vector<double> readings;
    for (int i = 0; i < kReadings; ++i) {
      const double begin = Seconds();
      Read(log);
      readings.push_back(Seconds() - begin);
    }
    Print(at, static_cast<int32_t>(log.size()), Median(readings), series);
  }

 private:
  std::vector<int32_t> Tokens(const std::string& text) const {
    return engine_.tokenizer().Encode(text, Special::kPlain, Start::kSequence);
  }

  std::unique_ptr<Session> Read(const std::vector<int32_t>& log) {
    auto session = OrDie(engine_.OpenSession({.policy = policy_, .block_size_max = kBlock}));
    RunBlocks(*session, log);
    return session;
  }

  void RunBlocks(Session& session, const std::vector<int32_t>& tokens) {
    for (size_t done = 0; done < tokens.size(); done += kBlock) {
      const size_t size = std::min<size_t>(kBlock, tokens.size() - done);
      BatchRow row = {.session = &session,
                      .tokens = std::span(tokens).subspan(done, size),
                      .want = done + size == tokens.size() ? Want::kLast : Want::kNone};
      engine_.Run({&row, 1});
    }
  }

  static EditSpan Changed(const std::vector<int32_t>& from, const std::vector<int32_t>& to) {
    const auto [a, b] = std::ranges::mismatch(from, to);
    const auto same = static_cast<int32_t>(a - from.begin());
    int32_t tail = 0;
    const auto shorter = static_cast<int32_t>(std::min(from.size(), to.size()));
    while (tail < shorter - same && from[from.size() - 1 - tail] == to[to.size() - 1 - tail]) ++tail;
    return {
        .start = same, .end = static_cast<int32_t>(from.size()) - tail, .tokens = {to.begin() + same, to.end() - tail}};
  }

  void Edit(Session& session, const EditRequest& request, Series& series) {
    const double begin = Seconds();
    const EditPlan plan = OrDie(engine_.PlanEdit(session, request));
    engine_.BeginEdit(session, plan);
    RunBlocks(session, plan.WorkTokens());
    series.seconds.push_back(Seconds() - begin);
    series.run.push_back(static_cast<double>(plan.work.size()));
  }

  std::vector<float> LookAhead(Session& session) {
    BatchRow row = {.session = &session, .tokens = ahead_, .want = Want::kAll, .draft = true};
    engine_.Run({&row, 1});
    std::vector<float> logits(row.logits.begin(), row.logits.end());
    BatchRow verdict = {.session = &session};
    engine_.Accept(verdict, 0);
    return logits;
  }

  void Compare(std::span<const float> exact, std::span<const float> logits, Series& series) const {
    const auto vocab = static_cast<size_t>(engine_.config().vocab);
    for (size_t row = 0; row < exact.size(); row += vocab) {
      const std::span<const float> p = exact.subspan(row, vocab), q = logits.subspan(row, vocab);
      series.kl += KlDivergence(p, q);
      series.agreed += First(p) == First(q) ? 1 : 0;
      ++series.compared;
    }
  }

  static void Print(double at, int32_t tokens, double reading, const std::vector<Series>& all) {
    for (size_t i = 0; i < all.size(); ++i) {
      const Series& series = all[i];
      const double seconds = Median(series.seconds);
      const auto compared = static_cast<double>(series.compared);
      std::printf("%6d  %3.0f %%  %-17s %7.0f  %9.2f  %9.1fx  %8.2f %%  %9.5f\n", tokens, 100 * at, kModes[i].name,
                  Median(series.run), 1e3 * seconds, reading / seconds,
                  100 * static_cast<double>(series.agreed) / compared, series.kl / compared);
    }
    std::printf("%6d  %3.0f %%  %-17s %7d  %9.2f\n", tokens, 100 * at, "read again", tokens, 1e3 * reading);
    std::fflush(stdout);
  }

  Engine& engine_;
  ValidSpec policy_ = {};
  std::string file_ = {};
  std::vector<int32_t> ahead_ = {};
};

void Main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: edit_bench MODEL TEXT TOKENS...\n");
    std::exit(2);
  }
  auto engine = OrDie(Engine::Open({.model_path = argv[1], .arena_bytes = int64_t{512} << 20}));
  std::ifstream file(argv[2], std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::printf("%s, %d threads, trained for %d positions\n", engine->fingerprint().c_str(), engine->threads(),
              engine->config().context);
  std::printf("tokens  typed  %-17s %7s  %9s  %10s  %10s  %9s\n", "mode", "run", "ms", "faster", "top-1", "KL, nats");
  for (int i = 3; i < argc; ++i) {
    Typing typing(*engine, text, std::atoi(argv[i]));
    for (const double at : {0.1, 0.5, 0.9}) typing.Run(at);
  }
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) { ebb::Main(argc, argv); }
