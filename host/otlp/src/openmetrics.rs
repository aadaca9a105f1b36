//! The node's metrics as messages of OpenTelemetry, made of their OpenMetrics text. Names, labels
//! and units are those of `/metrics`.

use crate::resource::text_attribute;
use crate::wire::Message;
use std::borrow::Cow;

/// Field of a metric in its scope.
const METRICS: u32 = 2;
/// Counters and histograms count from the start of the process.
const CUMULATIVE: u64 = 2;

/// Times of the metrics, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// Start of the process.
    pub(crate) start_unix_ns: u64,
    /// Time at which the metrics were read.
    pub(crate) now_unix_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Kind {
    Counter,
    Histogram,
    #[default]
    Gauge,
}

/// A metric with its samples.
#[derive(Debug, Default)]
struct Family<'t> {
    name: &'t str,
    help: &'t str,
    unit: &'t str,
    kind: Kind,
    samples: Vec<Sample<'t>>,
}

#[derive(Debug)]
struct Sample<'t> {
    /// The end of the sample's name, after the name of its metric.
    suffix: &'t str,
    labels: Vec<(&'t str, Cow<'t, str>)>,
    value: f64,
}

/// Encodes all metrics of `text`, which the encoder of the registry wrote: the name, type and unit
/// of a metric come before its samples.
pub(crate) fn encode(text: &str, times: Times) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(text.len());
    let mut family = Family::default();
    for line in text.lines() {
        let described = |prefix| line.strip_prefix(prefix).and_then(|rest: &str| rest.split_once(' '));
        if let Some((name, help)) = described("# HELP ") {
            family.write(&mut encoded, times);
            family = Family { name, help, ..Family::default() };
        } else if let Some((name, kind)) = described("# TYPE ") {
            if family.name != name {
                family.write(&mut encoded, times);
                family = Family { name, ..Family::default() };
            }
            family.kind = match kind {
                "counter" => Kind::Counter,
                "histogram" => Kind::Histogram,
                _ => Kind::Gauge,
            };
        } else if let Some((_, unit)) = described("# UNIT ") {
            family.unit = unit;
        } else if !line.starts_with('#') {
            family.samples.extend(sample(line, family.name));
        }
    }
    family.write(&mut encoded, times);
    encoded
}

/// Parses the sample of a metric.
fn sample<'t>(line: &'t str, metric: &str) -> Option<Sample<'t>> {
    let rest = line.strip_prefix(metric)?;
    let end = rest.find(['{', ' '])?;
    let (suffix, rest) = rest.split_at(end);
    let mut labels = Vec::new();
    let mut rest = rest;
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while let Some((key, after)) = rest.split_once("=\"") {
            let close = closing_quote(after)?;
            labels.push((key, unescaped(&after[..close])));
            rest = &after[close + 1..];
            match rest.strip_prefix(',') {
                Some(next) => rest = next,
                None => break,
            }
        }
        rest = rest.strip_prefix('}')?;
    }
    // The value ends before an exemplar.
    let value = rest.trim_start().split(' ').next()?.parse().ok()?;
    Some(Sample { suffix, labels, value })
}

/// The position of the quote that ends a label.
fn closing_quote(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })
}

fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return text.into();
    }
    let mut chars = text.chars();
    let mut plain = String::with_capacity(text.len());
    while let Some(c) = chars.next() {
        plain.push(match c {
            '\\' => match chars.next() {
                Some('n') => '\n',
                Some(other) => other,
                None => '\\',
            },
            other => other,
        });
    }
    plain.into()
}

impl Family<'_> {
    /// Appends the metric to the metrics of a scope.
    fn write(&self, into: &mut Vec<u8>, times: Times) {
        let Some(first) = self.samples.first() else { return };
        Message(into).message(METRICS, |metric| {
            let suffix = if self.kind == Kind::Histogram { "" } else { first.suffix };
            metric.string(1, &format!("{}{suffix}", self.name));
            metric.string(2, &unescaped(self.help));
            if !self.unit.is_empty() {
                metric.string(3, ucum(self.unit));
            }
            match self.kind {
                Kind::Gauge => metric.message(5, |gauge| self.write_numbers(gauge, times)),
                Kind::Counter => metric.message(7, |sum| {
                    self.write_numbers(sum, times);
                    sum.varint(2, CUMULATIVE);
                    sum.varint(3, 1);
                }),
                Kind::Histogram => metric.message(9, |histogram| {
                    for series in self.samples.chunk_by(|a, b| a.series().eq(b.series())) {
                        histogram.message(1, |point| write_histogram(point, series, times));
                    }
                    histogram.varint(2, CUMULATIVE);
                }),
            }
        });
    }

    fn write_numbers(&self, into: &mut Message<'_>, times: Times) {
        for sample in &self.samples {
            into.message(1, |point| {
                if self.kind == Kind::Counter {
                    point.fixed64(2, times.start_unix_ns);
                }
                point.fixed64(3, times.now_unix_ns);
                point.double(4, sample.value);
                write_labels(point, 7, sample.series());
            });
        }
    }
}

impl<'t> Sample<'t> {
    /// The labels of the series: those of a bucket without its bound.
    fn series(&self) -> impl Iterator<Item = &(&'t str, Cow<'t, str>)> {
        self.labels.iter().filter(|(key, _)| *key != "le" || self.suffix != "_bucket")
    }

    /// The upper bound of a bucket.
    fn bound(&self) -> Option<f64> {
        self.labels.iter().find(|(key, _)| *key == "le")?.1.parse().ok()
    }
}

fn write_labels<'l>(
    point: &mut Message<'_>,
    field: u32,
    labels: impl Iterator<Item = &'l (&'l str, Cow<'l, str>)>,
) {
    for (key, value) in labels {
        text_attribute(point, field, key, value);
    }
}

/// Writes the point of a histogram. The buckets in the text count all smaller values, too.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts of a histogram are positive integers"
)]
fn write_histogram(point: &mut Message<'_>, series: &[Sample<'_>], times: Times) {
    let value =
        |suffix| series.iter().find(|sample| sample.suffix == suffix).map_or(0.0, |found| found.value);
    let buckets = || series.iter().filter(|sample| sample.suffix == "_bucket");
    let mut below = 0;
    let counts: Vec<u64> = buckets()
        .map(|bucket| {
            let up_to = bucket.value as u64;
            up_to.saturating_sub(std::mem::replace(&mut below, up_to))
        })
        .collect();
    let bounds: Vec<u64> =
        buckets().filter_map(Sample::bound).filter(|bound| bound.is_finite()).map(f64::to_bits).collect();
    point.fixed64(2, times.start_unix_ns);
    point.fixed64(3, times.now_unix_ns);
    point.fixed64(4, value("_count") as u64);
    point.double(5, value("_sum"));
    point.packed64(6, counts.into_iter());
    point.packed64(7, bounds.into_iter());
    if let Some(first) = series.first() {
        write_labels(point, 9, first.series());
    }
}

/// The unit in the notation of OpenTelemetry.
fn ucum(unit: &str) -> &str {
    match unit {
        "seconds" => "s",
        "bytes" => "By",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{NodeResource, Resource};
    use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
    use opentelemetry_proto::tonic::metrics::v1::{Metric, metric::Data, number_data_point::Value};
    use prost::Message as _;
    use std::collections::BTreeMap;

    const TIMES: Times = Times { start_unix_ns: 5, now_unix_ns: 9 };

    fn decoded(text: &str) -> Vec<Metric> {
        let node = NodeResource { node: 0, address: None };
        let request = Resource::new(&node, &BTreeMap::new()).request(&[&encode(text, TIMES)]);
        let request = ExportMetricsServiceRequest::decode(&*request).unwrap();
        request.resource_metrics[0].scope_metrics[0].metrics.clone()
    }

    #[test]
    fn counters_gauges_and_histograms_keep_names_labels_and_values() {
        let metrics = decoded(concat!(
            "# HELP weir_calls Calls that \\\\ ended.\n# TYPE weir_calls counter\n",
            "weir_calls_total{tenant=\"a\",code=\"o\\\"k,}\"} 3\nweir_calls_total{tenant=\"b\",code=\"\"} 0.5\n",
            "# HELP weir_wait_seconds A time.\n# TYPE weir_wait_seconds histogram\n",
            "# UNIT weir_wait_seconds seconds\n",
            "weir_wait_seconds_sum{phase=\"x\"} 0.5\nweir_wait_seconds_count{phase=\"x\"} 4\n",
            "weir_wait_seconds_bucket{le=\"0.1\",phase=\"x\"} 1\n",
            "weir_wait_seconds_bucket{le=\"1.0\",phase=\"x\"} 3\n",
            "weir_wait_seconds_bucket{le=\"+Inf\",phase=\"x\"} 4\n",
            "weir_wait_seconds_sum{phase=\"y\"} 0.0\nweir_wait_seconds_count{phase=\"y\"} 0\n",
            "weir_wait_seconds_bucket{le=\"+Inf\",phase=\"y\"} 0\n",
            "# HELP weir_running Running.\n# TYPE weir_running gauge\nweir_running -2\n# EOF\n",
        ));
        let named = |name: &str| metrics.iter().find(|metric| metric.name == name).unwrap();
        let calls = named("weir_calls_total");
        assert_eq!(calls.description, "Calls that \\ ended.");
        let Some(Data::Sum(sum)) = &calls.data else { panic!("{calls:?}") };
        assert!(sum.is_monotonic && sum.aggregation_temporality == 2);
        let first = &sum.data_points[0];
        assert_eq!((first.start_time_unix_nano, first.time_unix_nano), (5, 9));
        assert_eq!(first.value, Some(Value::AsDouble(3.0)));
        let labels = format!("{:?}", first.attributes);
        assert!(labels.contains("\"tenant\"") && labels.contains("o\\\"k,}"), "{labels}");
        assert_eq!(sum.data_points[1].value, Some(Value::AsDouble(0.5)));
        let Some(Data::Histogram(wait)) = &named("weir_wait_seconds").data else { panic!("no histogram") };
        assert_eq!(named("weir_wait_seconds").unit, "s");
        let point = &wait.data_points[0];
        assert_eq!((point.count, point.sum), (4, Some(0.5)));
        assert_eq!((&*point.bucket_counts, &*point.explicit_bounds), (&[1, 2, 1][..], &[0.1, 1.0][..]));
        assert_eq!((point.attributes.len(), wait.data_points.len()), (1, 2));
        let Some(Data::Gauge(gauge)) = &named("weir_running").data else { panic!("no gauge") };
        assert_eq!(gauge.data_points[0].value, Some(Value::AsDouble(-2.0)));
        assert_eq!(metrics.len(), 3);
    }

    /// The text of the real registry has no line that the conversion skips.
    #[test]
    fn every_sample_of_the_registry_is_converted() {
        let registry = weir_telemetry::Metrics::new();
        registry.phase(weir_telemetry::Phase::Guest, std::time::Duration::from_millis(3));
        let text = registry.encode(None, weir_telemetry::TextFormat::OpenMetrics).unwrap();
        let metrics = decoded(&text);
        let points = |metric: &Metric| match metric.data.as_ref().unwrap() {
            Data::Gauge(gauge) => gauge.data_points.len(),
            Data::Sum(sum) => sum.data_points.len(),
            Data::Histogram(histogram) => histogram.data_points.len(),
            other => panic!("{other:?}"),
        };
        let is_point = |line: &&str| {
            let name = line.split(['{', ' ']).next().unwrap();
            !line.starts_with('#') && !name.ends_with("_bucket") && !name.ends_with("_sum")
        };
        assert_eq!(metrics.iter().map(points).sum::<usize>(), text.lines().filter(is_point).count());
        let phases = metrics.iter().find(|metric| metric.name == "weir_phase_seconds").unwrap();
        let Some(Data::Histogram(phases)) = &phases.data else { panic!("{phases:?}") };
        let guest = phases.data_points.iter().find(|point| point.count == 1).unwrap();
        assert_eq!(guest.bucket_counts.len(), guest.explicit_bounds.len() + 1);
        assert_eq!(guest.bucket_counts.iter().sum::<u64>(), 1);
    }
}
