//! Samples of Prometheus' text format, and quantiles between two scrapes.

use std::collections::BTreeMap;

/// The samples of one scrape, by metric.
#[derive(Debug, Default)]
pub(super) struct Samples(BTreeMap<String, Vec<Sample>>);

#[derive(Debug)]
struct Sample {
    labels: Vec<(String, String)>,
    value: f64,
}

impl Sample {
    fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }

    fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(name, value)| self.label(name) == Some(value))
    }
}

impl Samples {
    /// Parses a scrape. Lines that are no samples are left out.
    pub(super) fn parse(text: &str) -> Self {
        let mut all = BTreeMap::<String, Vec<Sample>>::new();
        for (name, sample) in text.lines().filter_map(parse_line) {
            all.entry(name).or_default().push(sample);
        }
        Self(all)
    }

    fn select<'a>(&'a self, metric: &str, labels: &'a [(&str, &str)]) -> impl Iterator<Item = &'a Sample> {
        self.0.get(metric).into_iter().flatten().filter(|sample| sample.has(labels))
    }

    /// The sum of the samples with these labels.
    pub(super) fn sum(&self, metric: &str, labels: &[(&str, &str)]) -> f64 {
        self.select(metric, labels).map(|sample| sample.value).sum()
    }

    /// The values of a label, sorted, without duplicates.
    pub(super) fn values(&self, metric: &str, label: &str) -> Vec<String> {
        let samples = self.select(metric, &[]);
        let mut values: Vec<String> =
            samples.filter_map(|sample| sample.label(label).map(str::to_owned)).collect();
        values.sort();
        values.dedup();
        values
    }

    /// The value below which a fraction of the observations since `before` lie, from the buckets of
    /// a histogram, interpolated within its bucket; `None` without observations. The last, unbounded
    /// bucket counts as its lower bound.
    pub(super) fn quantile(
        &self,
        before: &Self,
        histogram: &str,
        labels: &[(&str, &str)],
        fraction: f64,
    ) -> Option<f64> {
        let metric = format!("{histogram}_bucket");
        let buckets = self.buckets(&metric, labels);
        let earlier = before.buckets(&metric, labels);
        let count = |(bound, count): &(f64, f64)| {
            let earlier = earlier.iter().find(|(earlier, _)| earlier == bound);
            (*bound, (count - earlier.map_or(0.0, |(_, count)| *count)).max(0.0))
        };
        let buckets: Vec<(f64, f64)> = buckets.iter().map(count).collect();
        let total = buckets.last().map(|(_, count)| *count).filter(|total| *total > 0.0)?;
        let wanted = fraction * total;
        let place = buckets.iter().position(|(_, count)| *count >= wanted)?;
        let below = place.checked_sub(1).and_then(|place| buckets.get(place)).copied().unwrap_or((0.0, 0.0));
        let (bound, count) = *buckets.get(place)?;
        if bound.is_infinite() {
            return Some(below.0);
        }
        let share = if count > below.1 { (wanted - below.1) / (count - below.1) } else { 1.0 };
        Some(below.0 + (bound - below.0) * share)
    }

    /// Cumulative counts by upper bound, over all series with these labels.
    fn buckets(&self, metric: &str, labels: &[(&str, &str)]) -> Vec<(f64, f64)> {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for sample in self.select(metric, labels) {
            let Some(bound) = sample.label("le").and_then(parse_number) else { continue };
            match buckets.iter_mut().find(|(known, _)| *known == bound) {
                Some((_, count)) => *count += sample.value,
                None => buckets.push((bound, sample.value)),
            }
        }
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        buckets
    }
}

/// Parses `NAME{LABEL="VALUE",...} NUMBER`.
fn parse_line(line: &str) -> Option<(String, Sample)> {
    if line.starts_with('#') {
        return None;
    }
    let name_len = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(name_len);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => parse_labels(rest)?,
        None => (Vec::new(), rest),
    };
    let value = parse_number(rest.split_whitespace().next()?)?;
    Some((name.to_owned(), Sample { labels, value }))
}

/// Parses labels up to the closing brace, and returns the text after it.
fn parse_labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches(',');
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = after.char_indices();
        loop {
            let (at, c) = chars.next()?;
            match c {
                '"' => {
                    rest = after.get(at + 1..)?;
                    break;
                }
                '\\' => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                other => value.push(other),
            }
        }
        labels.push((name.to_owned(), value));
    }
}

fn parse_number(text: &str) -> Option<f64> {
    match text {
        "+Inf" => Some(f64::INFINITY),
        other => other.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# HELP calls Calls.
# TYPE calls counter
calls_total{function="a",code="ok"} 4
calls_total{function="a",code="guest-trap"} 1
calls_total{function="b\"{\\,}",code="ok"} 7 1700000000
running 3
seconds_bucket{function="a",le="0.1"} 2
seconds_bucket{function="a",le="0.2"} 4
seconds_bucket{function="a",le="+Inf"} 5
seconds_bucket{function="b",le="0.1"} 6
"#;

    #[test]
    fn samples_are_summed_by_their_labels() {
        let samples = Samples::parse(TEXT);
        assert_eq!(samples.sum("calls_total", &[]), 12.0);
        assert_eq!(samples.sum("calls_total", &[("function", "a")]), 5.0);
        assert_eq!(samples.sum("calls_total", &[("function", "a"), ("code", "ok")]), 4.0);
        assert_eq!((samples.sum("running", &[]), samples.sum("unknown", &[])), (3.0, 0.0));
        assert_eq!(samples.values("calls_total", "function"), ["a", "b\"{\\,}"]);
    }

    #[test]
    fn quantiles_count_from_the_scrape_before() {
        let [none, now] = ["", TEXT].map(Samples::parse);
        let quantile = |before: &Samples, labels: &[(&str, &str)], fraction| {
            now.quantile(before, "seconds", labels, fraction)
        };
        let a = [("function", "a")];
        let close = |value: Option<f64>, expected: f64| (value.unwrap() - expected).abs() < 1e-9;
        assert!(close(quantile(&none, &a, 0.4), 0.1));
        assert!(close(quantile(&none, &a, 0.6), 0.15), "half of the second bucket");
        assert!(close(quantile(&none, &a, 0.99), 0.2), "the unbounded bucket");
        assert_eq!(quantile(&now, &a, 0.5), None, "nothing since");
        let before = Samples::parse("seconds_bucket{function=\"a\",le=\"0.1\"} 2\n");
        assert!(quantile(&before, &a, 0.5).unwrap() > 0.1, "the first two were before");
    }
}
