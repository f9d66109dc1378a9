#include "server/metric_family.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <limits>

#include "policies/check.h"
#include "server/bounded_text.h"

namespace ebb {
namespace {

constexpr size_t kLabelBytesMax = 128;

prometheus::MetricType TypeOf(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return prometheus::MetricType::Counter;
    case MetricKind::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricKind::kHistogram:
      return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

// Buckets are read one by one while others write; the count is their sum, so that the last bucket equals it.
prometheus::ClientMetric::Histogram Read(const Histogram& histogram) {
  prometheus::ClientMetric::Histogram read;
  for (size_t i = 0; i <= histogram.bounds().size(); ++i) {
    read.sample_count += histogram.count(i);
    const bool last = i == histogram.bounds().size();
    read.bucket.push_back({.cumulative_count = read.sample_count,
                           .upper_bound = last ? std::numeric_limits<double>::infinity() : histogram.bounds()[i]});
  }
  read.sample_sum = histogram.sum();
  return read;
}

}  // namespace

Histogram::Histogram(std::span<const double> bounds)
    : bounds_(bounds), counts_(std::make_unique<std::atomic<uint64_t>[]>(bounds.size() + 1)) {
  EBB_CHECK(std::is_sorted(bounds.begin(), bounds.end()));
}

void Histogram::Observe(double value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

void Histogram::ObserveAll(std::span<const int64_t> counts, double sum) {
  EBB_CHECK(counts.size() == bounds_.size() + 1);
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) counts_[i].fetch_add(static_cast<uint64_t>(counts[i]), std::memory_order_relaxed);
  }
  sum_.fetch_add(sum, std::memory_order_relaxed);
}

MetricFamily::MetricFamily(const MetricRow& row) : row_(row) {}

Counter& MetricFamily::counter(std::initializer_list<std::string_view> values) {
  const std::lock_guard lock(mutex_);
  return *FindLocked(MetricKind::kCounter, values).counter;
}

Gauge& MetricFamily::gauge(std::initializer_list<std::string_view> values) {
  const std::lock_guard lock(mutex_);
  return *FindLocked(MetricKind::kGauge, values).gauge;
}

Histogram& MetricFamily::histogram(std::initializer_list<std::string_view> values) {
  const std::lock_guard lock(mutex_);
  return *FindLocked(MetricKind::kHistogram, values).histogram;
}

MetricFamily::Series& MetricFamily::FindLocked(MetricKind kind, std::initializer_list<std::string_view> values) {
  EBB_CHECK(kind == row_.kind);
  EBB_CHECK(values.size() == row_.labels.size());
  Series wanted;
  for (const std::string_view value : values) wanted.values.push_back(BoundedText(value, kLabelBytesMax));
  const auto at = std::find_if(series_.begin(), series_.end(),
                               [&](const Series& series) { return series.values == wanted.values; });
  if (at != series_.end()) return *at;
  if (kind == MetricKind::kCounter) wanted.counter = std::make_unique<Counter>();
  if (kind == MetricKind::kGauge) wanted.gauge = std::make_unique<Gauge>();
  if (kind == MetricKind::kHistogram) wanted.histogram = std::make_unique<Histogram>(row_.buckets);
  return series_.emplace_back(std::move(wanted));
}

prometheus::MetricFamily MetricFamily::Collect() const {
  prometheus::MetricFamily family = {
      .name = std::string(row_.name), .help = std::string(row_.help), .type = TypeOf(row_.kind), .metric = {}};
  const std::lock_guard lock(mutex_);
  for (const Series& series : series_) {
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    for (size_t i = 0; i < series.values.size(); ++i) {
      metric.label.push_back({.name = std::string(row_.labels[i]), .value = series.values[i]});
    }
    if (series.counter) metric.counter.value = series.counter->value();
    if (series.gauge) metric.gauge.value = series.gauge->value();
    if (series.histogram) metric.histogram = Read(*series.histogram);
  }
  return family;
}

MetricSet::MetricSet(std::span<const MetricRow> table) {
  for (const MetricRow& row : table) families_.push_back(std::make_unique<MetricFamily>(row));
}

MetricFamily& MetricSet::operator[](std::string_view name) {
  const auto at =
      std::find_if(families_.begin(), families_.end(), [&](const auto& family) { return family->row().name == name; });
  EBB_CHECK(at != families_.end());
  return **at;
}

std::string MetricSet::Serialize(std::span<const Labelled> others) const {
  std::vector<prometheus::MetricFamily> collected;
  for (size_t i = 0; i < families_.size(); ++i) {
    prometheus::MetricFamily family = families_[i]->Collect();
    const auto& labels = families_[i]->row().labels;
    for (const Labelled& other : others) {
      if (std::ranges::find(labels, other.label) != labels.end()) continue;  // it says so itself, of the whole server
      for (prometheus::ClientMetric& metric : other.set.families_[i]->Collect().metric) {
        metric.label.push_back({.name = std::string(other.label), .value = std::string(other.value)});
        family.metric.push_back(std::move(metric));
      }
    }
    if (!family.metric.empty()) collected.push_back(std::move(family));
  }
  return prometheus::TextSerializer().Serialize(collected);
}

}  // namespace ebb
