// A script of calls for tests of what outlives a server: sessions and a snapshot that begin, change in all the ways
// there are and go, each call done or refused, and how far each of them came.

#ifndef EBB_TESTS_SUPPORT_SESSION_SCRIPT_H_
#define EBB_TESTS_SUPPORT_SESSION_SCRIPT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tests/support/test_server.h"

namespace ebb {

// What a client asks for, of a session or a snapshot that it knows by name; tokens go to the last.
using Deed = std::function<grpc::Status(TestClient&, const std::string&, std::vector<uint32_t>&)>;

// A deed is done to a subject as it is after so many deeds; `of`, not empty: from another as it is after `of_deeds`.
struct Step {
  std::string subject = {};
  Deed deed = {};
  std::string of = {};
  size_t of_deeds = 0;
  bool deletes = false;
};

// Sessions come, grow until snapshots take their journals' places, change in all the ways there are, leave memory for
// one that is large, come back and go. Arena: 160 KiB, for some of them at a time.
const std::vector<Step>& Script();

// What a subject is after so many deeds, and what the last of them told.
struct Point {
  std::string seen = {};
  uint64_t tokens = 0;
  std::vector<uint32_t> told = {};
};
using Points = std::map<std::string, std::vector<Point>>;

// How far a subject came: it is at the point `done`, or, where the next deed was refused, at the one after it.
struct Progress {
  size_t done = 0;
  bool refused = false;
  std::vector<uint32_t> told = {};  // by the last deed, which may have been refused after that
};
using AllProgress = std::map<std::string, Progress>;

Deed Creates(const v1::PolicySpec& policy);
grpc::Status Prefills(TestClient& client, const std::string& name, std::vector<uint32_t>& told);
grpc::Status Decodes(TestClient& client, const std::string& name, std::vector<uint32_t>& told);  // 5 tokens
grpc::Status Deletes(TestClient& client, const std::string& name, std::vector<uint32_t>& told);

// All that a client can see of a session, or of what a snapshot makes; empty where there is none.
std::string Seen(TestClient& client, const std::string& name);

// Does what is still to be done, as a client does: tries again what may be tried again, and leaves alone what may not.
// `heals`: what is tried again is done. `after` hears of each deed that is done.
void Play(std::span<const Step> steps, TestClient& client, AllProgress& all, bool heals,
          const std::function<void(const Step&, const std::vector<uint32_t>&)>& after = {});

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_SESSION_SCRIPT_H_
