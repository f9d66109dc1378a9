#include "engine/lab/npy.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <regex>

#include "absl/strings/str_format.h"

namespace ebb::lab {
namespace {

static_assert(std::endian::native == std::endian::little, "matrices are stored little-endian and copied as they are");

// 6 bytes of magic, 2 of version, 2 of header length; then a Python dict as text, then the numbers.
constexpr std::string_view kMagic("\x93NUMPY\x01\x00", 8);
constexpr size_t kPreamble = 10;
constexpr int64_t kSizeMax = int64_t{1} << 30;

absl::Status Damaged(const std::string& path, const std::string& what) {
  return absl::DataLossError(absl::StrFormat("%s: %s", path, what));
}

}  // namespace

absl::StatusOr<Matrix> ReadNpy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) return absl::NotFoundError(absl::StrFormat("%s: cannot be read", path));
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  if (bytes.size() < kPreamble || bytes.compare(0, kMagic.size(), kMagic) != 0) {
    return Damaged(path, "expected a NumPy file of version 1.0");
  }
  const size_t length = static_cast<unsigned char>(bytes[8]) + 256 * static_cast<unsigned char>(bytes[9]);
  if (bytes.size() - kPreamble < length) return Damaged(path, "ends inside its header");
  const std::string header = bytes.substr(kPreamble, length);
  if (header.find("'descr': '<f4'") == std::string::npos ||
      header.find("'fortran_order': False") == std::string::npos) {
    return Damaged(path, "expected little-endian float32 in C order, found " + header);
  }
  std::smatch shape;
  if (!std::regex_search(header, shape, std::regex(R"('shape': \((\d{1,9}), (\d{1,9})\))"))) {
    return Damaged(path, "expected two dimensions, found " + header);
  }
  Matrix matrix = {.rows = std::stol(shape[1]), .cols = std::stol(shape[2])};
  const size_t found = bytes.size() - kPreamble - length;
  if (matrix.rows > kSizeMax / std::max<int64_t>(matrix.cols, 1) ||
      found != static_cast<size_t>(matrix.rows * matrix.cols) * sizeof(float)) {
    return Damaged(path,
                   absl::StrFormat("%d bytes of numbers for a matrix of %d x %d", found, matrix.rows, matrix.cols));
  }
  matrix.values.resize(static_cast<size_t>(matrix.rows * matrix.cols));
  std::memcpy(matrix.values.data(), bytes.data() + kPreamble + length, found);
  return matrix;
}

}  // namespace ebb::lab
