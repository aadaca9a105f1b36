//! Prometheus' text format, made of the OpenMetrics text format. The formats agree on samples, and
//! differ in the metadata: OpenMetrics names a counter without its `_total`, and has units and an
//! end.

/// Converts OpenMetrics text, as the encoder writes it: `HELP`, `TYPE` and `UNIT` of a metric, in
/// this order, before its samples.
pub(super) fn from_openmetrics(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        if let Some(named) = line.strip_prefix("# HELP ") {
            help = named.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                other => ("", other),
            };
            if let Some((_, help)) = help.take().filter(|(of, _)| *of == name) {
                plain.extend(["# HELP ", name, suffix, " ", help, "\n"]);
            }
            plain.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
        } else if !line.starts_with('#') {
            plain.extend([line, "\n"]);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_has_the_names_of_the_samples() {
        let text = concat!(
            "# HELP weir_calls Calls that ended.\n# TYPE weir_calls counter\n",
            "weir_calls_total{code=\"ok\"} 3\n",
            "# HELP weir_time_seconds A time.\n# TYPE weir_time_seconds histogram\n",
            "# UNIT weir_time_seconds seconds\n",
            "weir_time_seconds_sum 0.5\nweir_time_seconds_count 1\n",
            "weir_time_seconds_bucket{le=\"+Inf\"} 1\n",
            "# HELP nv_requests Requests.\n# TYPE nv_requests unknown\nnv_requests 2\n",
            "# EOF\n",
        );
        let expected = concat!(
            "# HELP weir_calls_total Calls that ended.\n# TYPE weir_calls_total counter\n",
            "weir_calls_total{code=\"ok\"} 3\n",
            "# HELP weir_time_seconds A time.\n# TYPE weir_time_seconds histogram\n",
            "weir_time_seconds_sum 0.5\nweir_time_seconds_count 1\n",
            "weir_time_seconds_bucket{le=\"+Inf\"} 1\n",
            "# HELP nv_requests Requests.\n# TYPE nv_requests untyped\nnv_requests 2\n",
        );
        assert_eq!(from_openmetrics(text), expected);
    }
}
