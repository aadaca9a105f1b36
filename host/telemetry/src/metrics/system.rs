//! Resource usage of the node's process as reported by the operating system, under the names that
//! Prometheus' client libraries agree on, and the version of the program.

use procfs::ProcResult;
use procfs::process::{LimitValue, Process};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

/// Reads `/proc/self` on every scrape. Figures that the system does not give are omitted.
#[derive(Debug)]
pub(super) struct SystemMetrics {
    started: SystemTime,
}

/// Resource usage of the process.
struct Accounted {
    cpu_time_s: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
    descriptors: usize,
    descriptors_max: Option<u64>,
}

impl SystemMetrics {
    /// The process started now.
    pub(super) fn new() -> Self {
        Self { started: SystemTime::now() }
    }
}

impl Accounted {
    #[expect(clippy::cast_precision_loss, reason = "Prometheus counters are floats")]
    fn read() -> ProcResult<Self> {
        let process = Process::myself()?;
        let stat = process.stat()?;
        let descriptors_max = match process.limits()?.max_open_files.soft_limit {
            LimitValue::Value(limit) => Some(limit),
            LimitValue::Unlimited => None,
        };
        Ok(Self {
            cpu_time_s: (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64,
            resident_bytes: stat.rss * procfs::page_size(),
            virtual_bytes: stat.vsize,
            descriptors: process.fd_count()?,
            descriptors_max,
        })
    }
}

impl Collector for SystemMetrics {
    #[expect(clippy::cast_precision_loss, reason = "Prometheus gauges are floats")]
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder
            .encode_descriptor(
                "weir_build_info",
                "Version of the program; the value is always 1",
                None,
                MetricType::Gauge,
            )?
            .encode_family(&Build { version: env!("CARGO_PKG_VERSION") })?
            .encode_gauge(&1)?;
        let mut gauge = |name, help, value: f64| {
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
        };
        if let Ok(since) = self.started.duration_since(UNIX_EPOCH) {
            gauge("process_start_time_seconds", "Start of the process, as Unix time", since.as_secs_f64())?;
        }
        let Ok(process) = Accounted::read() else { return Ok(()) };
        let resident = process.resident_bytes as f64;
        gauge("process_resident_memory_bytes", "Physical memory of the process", resident)?;
        gauge("process_virtual_memory_bytes", "Address space of the process", process.virtual_bytes as f64)?;
        gauge("process_open_fds", "Open file descriptors", process.descriptors as f64)?;
        if let Some(max) = process.descriptors_max {
            gauge("process_max_fds", "Limit of open file descriptors", max as f64)?;
        }
        encoder
            .encode_descriptor(
                "process_cpu_seconds",
                "Processor time of the process",
                None,
                MetricType::Counter,
            )?
            .encode_counter::<[(&str, &str); 0], _, f64>(&process.cpu_time_s, None)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Metrics, TextFormat};
    use std::time::{SystemTime, UNIX_EPOCH};

    /// The value of the only sample of a metric.
    fn value(text: &str, name: &str) -> f64 {
        let mut values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = values.next().unwrap_or_else(|| panic!("{name} is not in\n{text}"));
        assert_eq!(values.next(), None, "{name}");
        value.parse().unwrap()
    }

    #[test]
    fn process_is_accounted_under_the_names_of_prometheus() {
        let metrics = Metrics::new();
        let text = metrics.encode(None, TextFormat::Prometheus).unwrap();
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let started_s = value(&text, "process_start_time_seconds");
        assert!((now_s - 60.0..=now_s).contains(&started_s), "{started_s}");
        assert!(value(&text, "process_resident_memory_bytes") > 1e6);
        assert!(value(&text, "process_virtual_memory_bytes") > value(&text, "process_resident_memory_bytes"));
        assert!(value(&text, "process_cpu_seconds_total") >= 0.0);
        assert!(value(&text, "process_open_fds") <= value(&text, "process_max_fds"));
        let build = concat!("weir_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1");
        assert!(text.lines().any(|line| line == build), "{text}");
    }
}
