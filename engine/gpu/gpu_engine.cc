#include "engine/gpu/gpu_engine.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/gpu/step_bound.h"
#include "policies/check.h"
#include "policies/status.h"
#include "policies/trigger.h"

namespace ebb {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kLaneLoss = sizeof(gpu::LaneLoss);
constexpr int64_t kRowMass = sizeof(gpu::RowMass);

int32_t RoundUp(int32_t n, int32_t part) { return (n + part - 1) / part * part; }

// What grows by a session at a time is not to be had anew each time: memory twice as large, but for large memory.
int64_t WithRoomToGrow(int64_t bytes) {
  constexpr int64_t kLarge = int64_t{16} << 20;
  constexpr int64_t kPiece = int64_t{1} << 20;
  if (bytes > kLarge) return (bytes + kPiece - 1) / kPiece * kPiece;
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
}

// How many of the largest logits are found, so that options that differ a little have the same launches.
constexpr int32_t kLargestStep = 32;

}  // namespace

gpu::Element ElementOf(KvType type) {
  switch (type) {
    case KvType::kF32:
      return gpu::Element::kF32;
    case KvType::kF16:
      return gpu::Element::kF16;
    case KvType::kBf16:
      return gpu::Element::kBf16;
    case KvType::kInt8:
      return gpu::Element::kQ8;
    case KvType::kFp8:
      return gpu::Element::kFp8;
  }
  return gpu::Element::kBf16;
}

absl::StatusOr<std::unique_ptr<GpuSession>> GpuEngine::OpenSession(const ValidSpec& policy, int32_t block_max) {
  if (policy.kv_type != options_.kv_type) {
    return RefuseField("GPU_POLICY_UNSUPPORTED", "policy.kv_type", "another type than that of this GPU's arena");
  }
  OfSight<int32_t> slots;
  for (const GpuSight sight : kGpuSights) {
    Trigger trigger = policy.trigger_of(lanes_[sight].of_model);
    if (policy.schedule == Schedule::kOncePrompt) {
      trigger.budget = std::max({trigger.budget, policy.grow_max, model_.config.context});
    }
    const int64_t capacity =
        policy.evicts ? Capacity(trigger, block_max + std::max(policy.every_n - 1, 0)) : model_.config.context;
    slots[sight] = static_cast<int32_t>(std::min<int64_t>(capacity, INT32_MAX));
  }
  return OpenSession(policy, block_max, slots);
}

absl::StatusOr<std::unique_ptr<GpuSession>> GpuEngine::OpenSession(const ValidSpec& policy, int32_t block_max,
                                                                   const OfSight<int32_t>& slots) {
  EBB_TRY(gpu_->Use());
  return GpuSession::Open(*gpu_, pages_, policy, ShapeOf(block_max, slots));
}

GpuSession::Shape GpuEngine::ShapeOf(int32_t block_max, const OfSight<int32_t>& slots) const {
  const ModelConfig& c = model_.config;
  GpuSession::Shape shape = {.lanes = c.layers * c.kv_heads,
                             .block_max = block_max,
                             .queries = c.group() * c.head_dim,
                             .vocab = c.vocab,
                             .kinds = lanes_,
                             .order = order_};
  for (const GpuSight sight : kGpuSights) {
    shape.kinds[sight].slots = slots[sight];
    if (shape.kinds[sight].count > 0) shape.capacity = std::max(shape.capacity, slots[sight]);
  }
  return shape;
}

// Which lanes there are of each kind, and where they lie.
void GpuEngine::SortLanes() {
  const ModelConfig& c = model_.config;
  order_.resize(static_cast<size_t>(c.layers) * c.kv_heads);
  int32_t next = 0;
  for (const GpuSight sight : kGpuSights) {
    lanes_[sight].first = next;
    for (int32_t layer = c.layers - 1; layer >= 0; --layer) {
      if (SightOf(layer) == sight) lanes_[sight].of_model = layer * c.kv_heads;
    }
    for (int32_t lane = 0; lane < std::ssize(order_); ++lane) {
      if (SightOf(lane / c.kv_heads) == sight) order_[static_cast<size_t>(lane)] = next++;
    }
    lanes_[sight].count = next - lanes_[sight].first;
  }
}

GpuEngine::Step GpuEngine::Plan(std::span<const GpuRow> rows) const {
  Step step;
  for (size_t i = 0; i < rows.size(); ++i) step.order.push_back(i);
  std::ranges::stable_partition(step.order, [&](size_t i) { return rows[i].tokens.size() == 1; });
  for (const size_t i : step.order) {
    const GpuRow& row = rows[i];
    const auto count = static_cast<int32_t>(row.tokens.size());
    EBB_CHECK(row.session->CanAppend(count).ok());
    const int32_t first = step.rows;
    step.row_session.insert(step.row_session.end(), row.tokens.size(), step.session_count());
    int64_t told = 0, measured = 0;
    for (const GpuSight sight : kGpuSights) {
      gpu::SessionView view = row.session->View(first, {.tokens = count, .prompt_ends = row.prompt_ends}, sight);
      int32_t& slots_max = (count == 1 ? step.slots_max : step.block_slots_max)[sight];
      int32_t& strips = step.block_strips[sight];
      if (count > 1) view.first_strip = std::exchange(strips, strips + gpu::LaidStrips(view.slots));
      if (lanes_[sight].count > 0) {
        slots_max = std::max(slots_max, view.slots);
        step.spreads[sight] = step.spreads[sight] || view.spread > view.slots;
      }
      told += int64_t{lanes_[sight].count} * view.drop;
      measured += view.drop > 0 ? lanes_[sight].count : 0;
      step.sessions[sight].push_back(view);
    }
    const gpu::SessionView& view = step.sessions.of[0].back();  // in what follows its lanes are alike
    step.tokens.insert(step.tokens.end(), row.tokens.begin(), row.tokens.end());
    step.rows += count;
    const auto before = static_cast<int32_t>(step.wanted.size());
    for (int32_t t = row.want == GpuWant::kAll ? 0 : count - 1; t < count; ++t) step.wanted.push_back(first + t);
    const auto wanted = static_cast<int32_t>(step.wanted.size());
    if (row.want == GpuWant::kLast || row.want == GpuWant::kAll) {
      const bool goes_on = !step.copied.empty() && step.copied.back().first + step.copied.back().count == before;
      if (!goes_on) step.copied.push_back({.first = before});
      step.copied.back().count += wanted - before;
    }
    step.needs.resize(step.wanted.size());
    if (row.want == GpuWant::kFacts) {
      const int32_t largest = row.needs.largest;
      step.kept.push_back({.row = before, .room = row.session->logits_room()});
      EBB_CHECK(largest >= 1 && largest <= std::min(gpu::kLargestMax, model_.config.vocab));
      step.needs.back() = row.needs;
      step.facts_copied = wanted;
      step.largest = std::max(step.largest, largest);
      step.weighs = step.weighs || row.needs.temperature > 0;
    }
    if (view.modifier != gpu::ScoreModifier::kNone) step.tracks_modified = std::max(step.tracks_modified, view.tracks);
    step.reduces = step.reduces || view.tracks > 1;
    step.likens = step.likens || view.rule == gpu::ScoreRule::kKeyLikeness;
    step.draws = step.draws || view.rule == gpu::ScoreRule::kChance;
    step.left.push_back({.first = step.left_count, .count = row.tells ? told : 0});
    step.losses.push_back({.first = step.loss_count, .count = row.measures ? measured : 0});
    step.left_count += step.left.back().count;
    step.loss_count += step.losses.back().count;
    const bool observes = view.rule == gpu::ScoreRule::kSum || view.rule == gpu::ScoreRule::kLast;
    if (count == 1) {
      ++step.single;
      step.observes = step.observes || observes;
    } else {
      step.blocks_observe = step.blocks_observe || observes;
      step.block_tokens_max = std::max(step.block_tokens_max, count);
    }
  }
  step.measures = step.loss_count > 0;
  step.largest = std::min(RoundUp(step.largest, kLargestStep), model_.config.vocab);
  // Whole splits: a session that grows has the same launches for as many steps.
  for (int32_t& slots : step.slots_max.of) slots = gpu::SlotsOfAsManySplits(slots, gpu::kSplitSlots);
  for (int32_t& slots : step.block_slots_max.of) slots = RoundUp(slots, gpu::kStageSlots);
  return step;
}

absl::Status GpuEngine::Grow(Buffer& buffer, int64_t bytes) {
  if (buffer.memory.bytes() >= bytes) return absl::OkStatus();
  recordings_.clear();
  return Renew(buffer, bytes);
}

// Of what kernels find by SessionView alone, and so no recording names.
absl::Status GpuEngine::GrowTold(Buffer& buffer, int64_t bytes) {
  return buffer.memory.bytes() >= bytes ? absl::OkStatus() : Renew(buffer, WithRoomToGrow(bytes));
}

absl::Status GpuEngine::Renew(Buffer& buffer, int64_t bytes) {
  EBB_TRY(gpu_->Wait());  // what runs may use the former
  working_bytes_ -= buffer.memory.bytes();
  buffer.memory = {};
  EBB_ASSIGN(buffer.memory, gpu_->Allocate(bytes, "a step's activations"));
  working_bytes_ += bytes;
  grown_.insert(&buffer);
  return absl::OkStatus();
}

absl::StatusOr<bool> GpuEngine::LetGo() {
  EBB_TRY(gpu_->Use());
  EBB_TRY(gpu_->Wait());  // what runs may use them
  recordings_.clear();
  for (Buffer* const buffer : grown_) buffer->memory = {};
  grown_.clear();
  return std::exchange(working_bytes_, 0) > 0;
}

// For linear_rows, of whichever product wants most.
absl::Status GpuEngine::ReserveSplits(const Step& step) {
  const ModelConfig& c = model_.config;
  const auto wanted = static_cast<int32_t>(step.wanted.size());
  int64_t partials = 0, meetings = 0;
  const auto add = [&](std::initializer_list<int32_t> outputs, int32_t inputs, int32_t rows) {
    int32_t together = 0;  // or each alone, where types differ
    for (const int32_t of : outputs) {
      together += gpu::LinearTiles(of) * gpu::kLinearOutputs;
      partials = std::max(partials, gpu::LinearPartials(of, inputs, rows));
    }
    partials = std::max(partials, gpu::LinearPartials(together, inputs, rows));
    meetings = std::max(meetings, gpu::LinearMeetings(together, rows));
  };
  const int32_t q_dim = c.heads * c.head_dim;
  const int32_t kv_dim = c.kv_heads * c.head_dim;
  add({q_dim, kv_dim, kv_dim}, c.dim, step.single);
  add({c.dim}, q_dim, step.single);
  if (c.experts > 0) {
    add({c.experts}, c.dim, step.single);
  } else {
    add({c.ffn_dim, c.ffn_dim}, c.dim, step.single);
    add({c.dim}, c.ffn_dim, step.single);
  }
  add({c.vocab}, c.dim, wanted);
  EBB_TRY(Grow(linear_partial_, partials * kFloat));
  return GrowCounters(linear_arrived_, meetings);
}

absl::Status GpuEngine::ReserveExperts(const Step& step) {
  const ModelConfig& c = model_.config;
  const int32_t choices = step.rows * c.experts_used;
  EBB_TRY(Grow(router_scores_, RoomFor(step) * c.experts * kFloat));
  for (Buffer* const of_choices : {&expert_, &expert_weight_, &place_, &row_of_}) {
    EBB_TRY(Grow(*of_choices, int64_t{choices} * 4));
  }
  EBB_TRY(Grow(expert_tiles_, int64_t{gpu::ExpertTiles(choices, c.experts)} * int64_t{sizeof(gpu::ExpertTile)}));
  return Grow(parts_, int64_t{choices} * c.dim * kFloat);
}

// Of `count` numbers that kernels leave at 0.
absl::Status GpuEngine::GrowCounters(Buffer& buffer, int64_t count) {
  if (buffer.memory.bytes() >= count * 4) return absl::OkStatus();
  EBB_TRY(Grow(buffer, count * 4));
  const std::vector<int32_t> none(count, 0);
  return gpu_->CopyIn(std::span<const int32_t>(none), buffer.as<int32_t>());
}

// What a larger step left, or one of another kind, is not to keep a step from running that fits without it. Of one that
// does not, nothing stays.
absl::Status GpuEngine::Reserve(const Step& step) {
  absl::Status reserved = ReserveAll(step);
  if (!absl::IsResourceExhausted(reserved)) return reserved;
  EBB_TRY(LetGo().status());
  reserved = ReserveAll(step);
  if (absl::IsResourceExhausted(reserved)) EBB_TRY(LetGo().status());
  return reserved;
}

absl::Status GpuEngine::ReserveAll(const Step& step) {
  const ModelConfig& c = model_.config;
  const int64_t rows = step.rows;
  const int64_t heads = rows * c.heads;
  const int64_t singles = int64_t{step.single} * c.heads;
  const int32_t slots_max = std::ranges::max(step.slots_max.of);
  const int64_t partials =
      std::max(singles * gpu::SplitsOf(slots_max, gpu::kSplitSlots),
               heads * gpu::SplitsOf(std::ranges::max(step.block_slots_max.of), gpu::kBlockSplitSlots));
  const auto wanted = static_cast<int64_t>(step.wanted.size());
  EBB_TRY(Grow(sessions_, int64_t{2} * step.session_count() * int64_t{sizeof(gpu::SessionView)}));
  EBB_TRY(Grow(tokens_, rows * 4));
  EBB_TRY(Grow(row_session_, rows * 4));
  const int64_t room = RoomFor(step);
  EBB_TRY(Grow(x_, room * c.dim * kFloat));
  EBB_TRY(Grow(normed_, room * c.dim * kFloat));
  EBB_TRY(Grow(qkv_, room * (c.heads + 2 * c.kv_heads) * c.head_dim * kFloat));
  EBB_TRY(Grow(attended_, heads * c.head_dim * kFloat));
  const int64_t fed_forward = c.experts > 0 ? rows * c.experts_used : room;
  EBB_TRY(Grow(gate_, fed_forward * c.ffn_dim * kFloat));
  if (model_.layers[0].gate.bytes() > 0) EBB_TRY(Grow(up_, fed_forward * c.ffn_dim * kFloat));
  if (c.experts > 0) EBB_TRY(ReserveExperts(step));
  EBB_TRY(ReserveSplits(step));
  if (products_ && !step.decodes()) {
    EBB_TRY(Grow(rounded_, (room - step.single) * std::max({c.dim, c.heads * c.head_dim, c.ffn_dim}) * 2));
  }
  EBB_TRY(Grow(partial_sums_, partials * c.head_dim * kFloat));
  EBB_TRY(Grow(partial_stats_, partials * 2 * kFloat));
  EBB_TRY(Grow(stats_, heads * 2 * kFloat));
  EBB_TRY(GrowCounters(attend_arrived_, int64_t{step.single} * c.kv_heads));
  if (step.observes) EBB_TRY(Grow(scores_, singles * slots_max * kFloat));
  if (!step.decodes()) {
    const int64_t row_bytes = int64_t{2} * gpu::LaidTerms(ElementOf(options_.kv_type)) * c.head_dim;
    const int64_t strips = int64_t{std::ranges::max(step.block_strips.of)} * c.kv_heads;
    const int64_t tiles = c.kv_heads * gpu::LaidTiles(rows - step.single, c.group(), step.blocks());
    EBB_TRY(Grow(laid_q_, tiles * gpu::LaidTileWords(ElementOf(options_.kv_type), c.head_dim) * 4));
    EBB_TRY(Grow(laid_kv_, strips * gpu::kStripSlots * 2 * row_bytes));
    EBB_TRY(Grow(laid_position_, strips * gpu::kStripSlots * 4));
    EBB_TRY(Grow(laid_earliest_, strips * 4));
    EBB_TRY(Grow(laid_latest_, strips * 4));
  }
  EBB_TRY(Grow(logits_, wanted * c.vocab * kFloat));
  EBB_TRY(Grow(next_, wanted * 4));
  EBB_TRY(Grow(greedy_parts_, wanted * gpu::GreedyParts(c.vocab) * 8));
  EBB_TRY(GrowCounters(greedy_arrived_, wanted));
  const int64_t copied = step.copied.empty() ? 0 : step.copied.back().first + step.copied.back().count;
  HostRoom(host_inputs_, InputBytes(step));
  HostRoom(host_logits_, copied * c.vocab * kFloat);
  HostRoom(host_next_, wanted * 4);
  EBB_TRY(GrowTold(left_, step.left_count * 4));
  EBB_TRY(GrowTold(losses_, step.loss_count * kLaneLoss));
  HostRoom(host_left_, step.left_count * 4);
  HostRoom(host_losses_, step.loss_count * kLaneLoss);
  if (step.largest == 0) return absl::OkStatus();
  constexpr int64_t kPair = sizeof(gpu::TokenLogit);
  EBB_TRY(Grow(largest_, wanted * step.largest * kPair));
  EBB_TRY(Grow(largest_scratch_, wanted * gpu::LargestScratch(c.vocab, step.largest) * 8));
  HostRoom(host_largest_, int64_t{step.facts_copied} * step.largest * kPair);
  if (!step.weighs) return absl::OkStatus();
  EBB_TRY(Grow(needs_, static_cast<int64_t>(std::span(step.needs).size_bytes())));
  EBB_TRY(Grow(mass_parts_, wanted * gpu::MassParts(c.vocab) * int64_t{sizeof(double)}));
  EBB_TRY(Grow(mass_, wanted * kRowMass));
  HostRoom(host_mass_, step.facts_copied * kRowMass);
  return absl::OkStatus();
}

void GpuEngine::PointToWhatIsTold(Step& step) const {
  for (size_t i = 0; i < step.left.size(); ++i) {
    int32_t* left = step.left[i].count > 0 ? left_.as<int32_t>() + step.left[i].first : nullptr;
    gpu::LaneLoss* loss = step.losses[i].count > 0 ? losses_.as<gpu::LaneLoss>() + step.losses[i].first : nullptr;
    for (const GpuSight sight : kGpuSights) {
      gpu::SessionView& view = step.sessions[sight][i];
      if (view.drop == 0) continue;
      view.left = left;
      view.loss = loss;
      if (left != nullptr) left += int64_t{lanes_[sight].count} * view.drop;
      if (loss != nullptr) loss += lanes_[sight].count;
    }
  }
}

int64_t GpuEngine::RoomFor(const Step& step) const {
  return products_ ? step.single + products_->RoomFor(step.rows - step.single) : step.rows;
}

absl::Status GpuEngine::Run(std::span<GpuRow> rows) {
  EBB_TRY(Start(rows));
  return Finish();
}

absl::Status GpuEngine::Start(std::span<GpuRow> rows) {
  for (const GpuRow& row : rows) {
    for (const int32_t token : row.tokens) EBB_CHECK(token >= 0 && token < model_.config.vocab);
  }
  rows_ = rows;
  shortage_.clear();
  step_ = Plan(rows);
  EBB_CHECK(step_.rows > 0);
  EBB_TRY(Failed(gpu_->Use()));
  is_unpinned_ = false;
  EBB_TRY(Failed(Reserve(step_)));
  ++steps_;
  if (is_unpinned_) ++steps_unpinned_;
  PointToWhatIsTold(step_);
  return Failed(Compute(step_));
}

absl::Status GpuEngine::Finish() {
  EBB_TRY(Failed(gpu_->Wait()));
  const absl::StatusOr<double> took = gpu_->Between(begun_, done_);
  EBB_TRY(Failed(took.status()));
  step_seconds_ = *took;
  const auto vocab = static_cast<size_t>(model_.config.vocab);
  size_t at = 0;
  size_t session = 0;
  for (const size_t i : step_.order) {
    GpuRow& row = rows_[i];
    const Step::Run left = step_.left[session];
    const Step::Run losses = step_.losses[session++];
    row.left = host_left_.as<int32_t>().subspan(left.first, left.count);
    row.loss = host_losses_.as<gpu::LaneLoss>().subspan(losses.first, losses.count);
    const size_t count = row.want == GpuWant::kAll ? row.tokens.size() : 1;
    row.logits = {};
    row.facts = {};
    if (row.want == GpuWant::kLast || row.want == GpuWant::kAll) {
      row.logits = host_logits_.as<float>().subspan(at * vocab, count * vocab);
    } else if (row.want == GpuWant::kFacts) {
      row.facts = {.asked = row.needs,
                   .largest = host_largest_.as<gpu::TokenLogit>().subspan(at * step_.largest, row.needs.largest)};
      if (row.needs.temperature > 0) row.facts.mass = host_mass_.as<gpu::RowMass>()[at];
    }
    at += count;
    row.next = host_next_.as<int32_t>()[at - 1];
    row.session->Finish({.tokens = static_cast<int32_t>(row.tokens.size()), .prompt_ends = row.prompt_ends});
    row.session->KeepLogits(row.want == GpuWant::kFacts);
  }
  return absl::OkStatus();
}

// Of a step whose device failed the sessions are lost.
absl::Status GpuEngine::Failed(absl::Status status) {
  if (absl::IsUnavailable(status)) {
    for (const GpuRow& row : rows_) row.session->Lose();
  }
  return status;
}

absl::Status GpuEngine::Compute(const Step& step) {
  EBB_TRY(gpu_->Mark(begun_));
  EBB_TRY(CopyInputs(step));
  // Beside what is recorded: it is rare.
  for (const GpuSight sight : kGpuSights) {
    if (step.spreads[sight]) gpu_->table().fill_holes({.cache = CacheOf(step, sight)}, gpu_->stream());
  }
  if (options_.recordings_max > 0 && step.decodes()) {
    EBB_TRY(LaunchRecorded(step));
  } else {
    Launch(step);
  }
  if (products_) EBB_TRY(products_->TakeFailure());
  const auto vocab = static_cast<size_t>(model_.config.vocab);
  for (const Step::Run& run : step.copied) {
    const size_t at = run.first * vocab;
    EBB_TRY(gpu_->CopyOut(logits_.as<float>() + at, host_logits_.as<float>().subspan(at, run.count * vocab)));
  }
  for (const Step::Kept& kept : step.kept) {
    const float* const row = logits_.as<float>() + kept.row * vocab;
    EBB_TRY(gpu_->CopyWithin(kept.room, row, static_cast<int64_t>(vocab) * kFloat));
  }
  const auto told = static_cast<size_t>(step.facts_copied);
  if (told > 0) {
    const std::span<gpu::TokenLogit> largest = host_largest_.as<gpu::TokenLogit>().first(told * step.largest);
    EBB_TRY(gpu_->CopyOut(largest_.as<gpu::TokenLogit>(), largest));
  }
  if (step.weighs) EBB_TRY(gpu_->CopyOut(mass_.as<gpu::RowMass>(), host_mass_.as<gpu::RowMass>().first(told)));
  const auto left = static_cast<size_t>(step.left_count);
  if (left > 0) EBB_TRY(gpu_->CopyOut(left_.as<int32_t>(), host_left_.as<int32_t>().first(left)));
  const auto losses = static_cast<size_t>(step.loss_count);
  if (losses > 0) EBB_TRY(gpu_->CopyOut(losses_.as<gpu::LaneLoss>(), host_losses_.as<gpu::LaneLoss>().first(losses)));
  EBB_TRY(gpu_->CopyOut(next_.as<int32_t>(), host_next_.as<int32_t>().first(step.wanted.size())));
  return gpu_->Mark(done_);
}

int64_t GpuEngine::InputBytes(const Step& step) {
  return static_cast<int64_t>(2 * std::span(step.sessions.of[0]).size_bytes() + std::span(step.tokens).size_bytes() +
                              std::span(step.row_session).size_bytes() + std::span(step.needs).size_bytes());
}

// From pinned memory, where there is any, so that the host goes on; the step before, which was waited for, was the last
// to read it.
absl::Status GpuEngine::CopyInputs(const Step& step) {
  std::span<std::byte> room = host_inputs_.as<std::byte>();
  const auto copy = [&](auto from, std::byte* to) {
    const std::span<const std::byte> bytes = std::as_bytes(from);
    std::ranges::copy(bytes, room.begin());
    const std::span<const std::byte> pinned = room.first(bytes.size());
    room = room.subspan(bytes.size());
    return gpu_->CopyIn(pinned, to);
  };
  for (const GpuSight sight : kGpuSights) {
    if (lanes_[sight].count == 0) continue;
    EBB_TRY(copy(std::span(step.sessions[sight]), reinterpret_cast<std::byte*>(SessionsOf(step, sight))));
  }
  EBB_TRY(copy(std::span(step.tokens), tokens_.as<std::byte>()));
  if (step.weighs) EBB_TRY(copy(std::span(step.needs), needs_.as<std::byte>()));
  return copy(std::span(step.row_session), row_session_.as<std::byte>());
}

// What cannot be pinned is ordinary memory: copies to and from it go another way, and the host waits for them. A
// smaller step would not make more of it; for a while none is asked for again.
void GpuEngine::HostRoom(GpuHostMemory& buffer, int64_t bytes) {
  const bool pins = steps_ >= pins_from_;
  if (buffer.bytes() < bytes || (!buffer.is_pinned() && pins)) {
    buffer = {};
    if (pins) PinRoom(buffer, WithRoomToGrow(bytes));
    if (buffer.bytes() == 0) buffer = GpuHostMemory::Unpinned(WithRoomToGrow(bytes));
  }
  if (bytes > 0 && !buffer.is_pinned()) is_unpinned_ = true;
}

void GpuEngine::PinRoom(GpuHostMemory& buffer, int64_t bytes) {
  absl::StatusOr<GpuHostMemory> pinned = gpu_->AllocateHost(bytes, "what a step brings and takes");
  if (pinned.ok()) {
    buffer = *std::move(pinned);
    return;
  }
  shortage_ = std::string(pinned.status().message());
  pins_from_ = steps_ + StepBound::kPatience;
}

// A shape that comes once is not worth a recording. Where there is no memory for one, half of those that there are make
// room, and for a while no other is made.
absl::Status GpuEngine::LaunchRecorded(const Step& step) {
  const auto [found, is_new] = recordings_.try_emplace(static_cast<const Launches&>(step));
  Remembered& shape = found->second;
  shape.used = ++uses_;
  if (!is_new && (!shape.recording.empty() || uses_ >= records_from_)) {
    const absl::Status replayed = Replay(shape, step);
    if (!absl::IsResourceExhausted(replayed)) return replayed;
    shortage_ = std::string(replayed.message());
    ++steps_unrecorded_;
    shape.recording = {};
    for (size_t left = recordings_.size() / 2; left > 0; --left) ForgetLongestUnused();
    records_from_ = uses_ + StepBound::kPatience;
  } else if (std::ssize(recordings_) > options_.recordings_max) {
    ForgetLongestUnused();
  }
  Launch(step);
  return absl::OkStatus();
}

void GpuEngine::ForgetLongestUnused() {
  recordings_.erase(std::ranges::min_element(recordings_, {}, [](const auto& of) { return of.second.used; }));
}

absl::Status GpuEngine::Replay(Remembered& shape, const Step& step) {
  if (shape.recording.empty()) {
    EBB_ASSIGN(shape.recording, gpu_->Record([&] { Launch(step); }));
  }
  EBB_TRY(gpu_->Replay(shape.recording));
  ++replays_;
  return absl::OkStatus();
}

void GpuEngine::Launch(const Step& step) {
  const gpu::Table& table = gpu_->table();
  for (const GpuSight sight : kGpuSights) {
    if (lanes_[sight].count > 0) table.place({.cache = CacheOf(step, sight)}, gpu_->stream());
  }
  Embed(step);
  for (int32_t layer = 0; layer < model_.config.layers; ++layer) {
    const GpuModel::Layer& w = model_.layers[static_cast<size_t>(layer)];
    Attend(layer, step);
    if (model_.config.parallel_residual) FeedForward(w, step);  // of the x that attention saw
    AddProduct(w.o, w.o_bias, attended_, w.post_attn_norm, step);
    if (!model_.config.parallel_residual) FeedForward(w, step);
  }
  Head(step);
  for (const GpuSight sight : kGpuSights) {
    if (lanes_[sight].count > 0) LaunchEviction(step, sight);
  }
}

}  // namespace ebb
