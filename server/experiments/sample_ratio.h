// Whether units came to the arms in the shares that were asked for. Where they did not, something decides who is seen
// (sessions that are refused, callers that give up), and no difference between arms means anything.
//
// Sequential, since it is looked at as often as the results are: Lindon and Malek ("Anytime-valid inference for
// multinomial count data", NeurIPS 2022; arXiv:2011.03567). With counts n_i, expected shares p_i and a Dirichlet prior
// a_i = 100 p_i around them, the Bayes factor against the shares
//
//   B = G(sum a) / G(sum a + n) * prod_i G(a_i + n_i) / G(a_i) / prod_i p_i^n_i         G: the gamma function
//
// is a martingale that begins at 1 while the shares are what they should be. So it ever reaches 1/p with probability at
// most p, exactly and at any sample size, and the smallest 1/B so far is a p-value at every look. B depends on the
// counts alone and not on the order in which units came, so that counts of several servers, added up, have one, too; of
// these nobody has looked at every unit that came, so that the smallest 1/B there is that of now.

#ifndef EBB_SERVER_EXPERIMENTS_SAMPLE_RATIO_H_
#define EBB_SERVER_EXPERIMENTS_SAMPLE_RATIO_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ebb {

class SampleRatio {
 public:
  // p below which the shares are broken.
  static constexpr double kBroken = 0.001;

  // REQUIRES: at least one weight, all above 0.
  explicit SampleRatio(std::span<const double> weights);

  // That has counted so many units for each arm, in whatever order they came, and whose largest log B so far is
  // `log_factor_max`; empty: it has not been looked at before. REQUIRES: as many counts as weights, none below 0.
  SampleRatio(std::span<const double> weights, std::span<const int64_t> counts,
              std::optional<double> log_factor_max = {});

  // A unit came to this arm.
  void Add(size_t arm);

  int64_t count(size_t arm) const { return counts_[arm]; }
  int64_t total() const { return total_; }
  double expected_share(size_t arm) const { return shares_[arm]; }
  double p_value() const;                                    // in (0, 1]
  double log_factor_max() const { return log_factor_max_; }  // the largest log B so far, >= 0
  bool broken() const { return p_value() < kBroken; }

 private:
  std::vector<double> shares_;
  std::vector<int64_t> counts_;
  int64_t total_ = 0;
  double log_factor_ = 0;      // log B
  double log_factor_max_ = 0;  // the largest so far
};

}  // namespace ebb

#endif  // EBB_SERVER_EXPERIMENTS_SAMPLE_RATIO_H_
