//! Inference statistics for `/metrics`: under Weir's names, and under the names that dashboards for
//! Triton expect.

use super::served::{AllServed, Counter, Served, ServedSeries};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_call::ObjectiveOutcome as Kept;
use weir_types::ErrorCode;

type Encoded = Result<(), std::fmt::Error>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TritonModelLabels {
    tenant: String,
    model: String,
    version: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TritonOutcomeLabels {
    tenant: String,
    model: String,
    version: String,
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TritonSloLabels {
    tenant: String,
    model: String,
    version: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelColdStartLabels {
    tenant: String,
    model: String,
    version: String,
    cause: &'static str,
    from: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TritonFailureLabels {
    tenant: String,
    model: String,
    version: String,
    reason: &'static str,
}

impl Collector for AllServed {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Encoded {
        let all = self.list();
        if all.is_empty() {
            return Ok(());
        }
        outcomes(&mut encoder, &all)?;
        failures(&mut encoder, &all)?;
        for (name, help, value) in NUMBERS {
            // Cumulative, but without the `_total` suffix that OpenMetrics requires for counters
            // and that dashboards do not expect.
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Unknown)?;
            for served in &all {
                metric.encode_family(&model(served))?.encode_gauge(&i64_of(value(served.series())))?;
            }
        }
        let help = "Pending inferences";
        let mut metric =
            encoder.encode_descriptor("nv_inference_pending_request_count", help, None, MetricType::Gauge)?;
        for served in &all {
            let pending = served.series().pending.load(Ordering::Relaxed);
            metric.encode_family(&model(served))?.encode_gauge(&i64_of(pending))?;
        }
        Ok(())
    }
}

/// Encodes the series with Weir's names.
fn outcomes(encoder: &mut DescriptorEncoder<'_>, all: &[Served]) -> Encoded {
    let help = "Inferences of models and tensor functions that ended, by outcome";
    let mut metric = encoder.encode_descriptor("weir_inferences", help, None, MetricType::Counter)?;
    let codes = || std::iter::once("ok").chain(ErrorCode::ALL.iter().map(|code| code.as_str()));
    for served in all {
        for (code, count) in codes().zip(&served.series().outcomes) {
            let count = count.load(Ordering::Relaxed);
            if count > 0 || code == "ok" {
                let TritonModelLabels { tenant, model, version } = model(served);
                let labels = TritonOutcomeLabels { tenant, model, version, code };
                metric.encode_family(&labels)?.encode_counter::<[(&str, &str); 0], _, u64>(&count, None)?;
            }
        }
    }
    let help = "From an inference's arrival to its answer";
    let mut metric =
        encoder.encode_descriptor("weir_inference_seconds", help, None, MetricType::Histogram)?;
    for served in all {
        served.series().seconds.encode(metric.encode_family(&model(served))?)?;
    }
    objectives(encoder, all)?;
    cold_starts(encoder, all)?;
    batches(encoder, all)
}

/// Encodes the loads of models that calls waited for.
fn cold_starts(encoder: &mut DescriptorEncoder<'_>, all: &[Served]) -> Encoded {
    let help = "Loads of a model that calls waited for, by cause, and by where the model came from";
    let mut metric = encoder.encode_descriptor("weir_model_cold_starts", help, None, MetricType::Counter)?;
    for served in all {
        for (cold_start, count) in served.series().cold_starts.counts() {
            let TritonModelLabels { tenant, model, version } = model(served);
            let (cause, from) = cold_start.labels();
            let labels = ModelColdStartLabels { tenant, model, version, cause, from };
            metric.encode_family(&labels)?.encode_counter::<[(&str, &str); 0], _, u64>(&count, None)?;
        }
    }
    Ok(())
}

/// Encodes the outcomes of service level objectives. The kept objectives are the goodput.
fn objectives(encoder: &mut DescriptorEncoder<'_>, all: &[Served]) -> Encoded {
    let help = "Inferences with a service level objective, by what became of it";
    let mut metric = encoder.encode_descriptor("weir_slo_inferences", help, None, MetricType::Counter)?;
    for served in all {
        let counts =
            Kept::ALL.iter().zip(&served.series().objectives).map(|(outcome, count)| (outcome, load(count)));
        if served.series().objectives.iter().all(|count| load(count) == 0) {
            continue;
        }
        for (outcome, count) in counts {
            let TritonModelLabels { tenant, model, version } = model(served);
            let labels = TritonSloLabels { tenant, model, version, outcome: outcome.as_str() };
            metric.encode_family(&labels)?.encode_counter::<[(&str, &str); 0], _, u64>(&count, None)?;
        }
    }
    Ok(())
}

/// Encodes the sizes of batches.
fn batches(encoder: &mut DescriptorEncoder<'_>, all: &[Served]) -> Encoded {
    type Of<T> = fn(&ServedSeries) -> &T;
    let histograms: [(&str, &str, Of<Histogram>); 2] = [
        ("weir_run_items", "Items in a run of a model", |series| &series.runs.items),
        ("weir_run_requests", "Inferences answered by a run of a model", |series| &series.runs.requests),
    ];
    for (name, help, histogram) in histograms {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for served in all {
            histogram(served.series()).encode(metric.encode_family(&model(served))?)?;
        }
    }
    let counters: [(&str, &str, Of<AtomicU64>); 2] = [
        ("weir_run_input_bytes", "Input bytes of runs, including padding", |series| &series.runs.input_bytes),
        ("weir_run_padding_bytes", "Input bytes that only pad shorter inputs", |series| {
            &series.runs.padding_bytes
        }),
    ];
    for (name, help, counter) in counters {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for served in all {
            let count = load(counter(served.series()));
            let family = &model(served);
            metric.encode_family(family)?.encode_counter::<[(&str, &str); 0], _, u64>(&count, None)?;
        }
    }
    Ok(())
}

type TritonCounter = (&'static str, &'static str, fn(&ServedSeries) -> u64);

const NUMBERS: [TritonCounter; 12] = [
    ("nv_inference_request_success", "Successful inferences", |series| series.success.read().count),
    ("nv_inference_count", "Inferred items; an inference counts with the items in its batch", |series| {
        load(&series.items)
    }),
    ("nv_inference_exec_count", "Runs of the model; a run may answer several inferences", |series| {
        load(&series.runs.count)
    }),
    ("nv_inference_request_duration_us", "Time of inferences from arrival to answer", |series| {
        microseconds(&series.success)
    }),
    ("nv_inference_queue_duration_us", "Waiting time of inferences", |series| {
        microseconds(&series.phases.queue)
    }),
    ("nv_inference_compute_input_duration_us", "Time to read inputs", |series| {
        microseconds(&series.phases.input)
    }),
    ("nv_inference_compute_infer_duration_us", "Run time", |series| microseconds(&series.phases.infer)),
    ("nv_inference_compute_output_duration_us", "Time to write outputs", |series| {
        microseconds(&series.phases.output)
    }),
    (
        "nv_cache_num_hits_per_model",
        "Inferences answered with the cached or shared response of an equal inference",
        |series| series.cache.hit.read().count,
    ),
    ("nv_cache_num_misses_per_model", "Inferences that found no cached response and ran", |series| {
        series.cache.miss.read().count
    }),
    ("nv_cache_hit_duration_per_model", "Lookup time of cache hits, in microseconds", |series| {
        microseconds(&series.cache.hit)
    }),
    ("nv_cache_miss_duration_per_model", "Lookup time of cache misses, in microseconds", |series| {
        microseconds(&series.cache.miss)
    }),
];

fn failures(encoder: &mut DescriptorEncoder<'_>, all: &[Served]) -> Encoded {
    let help = "Inferences that failed, by reason";
    let mut metric =
        encoder.encode_descriptor("nv_inference_request_failure", help, None, MetricType::Unknown)?;
    for served in all {
        for reason in ["REJECTED", "CANCELED", "BACKEND", "OTHER"] {
            let failed = ErrorCode::ALL.iter().zip(served.series().outcomes.iter().skip(1));
            let count =
                failed.filter(|(code, _)| reason_of(**code) == reason).map(|(_, count)| load(count)).sum();
            let TritonModelLabels { tenant, model, version } = model(served);
            let labels = TritonFailureLabels { tenant, model, version, reason };
            metric.encode_family(&labels)?.encode_gauge(&i64_of(count))?;
        }
    }
    Ok(())
}

/// Returns one of Triton's four failure reasons.
fn reason_of(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::QueueFull
        | ErrorCode::AnswersFull
        | ErrorCode::NoCapacity
        | ErrorCode::NoDevice
        | ErrorCode::Unavailable
        | ErrorCode::ModelQuarantined
        | ErrorCode::DeadlineExceeded => "REJECTED",
        ErrorCode::Cancelled => "CANCELED",
        ErrorCode::ModelError
        | ErrorCode::WorkerLost
        | ErrorCode::GuestTrap
        | ErrorCode::GuestError
        | ErrorCode::Internal => "BACKEND",
        _ => "OTHER",
    }
}

fn model(served: &Served) -> TritonModelLabels {
    let owner = &served.series().owner;
    TritonModelLabels {
        tenant: owner.tenant.to_string(),
        model: owner.name.to_string(),
        version: owner.version.to_string(),
    }
}

fn microseconds(counter: &Counter) -> u64 {
    counter.read().time_ns / 1_000
}

fn load(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}

fn i64_of(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use crate::{Metrics, TextFormat, Times};
    use std::time::{Duration, Instant};
    use weir_inference::Execution;
    use weir_types::{ErrorCode, Name, TenantId, Version};

    #[test]
    fn triton_metric_names_are_shown_per_tenant() {
        let metrics = Metrics::new();
        let tenant = TenantId::new("acme").unwrap();
        let served = metrics.served(&tenant, &Name::new("m").unwrap(), Version(2));
        let execution = Execution { requests: 2, items: 5, input_bytes: 64, padding_bytes: 16 };
        let times = Times { batch: 4, infer: Duration::from_micros(40), ..Times::default() };
        served.begin(Instant::now()).done(Times { execution: Some(execution), ..times });
        served.begin(Instant::now()).done(Times { batch: 1, infer: Duration::from_micros(30), ..times });
        served.begin(Instant::now()).failed(ErrorCode::QueueFull);
        let text = metrics.encode(Some(&tenant), TextFormat::OpenMetrics).unwrap();
        let labels = r#"tenant="acme",model="m",version="2""#;
        for line in [
            format!("nv_inference_request_success{{{labels}}} 2"),
            format!("nv_inference_request_failure{{{labels},reason=\"REJECTED\"}} 1"),
            format!("nv_inference_request_failure{{{labels},reason=\"CANCELED\"}} 0"),
            format!("nv_inference_count{{{labels}}} 5"),
            format!("nv_inference_exec_count{{{labels}}} 1"),
            format!("nv_inference_compute_infer_duration_us{{{labels}}} 70"),
            format!("nv_inference_pending_request_count{{{labels}}} 0"),
            format!("weir_inferences_total{{{labels},code=\"ok\"}} 2"),
            format!("weir_inferences_total{{{labels},code=\"queue-full\"}} 1"),
            format!("weir_inference_seconds_count{{{labels}}} 3"),
            format!("weir_run_items_sum{{{labels}}} 5.0"),
            format!("weir_run_requests_count{{{labels}}} 1"),
            format!("weir_run_input_bytes_total{{{labels}}} 64"),
            format!("weir_run_padding_bytes_total{{{labels}}} 16"),
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
        }
        let other = metrics.encode(Some(&TenantId::new("other").unwrap()), TextFormat::OpenMetrics).unwrap();
        assert!(!other.contains("acme"), "{other}");
    }
}
