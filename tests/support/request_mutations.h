// Requests that are wrong in one place, made from the protobuf descriptors, so that a field that is added is tried too.
//
//   for (const Mutation& mutation : MutationsOf(*GenerateRequest::descriptor())) {
//     GenerateRequest request = good;
//     mutation.apply(request);  // mutation.path: sampling.top_p, mutation.value: nan
//   }

#ifndef EBB_TESTS_SUPPORT_REQUEST_MUTATIONS_H_
#define EBB_TESTS_SUPPORT_REQUEST_MUTATIONS_H_

#include <google/protobuf/message.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policies/hash_random.h"

namespace ebb {

struct Mutation {
  std::string path = {};   // of the field
  std::string value = {};  // what it becomes, for a person
  bool never = false;      // nobody may take it: a number that is none, an enum's that it does not have
  std::function<void(google::protobuf::Message&)> apply = {};
};

// Every field, also those of messages in messages, at the ends of its type and beyond what it may be: smallest and
// largest numbers, infinities and NaN, numbers that an enum lacks, texts that are empty, long, no UTF-8 or hold what
// ends a C string or moves a terminal's cursor, lists of thousands.
std::vector<Mutation> MutationsOf(const google::protobuf::Descriptor& request);

// A field of a request, also of messages in messages and, of lists, in the first entry; of a map in an entry.
struct Place {
  std::string path = {};                                               // sampling.top_p
  std::vector<const google::protobuf::FieldDescriptor*> parents = {};  // that lead to the message which has it
  const google::protobuf::FieldDescriptor* field = nullptr;
};
// All of them, each message before what it holds; a message within one of its own type is not entered.
std::vector<Place> PlacesIn(const google::protobuf::Descriptor& request);
// The message that `parents` lead to, made on the way; of lists the first.
google::protobuf::Message& Locate(google::protobuf::Message& request,
                                  std::span<const google::protobuf::FieldDescriptor* const> parents);

// Gives the place, which holds no message, a random value of its type: numbers of all sizes alike, from one bit to all,
// any of an enum's or a bool's, texts of up to a thousand characters, letters or anything; of lists up to 64 entries.
void SetRandomly(google::protobuf::Message& request, const Place& place, HashRandom& random);

// Whether `path` ("rows[3].scores") is a field of the message, or a choice between some.
bool HasField(const google::protobuf::Descriptor& request, std::string_view path);

// Every method of AllServices(): "ebb.v1.SessionService/GetSession".
struct Method {
  std::string name = {};
  const google::protobuf::MethodDescriptor* descriptor = nullptr;
};
std::vector<Method> AllMethods();

// An empty request of the method.
std::unique_ptr<google::protobuf::Message> NewRequest(const google::protobuf::MethodDescriptor& method);

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_REQUEST_MUTATIONS_H_
