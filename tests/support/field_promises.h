// What the comments of the proto files promise of a field, as values to try: each end of what it takes, and the next
// value beyond. Read from the phrases that the comments use:
//
//   Range [0, 1]                 of a number or a duration; "[" and "]" are taken, "(" and ")" are not; also inf, 2^20,
//   Range of each [0, layers)    30 days, and words that a test gives a number for
//   at most 128 bytes            of a text; also 1 to 256 bytes
//   At most 64, 2 to 8           entries of a list or a map
//   [a-z0-9][a-z0-9._-]{0,62}    a name, behind what its field has before the last slash

#ifndef EBB_TESTS_SUPPORT_FIELD_PROMISES_H_
#define EBB_TESTS_SUPPORT_FIELD_PROMISES_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace ebb {

// The comments above the fields of the proto files.
class ProtoComments {
 public:
  // What `protoc --include_imports --include_source_info --descriptor_set_out` wrote.
  explicit ProtoComments(const std::string& descriptor_set_file);

  // On one line. Of a map's value the map's, of its key none.
  std::string Of(const google::protobuf::FieldDescriptor& field) const;

 private:
  google::protobuf::DescriptorPool pool_;
};

// Whether the field holds numbers: one, a list of them, or a duration.
bool IsNumber(const google::protobuf::FieldDescriptor& field);
// Whether the comment gives a range of them.
bool HasRange(const std::string& comment);

struct FieldTrial {
  std::string value = {};                                    // for a person
  bool beyond = false;                                       // what the comment rules out
  std::function<void(google::protobuf::Message&)> set = {};  // of the message that has the field; of a list one entry
};

// What an end that is no number is where the field is tried: "cache length", 24.
using EndWords = std::map<std::string, long double>;

// Nothing where the comment promises nothing of the above. An end that is neither a number nor one of the words fails
// the test.
std::vector<FieldTrial> FieldTrialsOf(const google::protobuf::FieldDescriptor& field, const std::string& comment,
                                      const EndWords& words);

}  // namespace ebb

#endif  // EBB_TESTS_SUPPORT_FIELD_PROMISES_H_
