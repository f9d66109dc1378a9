// Arithmetic over matrices [n, d] of keys or values, row by row: what scorers and modifiers spend their time on.
//
// Sums are added up in parts whose number is fixed, so that results do not depend on the machine.

#ifndef EBB_POLICIES_ROWS_H_
#define EBB_POLICIES_ROWS_H_

#include <cstdint>
#include <span>

namespace ebb {

// Row-major. REQUIRES: at.size() == rows() * d.
struct RowsView {
  std::span<const float> at = {};
  int32_t d = 0;

  int64_t rows() const { return static_cast<int64_t>(at.size()) / d; }
  const float* operator[](int64_t row) const { return at.data() + row * d; }
};

// out [n] = |row - center|. Subtracts first: |a|^2 - 2 ab + |b|^2 cancels where they are close.
void Distances(const RowsView& rows, std::span<const float> center, std::span<float> out);

// out [d] += sum_i weights[i] (row[i] - origin), in the order of the rows; rows of weight 0 are not read.
void AddDifferences(const RowsView& rows, std::span<const float> weights, std::span<const float> origin,
                    std::span<float> out);

// out [n] = |row|.
void Lengths(const RowsView& rows, std::span<double> out);

// out [n] = row . with.
void Products(const RowsView& rows, std::span<const double> with, std::span<double> out);

// u' S u for a symmetric S [d, d].
double QuadraticForm(std::span<const double> s, std::span<const double> u);

}  // namespace ebb

#endif  // EBB_POLICIES_ROWS_H_
