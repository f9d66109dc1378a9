// How refusals write numbers: as many digits as tell the number from its neighbours, so that none "1 is not in [0, 1]".

#ifndef EBB_POLICIES_SHORTEST_H_
#define EBB_POLICIES_SHORTEST_H_

#include <charconv>
#include <cmath>
#include <iterator>
#include <string>

#include "absl/strings/str_format.h"

namespace ebb {

// The shortest decimal that reads back as the same number of the same type, whole numbers below 10^17 in full; "inf",
// "-inf" or "nan".
template <typename Number>
std::string Shortest(Number number) {
  const auto wide = static_cast<double>(number);
  if (wide == std::floor(wide) && std::abs(wide) < 1e17) return absl::StrFormat("%.0f", wide);
  char buffer[32];
  return {std::begin(buffer), std::to_chars(std::begin(buffer), std::end(buffer), number).ptr};
}

}  // namespace ebb

#endif  // EBB_POLICIES_SHORTEST_H_
