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
#include <string>
#include <string_view>
#include <vector>

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
