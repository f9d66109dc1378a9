// A policy as JSON says it: a word, as `ebb policy try` takes it, or PolicySpec in proto3 JSON.
//
//   "h2o:budget=512"   "snapkv:budget=256:window=16+fast_caote"   "tova:budget=512@pyramid:beta=14"
//   {"tova": {}, "trigger": {"budget": 512}}
//
// NAME[:KEY=VALUE]...[+MODIFIER][@ALLOCATION[:KEY=VALUE]...]; KEY is a field of PolicySpec's trigger, of its protect,
// or of the scorer, and behind @ one of the allocation. By reflection: a new scorer changes nothing here.

#ifndef EBB_SERVER_POLICY_JSON_H_
#define EBB_SERVER_POLICY_JSON_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "ebb/v1/policy.pb.h"

namespace ebb {

// What is in range, and goes together, is the services' to say. INVALID_ARGUMENT with field `field`: WRONG_TYPE where
// it is no policy, UNKNOWN_PARAMETER; NOT_FOUND UNKNOWN_SCORER.
absl::StatusOr<v1::PolicySpec> PolicyFromJson(const nlohmann::json& json, const std::string& field);

}  // namespace ebb

#endif  // EBB_SERVER_POLICY_JSON_H_
