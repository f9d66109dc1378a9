#include "server/redis_experiments.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "policies/status.h"
#include "server/resource_name.h"

namespace ebb {
namespace {

// Before each script. ARGV: prefix, server, and what the script takes.
constexpr std::string_view kHeapHead = R"lua(
local prefix, server = ARGV[1], ARGV[2]
local all = prefix .. 'experiments'
local function heap(name) return all .. ':' .. name end
local function taken(name) return all .. ':taken:' .. name end
local function number() return string.format('%d', redis.call('INCR', prefix .. 'epoch')) end
local function lives(owner) return owner ~= '' and redis.call('EXISTS', prefix .. 'server:' .. owner) == 1 end
local function tidy(name) if redis.call('EXISTS', heap(name)) == 0 then redis.call('SREM', all, name) end end
local function move(from, to)
  redis.call('RENAME', heap(from), heap(to))
  redis.call('SREM', all, from)
  redis.call('SADD', all, to)
end
)lua";

// Heaps of the server's that it did not write, and those that it may take.
constexpr std::string_view kFindHeaps = R"lua(
local found = {}
for _, name in ipairs(redis.call('SMEMBERS', all)) do
  local owner = string.match(name, '^[^/]*')
  tidy(name)
  if name ~= server and (owner == server or not lives(owner)) then found[#found + 1] = name end
end
return found
)lua";

// ARGV[3]: a heap. Answers with what it is called from now on; nil: it is another's, or gone.
constexpr std::string_view kTakeHeap = R"lua(
local name = ARGV[3]
local owner, own = string.match(name, '^([^/]*)/?(.*)$')
if not lives(server) or lives(owner) or redis.call('EXISTS', heap(name)) == 0 then return false end
if own == '' then own = number() end
local mine = server .. '/' .. own
move(name, mine)
redis.call('SET', taken(name), server, 'EX', 604800)
redis.call('DEL', taken(mine))
return mine
)lua";

constexpr std::string_view kLeaveHeap = R"lua(
local name = ARGV[3]
if redis.call('EXISTS', heap(name)) == 1 then move(name, string.match(name, '/.*$')) end
return 'OK'
)lua";

constexpr std::string_view kSetImageAside = R"lua(
local name, id, aside = ARGV[3], ARGV[4], ARGV[5]
local image = redis.call('HGET', heap(name), id)
if image then redis.call('HSET', all .. ':aside', aside, image) end
redis.call('HDEL', heap(name), id)
tidy(name)
return 'OK'
)lua";

// ARGV[3], ARGV[4]: a name, and its image, empty where there is none any more. Then heap and name of each of those that
// are in it.
constexpr std::string_view kPutImage = R"lua(
local was_taken = redis.call('EXISTS', taken(server)) == 1
for i = 5, #ARGV, 2 do was_taken = was_taken or redis.call('EXISTS', taken(ARGV[i])) == 1 end
if was_taken then return 'TAKEN' end
if not lives(server) then return 'OVER' end
if ARGV[4] == '' then
  redis.call('HDEL', heap(server), ARGV[3])
else
  redis.call('HSET', heap(server), ARGV[3], ARGV[4])
  redis.call('SADD', all, server)
end
tidy(server)
for i = 5, #ARGV, 2 do
  redis.call('HDEL', heap(ARGV[i]), ARGV[i + 1])
  tidy(ARGV[i])
end
return 'OK'
)lua";

// What nobody took of this server's own is from now on as what another has left.
constexpr std::string_view kBeginAnew = R"lua(
redis.call('DEL', taken(server))
if redis.call('EXISTS', heap(server)) == 1 then move(server, server .. '/' .. number()) end
return 'OK'
)lua";

// `id` with the number of its heap, short enough for a resource name.
std::string BesideName(const std::string& id, std::string_view place) {
  const std::string ending = "-" + std::string(place.substr(place.find('/') + 1));
  return id.substr(0, kResourceNameBytesMax - ending.size()) + ending;
}

}  // namespace

RedisCommand RedisExperiments::Script(std::string_view body, std::vector<std::string> more) const {
  RedisCommand command = {"EVAL", std::string(kHeapHead) + std::string(body), "0", prefix_, server_};
  for (std::string& word : more) command.push_back(std::move(word));
  return command;
}

absl::StatusOr<RedisReply> RedisExperiments::Run(const RedisCommand& command) {
  const int64_t lost = connection_.lost();
  auto reply = connection_.RunFailFast(command);
  if (connection_.lost() != lost) quiet_until_ = clock_.Now() + lease_;
  if (reply.ok()) answered_ = connection_.made();
  return reply;
}

absl::Status RedisExperiments::BeginAnew() {
  if (!was_taken_) return absl::OkStatus();
  EBB_TRY(Run(Script(kBeginAnew, {})).status());
  was_taken_ = false;
  return absl::OkStatus();
}

absl::StatusOr<ExperimentStore::Lefts> RedisExperiments::Find() {
  EBB_TRY(BeginAnew());
  EBB_ASSIGN(const RedisReply found, Run(Script(kFindHeaps, {})));
  Lefts lefts;
  for (const RedisReply& heap : found.list) {
    std::string place = heap.text;
    if (!absl::StartsWith(place, server_ + "/")) {
      if (clock_.Now() < quiet_until_) continue;
      EBB_ASSIGN(const RedisReply mine, Run(Script(kTakeHeap, {place})));
      if (mine.is_nil) continue;
      place = mine.text;
    }
    EBB_ASSIGN(const RedisReply ids, Run({"HKEYS", absl::StrCat(prefix_, "experiments:", place)}));
    for (const RedisReply& id : ids.list) {
      if (!IsResourceName(id.text)) continue;
      lefts.push_back({.id = id.text, .place = place, .beside = BesideName(id.text, place)});
    }
  }
  return lefts;
}

absl::StatusOr<std::string> RedisExperiments::Read(const Left& left) {
  EBB_ASSIGN(RedisReply image, Run({"HGET", absl::StrCat(prefix_, "experiments:", left.place), left.id}));
  if (image.is_nil) return absl::NotFoundError("another server has taken it meanwhile");
  return std::move(image.text);
}

absl::StatusOr<std::string> RedisExperiments::SetAside(const Left& left) {
  EBB_TRY(Run(Script(kSetImageAside, {left.place, left.id, left.beside})).status());
  return absl::StrCat(prefix_, "experiments:aside ", left.beside);
}

absl::Status RedisExperiments::Leave(const std::string& place) { return Run(Script(kLeaveHeap, {place})).status(); }

absl::Status RedisExperiments::Write(const std::string& id, std::string_view image, const Lefts& merged) {
  return Put(id, image, merged);
}

absl::Status RedisExperiments::Remove(const std::string& id, const Lefts& merged) { return Put(id, {}, merged); }

absl::Status RedisExperiments::Put(const std::string& id, std::string_view image, const Lefts& merged) {
  std::vector<std::string> words = {id, std::string(image)};
  for (const Left& left : merged) {
    words.push_back(left.place);
    words.push_back(left.id);
  }
  EBB_TRY(BeginAnew());
  EBB_ASSIGN(const RedisReply reply, Run(Script(kPutImage, std::move(words))));
  if (reply.text == "OK") return absl::OkStatus();
  was_taken_ = reply.text == "TAKEN";
  if (was_taken_) return absl::AbortedError("another server has taken what this one had written");
  return Refuse(absl::StatusCode::kUnavailable, "the store failed: Redis: this server's lease is over",
                {.reason = "STORE_FAILED", .retry = absl::Seconds(5)});
}

}  // namespace ebb
