// Counters, gauges and histograms that a step may touch: one relaxed atomic operation each (a histogram: two), no lock,
// no allocation. prometheus-cpp serialises them; its own histogram takes a mutex per observation, so it is not used.
//
// Threads: instruments may be used and collected by any thread. A reference that a family returned stays valid as long
// as the family lives. Making one takes a lock: do it when a session opens, not when a token leaves.

#ifndef EBB_SERVER_METRIC_FAMILY_H_
#define EBB_SERVER_METRIC_FAMILY_H_

#include <prometheus/metric_family.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace ebb {

class Counter {
 public:
  void Add(double amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }  // REQUIRES: amount >= 0
  // For a total that something else counts.
  void SetTotal(double total) { value_.store(total, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_ = 0;
};

class Gauge {
 public:
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }
  void Add(double amount) { value_.fetch_add(amount, std::memory_order_relaxed); }  // may be negative
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_ = 0;
};

class Histogram {
 public:
  // Upper bounds, included, ascending; +Inf follows by itself. They outlive the histogram.
  explicit Histogram(std::span<const double> bounds);

  void Observe(double value);
  void Observe(absl::Duration time) { Observe(absl::ToDoubleSeconds(time)); }
  // Many at once, so many in each bucket. REQUIRES: bounds().size() + 1 counts.
  void ObserveAll(std::span<const int64_t> counts, double sum);

  std::span<const double> bounds() const { return bounds_; }
  uint64_t count(size_t bucket) const { return counts_[bucket].load(std::memory_order_relaxed); }  // of this one alone
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::span<const double> bounds_;
  std::unique_ptr<std::atomic<uint64_t>[]> counts_;  // bounds + 1
  std::atomic<double> sum_ = 0;
};

enum class MetricKind { kCounter, kGauge, kHistogram };

// What a metric is; the table of them all is MetricTable() in metrics.h.
struct MetricRow {
  std::string_view name = {};
  MetricKind kind = MetricKind::kCounter;
  std::string_view unit = {};                 // seconds, bytes, tokens, ...
  std::vector<std::string_view> labels = {};  // names, in the order in which values are given
  std::span<const double> buckets = {};       // of a histogram
  std::string_view help = {};                 // one sentence for a person who reads a dashboard
};

// One row's time series: an instrument per combination of label values.
class MetricFamily {
 public:
  explicit MetricFamily(const MetricRow& row);  // `row` outlives the family

  // The instrument with these label values, made at the first call. Values become valid UTF-8 of at most 128 bytes.
  // REQUIRES: the row's kind, and a value per label.
  Counter& counter(std::initializer_list<std::string_view> values = {});
  Gauge& gauge(std::initializer_list<std::string_view> values = {});
  Histogram& histogram(std::initializer_list<std::string_view> values = {});

  const MetricRow& row() const { return row_; }
  prometheus::MetricFamily Collect() const;

 private:
  struct Series {
    std::vector<std::string> values = {};
    std::unique_ptr<Counter> counter = {};  // the one of the row's kind is set
    std::unique_ptr<Gauge> gauge = {};
    std::unique_ptr<Histogram> histogram = {};
  };

  Series& FindLocked(MetricKind kind, std::initializer_list<std::string_view> values);

  const MetricRow& row_;
  mutable std::mutex mutex_;  // guards the list, not the instruments
  std::vector<Series> series_;
};

// A family per row of a table.
class MetricSet {
 public:
  explicit MetricSet(std::span<const MetricRow> table);  // `table` outlives the set

  MetricFamily& operator[](std::string_view name);  // REQUIRES: a name of the table

  // Prometheus' text format, in the table's order; families without a series are left out.
  std::string Serialize() const { return Serialize({}); }

  // The same with the series of other sets of this table, each told apart by a label.
  struct Labelled {
    std::string_view label = {};  // rows that have it already are left out: they are of the server as a whole
    std::string_view value = {};
    const MetricSet& set;
  };
  std::string Serialize(std::span<const Labelled> others) const;

 private:
  std::vector<std::unique_ptr<MetricFamily>> families_;
};

}  // namespace ebb

#endif  // EBB_SERVER_METRIC_FAMILY_H_
