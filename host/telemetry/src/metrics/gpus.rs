//! GPU figures for `/metrics`, under the names that dashboards for Triton expect.

use crate::gpus::GpuMonitor;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use weir_device::GpuFigures;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GpuLabels {
    gpu_uuid: String,
}

type GpuGauge = (&'static str, &'static str, MetricType, fn(&GpuFigures) -> Option<f64>);

#[expect(clippy::cast_precision_loss, reason = "Prometheus gauges are floats")]
const NUMBERS: [GpuGauge; 6] = [
    (
        "nv_gpu_utilization",
        "Fraction of the time in which the GPU was busy, from 0 to 1",
        MetricType::Gauge,
        |gpu| gpu.utilization,
    ),
    ("nv_gpu_memory_total_bytes", "Memory of the GPU", MetricType::Gauge, |gpu| {
        gpu.memory_total_bytes.map(|bytes| bytes as f64)
    }),
    ("nv_gpu_memory_used_bytes", "GPU memory used by all processes", MetricType::Gauge, |gpu| {
        gpu.memory_used_bytes.map(|bytes| bytes as f64)
    }),
    ("nv_gpu_power_usage", "Power draw of the GPU, in watts", MetricType::Gauge, |gpu| gpu.power_w),
    ("nv_gpu_power_limit", "Power limit of the GPU, in watts", MetricType::Gauge, |gpu| gpu.power_limit_w),
    // Cumulative, but without the `_total` suffix that OpenMetrics requires for counters and that
    // dashboards do not expect.
    (
        "nv_energy_consumption",
        "Energy consumption of the GPU since the first sample, in joules",
        MetricType::Unknown,
        |gpu| gpu.energy_j,
    ),
];

impl Collector for GpuMonitor {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let gpus = self.figures();
        for (name, help, kind, value) in NUMBERS {
            let told: Vec<_> = gpus.iter().filter_map(|gpu| Some((gpu, value(gpu)?))).collect();
            if told.is_empty() {
                continue;
            }
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            for (gpu, value) in told {
                let labels = GpuLabels { gpu_uuid: gpu.uuid.clone() };
                metric.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::gpus::GpuSource;
    use crate::{Metrics, TextFormat};
    use std::sync::Arc;
    use weir_device::GpuFigures;

    struct Two;

    impl GpuSource for Two {
        fn read(&self) -> Vec<GpuFigures> {
            let gpu = |uuid: &str| GpuFigures {
                uuid: uuid.into(),
                utilization: Some(0.25),
                ..GpuFigures::default()
            };
            vec![GpuFigures { power_limit_w: Some(700.5), ..gpu("GPU-a") }, gpu("GPU-b")]
        }
    }

    #[tokio::test]
    async fn missing_gpu_figures_are_omitted() {
        let metrics = Metrics::new();
        assert!(!metrics.encode(None, TextFormat::OpenMetrics).unwrap().contains("nv_gpu"));
        metrics.gpus.watch(Arc::new(Two));
        metrics.gpus.refresh().await;
        let text = metrics.encode(None, TextFormat::OpenMetrics).unwrap();
        let shown: Vec<_> =
            text.lines().filter(|line| line.starts_with("nv_gpu") || line.starts_with("nv_energy")).collect();
        let expected = [
            "nv_gpu_utilization{gpu_uuid=\"GPU-a\"} 0.25",
            "nv_gpu_utilization{gpu_uuid=\"GPU-b\"} 0.25",
            "nv_gpu_power_limit{gpu_uuid=\"GPU-a\"} 700.5",
        ];
        assert_eq!(shown, expected, "{text}");
    }
}
