// Bodies of requests to an HTTP port, read by who has decided that they count.

#ifndef EBB_SERVER_HTTP_BODY_H_
#define EBB_SERVER_HTTP_BODY_H_

#include <httplib.h>

#include <string>

#include "server/front_places.h"

namespace ebb {

// False where it did not come whole, or is too long: the library has set the answer's code.
inline bool ReadBody(const httplib::ContentReader& read, std::string& body) {
  return read([&body](const char* bytes, size_t size) {
    body.append(bytes, size);
    return true;
  });
}

// An answer that comes before the body was read may be lost with the connection, so of some that are refused it is. Not
// of all: who sends slowly would hold the threads that others are refused by.
class RefusedBodies {
 public:
  explicit RefusedBodies(int at_once) : places_(at_once) {}

  void Read(const httplib::ContentReader& read) {
    const auto place = places_.Take("");  // not of tenants: all have these together
    std::string body;
    if (place != nullptr) ReadBody(read, body);
  }

 private:
  FrontPlaces places_;
};

}  // namespace ebb

#endif  // EBB_SERVER_HTTP_BODY_H_
