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

// So many vectors side by side, as the columns of a matrix [d, kAbreast], are worked on at once: the processor's
// vectors then go across them, and each one's sums stay in order.
inline constexpr int32_t kAbreast = 32;

// out [kAbreast] = u' S u for each column u; `triangle` is the upper one of a symmetric S, row by row, [d (d + 1) / 2].
void QuadraticForms(std::span<const double> triangle, std::span<const double> columns, std::span<double> out);

// out [kAbreast] = with [d] . u for each column u.
void ColumnProducts(std::span<const double> with, std::span<const double> columns, std::span<double> out);

}  // namespace ebb

#endif  // EBB_POLICIES_ROWS_H_
