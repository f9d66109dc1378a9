#include "server/redis_sessions.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "policies/status.h"
#include "server/resource_name.h"

namespace ebb {
namespace {

// Before each script. ARGV: prefix, TENANT/ID, server, epoch, and what the script takes.
constexpr std::string_view kHead = R"lua(
local prefix, name, server, epoch = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local session = prefix .. 'session:' .. name
local function key(kind, number) return session .. ':' .. kind .. ':' .. number end
local function address(owner) return redis.call('GET', prefix .. 'server:' .. owner) end
local function fenced()
  local is = redis.call('HMGET', session, 'owner', 'epoch')
  if is[1] == server and is[2] == epoch then return nil end
  if not is[1] then return {'MISSING'} end
  return {'FENCED', address(is[1]) or ''}
end
local function behind(number, at)
  local last, length = redis.call('HGET', session, 'last'), redis.call('STRLEN', key('journal', number))
  if last == number and length == tonumber(at) then return nil end
  local why = 'it ends at byte ' .. length .. ' of journal ' .. last .. ', and ended at byte ' .. at .. ' of ' .. number
  redis.call('HSET', session, 'damaged', why)
  return {'LOST', why}
end
local function remember(number, at, bytes)
  redis.call('XADD', prefix .. 'history', 'MAXLEN', '~', 100000, '*', 'session', name, 'epoch', epoch, 'server', server,
             'journal', number, 'at', at, 'bytes', bytes)
end
local function next_epoch()
  epoch = string.format('%d', redis.call('INCR', prefix .. 'epoch'))
  redis.call('HSET', session, 'owner', server, 'epoch', epoch)
end
)lua";

constexpr std::string_view kStage = R"lua(
local staged, index = prefix .. 'new:' .. server, tonumber(ARGV[5])
if index == 0 then redis.call('DEL', staged) end
local length = redis.call('LLEN', staged)
if length == index + 1 then return {'OK'} end
if length ~= index then return {'LOST'} end
redis.call('RPUSH', staged, ARGV[6])
redis.call('EXPIRE', staged, 86400)  -- where the server ends first
return {'OK'}
)lua";

constexpr std::string_view kBegin = R"lua(
local is = redis.call('HMGET', session, 'owner', 'epoch', 'begun')
if is[1] == server and is[3] == ARGV[5] then return {'OK', is[2]} end
if is[1] then return {'TAKEN', address(is[1]) or ''} end
redis.call('RENAME', prefix .. 'new:' .. server, key('snapshot', 1))
redis.call('PERSIST', key('snapshot', 1))
next_epoch()
redis.call('HSET', session, 'begun', ARGV[5], 'first', 1, 'last', 1)
redis.call('SADD', prefix .. 'sessions', name)
remember(1, 0, 0)
return {'OK', epoch}
)lua";

constexpr std::string_view kTake = R"lua(
local is = redis.call('HMGET', session, 'owner', 'first', 'last', 'damaged')
if not is[1] then return {'MISSING'} end
if is[4] then return {'DAMAGED', is[4]} end
if is[1] ~= server and address(is[1]) then return {'OWNED', address(is[1])} end
next_epoch()
for number = is[2] + 1, is[3] do redis.call('DEL', key('snapshot', number)) end
remember(is[3], redis.call('STRLEN', key('journal', is[3])), 0)
return {'OK', epoch, is[2], is[3]}
)lua";

constexpr std::string_view kFree = R"lua(
local free = {}
for _, member in ipairs(redis.call('SMEMBERS', prefix .. 'sessions')) do
  local is = redis.call('HMGET', prefix .. 'session:' .. member, 'owner', 'damaged')
  if is[1] and not is[2] and (is[1] == server or not address(is[1])) then free[#free + 1] = member end
end
return free
)lua";

constexpr std::string_view kWhere = R"lua(
local is = redis.call('HMGET', session, 'owner', 'damaged')
if not is[1] then return {'MISSING'} end
if is[2] then return {'DAMAGED', is[2]} end
if is[1] == server or not address(is[1]) then return {'FREE'} end
return {'OWNED', address(is[1])}
)lua";

constexpr std::string_view kCheck = "return fenced() or behind(ARGV[5], ARGV[6]) or {'OK'}";

constexpr std::string_view kAppend = R"lua(
local other = fenced()
if other then return other end
local journal, at, bytes = key('journal', ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local length = redis.call('STRLEN', journal)
if length == at + #bytes and redis.call('GETRANGE', journal, at, -1) == bytes then return {'OK'} end
local lost = behind(ARGV[5], ARGV[6])
if lost then return lost end
redis.call('APPEND', journal, bytes)
remember(ARGV[5], at, #bytes)
return {'OK'}
)lua";

constexpr std::string_view kRenew = R"lua(
local other = fenced()
if other then return other end
local next = string.format('%d', ARGV[5] + 1)
if redis.call('HGET', session, 'last') == next then return {'OK'} end
local lost = behind(ARGV[5], ARGV[6])
if lost then return lost end
redis.call('HSET', session, 'last', next)
return {'OK'}
)lua";

constexpr std::string_view kAddSlice = R"lua(
local other = fenced()
if other then return other end
local snapshot, index = key('snapshot', ARGV[5]), tonumber(ARGV[6])
local length = redis.call('LLEN', snapshot)
if length == index then redis.call('RPUSH', snapshot, ARGV[7]) return {'OK'} end
if length == index + 1 then return {'OK'} end
return {'LOST'}
)lua";

constexpr std::string_view kSettle = R"lua(
local other = fenced()
if other then return other end
if redis.call('LLEN', key('snapshot', ARGV[5])) ~= tonumber(ARGV[6]) then return {'LOST'} end
for number = tonumber(redis.call('HGET', session, 'first')), ARGV[5] - 1 do
  redis.call('DEL', key('journal', number), key('snapshot', number))
end
redis.call('HSET', session, 'first', ARGV[5])
return {'OK'}
)lua";

constexpr std::string_view kRemove = R"lua(
local other = fenced()
if other then return other end
local is = redis.call('HMGET', session, 'first', 'last')
for number = is[1], is[2] do redis.call('DEL', key('journal', number), key('snapshot', number)) end
redis.call('DEL', session)
redis.call('SREM', prefix .. 'sessions', name)
return {'OK'}
)lua";

constexpr std::string_view kRelease = R"lua(
local other = fenced()
if other then return other end
redis.call('HSET', session, 'owner', '')
if ARGV[5] ~= '' then redis.call('HSET', session, 'damaged', ARGV[5]) end
return {'OK'}
)lua";

}  // namespace

std::string NameInRedis(const SessionName& name) { return absl::StrCat(name.first, "/", name.second); }

std::optional<SessionName> NameFromRedis(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  SessionName name = {std::string(text.substr(0, slash)), std::string(text.substr(slash + 1))};
  if (!IsResourceName(name.first) || !IsResourceName(name.second)) return std::nullopt;
  return name;
}

RedisCommand RedisKeys::Script(std::string_view body, const SessionName& name, uint64_t epoch,
                               std::vector<std::string> more) const {
  RedisCommand command = {
      "EVAL", std::string(kHead) + std::string(body), "0", prefix_, NameInRedis(name), server_, absl::StrCat(epoch)};
  for (std::string& word : more) command.push_back(std::move(word));
  return command;
}

std::string RedisKeys::Key(const SessionName& name, const char* kind, uint32_t number) const {
  return absl::StrCat(prefix_, "session:", NameInRedis(name), ":", kind, ":", number);
}

RedisCommand RedisKeys::Stage(std::string_view slice, size_t index) const {
  return Script(kStage, {}, 0, {absl::StrCat(index), std::string(slice)});
}
RedisCommand RedisKeys::Begin(const SessionName& name, int64_t number) const {
  return Script(kBegin, name, 0, {absl::StrCat(number)});
}
RedisCommand RedisKeys::Free() const { return Script(kFree, {}, 0); }
RedisCommand RedisKeys::Where(const SessionName& name) const { return Script(kWhere, name, 0); }
RedisCommand RedisKeys::Take(const SessionName& name) const { return Script(kTake, name, 0); }
RedisCommand RedisKeys::Check(const SessionName& name, const JournalPlace& place) const {
  return Script(kCheck, name, place.epoch, {absl::StrCat(place.last), absl::StrCat(place.end.bytes)});
}
RedisCommand RedisKeys::Append(const SessionName& name, const JournalPlace& place, std::string_view bytes) const {
  return Script(kAppend, name, place.epoch,
                {absl::StrCat(place.last), absl::StrCat(place.end.bytes), std::string(bytes)});
}
RedisCommand RedisKeys::Renew(const SessionName& name, const JournalPlace& place) const {
  return Script(kRenew, name, place.epoch, {absl::StrCat(place.last), absl::StrCat(place.end.bytes)});
}
RedisCommand RedisKeys::AddSlice(const SessionName& name, uint64_t epoch, uint32_t number, size_t index,
                                 std::string_view slice) const {
  return Script(kAddSlice, name, epoch, {absl::StrCat(number), absl::StrCat(index), std::string(slice)});
}
RedisCommand RedisKeys::Settle(const SessionName& name, uint64_t epoch, uint32_t number, size_t slices) const {
  return Script(kSettle, name, epoch, {absl::StrCat(number), absl::StrCat(slices)});
}
RedisCommand RedisKeys::Remove(const SessionName& name, uint64_t epoch) const { return Script(kRemove, name, epoch); }
RedisCommand RedisKeys::Release(const SessionName& name, uint64_t epoch, const std::string& damaged) const {
  return Script(kRelease, name, epoch, {damaged});
}

RedisCommand RedisKeys::Lease(const std::string& address, absl::Duration lease, bool only_renew) const {
  RedisCommand command = {"SET", absl::StrCat(prefix_, "server:", server_), address, "PX",
                          absl::StrCat(absl::ToInt64Milliseconds(lease))};
  if (only_renew) command.emplace_back("XX");
  return command;
}
RedisCommand RedisKeys::EndLease() const { return {"DEL", absl::StrCat(prefix_, "server:", server_)}; }
RedisCommand RedisKeys::Journal(const SessionName& name, uint32_t number) const {
  return {"GET", Key(name, "journal", number)};
}
RedisCommand RedisKeys::Slice(const SessionName& name, uint32_t number, size_t index) const {
  return {"LINDEX", Key(name, "snapshot", number), absl::StrCat(index)};
}

absl::StatusOr<SessionPieces> ReadPieces(RedisConnection& connection, const RedisKeys& keys, const SessionName& name,
                                         const JournalPlace& place) {
  SessionPieces pieces = {.place = place};
  for (uint32_t number = place.first; number <= place.last; ++number) {
    EBB_ASSIGN(const RedisReply journal, connection.Run(keys.Journal(name, number)));
    const std::string file = SessionFiles::JournalName(name, number);
    const auto text = ReadJournal(journal.text);
    if (!text.ok()) return SessionFiles::AtFile(name, file, text.status());
    if (text->end.bytes != journal.text.size()) {  // a write is whole or not at all
      return SessionFiles::AtFile(name, file, JournalDamaged(absl::StrFormat("byte %d: it is cut", text->end.bytes)));
    }
    for (const std::string_view record : text->records) pieces.records.emplace_back(record);
    pieces.place.end = text->end;
  }
  for (size_t index = 0;; ++index) {
    EBB_ASSIGN(const RedisReply slice, connection.Run(keys.Slice(name, place.first, index)));
    if (slice.is_nil) break;
    pieces.snapshot += slice.text;
  }
  return pieces;
}

}  // namespace ebb
