//! Table of the results.

use crate::output::table;
use weir_device::OperatingPoint;
use weir_gpu_check::Check;

/// Maximum number of launches shown for a failed check; OUT and `--json` have all launches.
const LAUNCHES_SHOWN: usize = 3;

pub(super) fn text(checks: &[Check]) -> String {
    let rows = checks.iter().map(|check| {
        [
            check.stage.to_string(),
            check.what.clone(),
            check.tier.map_or_else(String::new, |tier| tier.to_string()),
            if check.passed { "ok" } else { "FAILED" }.to_owned(),
            check
                .error
                .zip(check.tolerance)
                .map_or_else(String::new, |(error, of)| format!("{error:.1e} of {of:.1e}")),
            check.time_ns.map_or_else(String::new, time),
            rate(check),
            check.share_of_floor.map_or_else(String::new, |share| format!("{:.1} %", 100.0 * share)),
            check.clocks.map_or_else(String::new, clocks),
            check.goal.as_ref().map_or_else(String::new, ToString::to_string),
            detail(check),
        ]
    });
    table(["STAGE", "WHAT", "TIER", "", "OFF BY", "TIME", "RATE", "OF FLOOR", "CLOCKS", "GOAL", ""], rows)
}

/// Explanation of a check. For a failed check, includes the worst element and the launches.
pub(super) fn detail(check: &Check) -> String {
    let worst = check.worst.map(|worst| worst.to_string());
    let launches = check.launches.iter().take(LAUNCHES_SHOWN).map(ToString::to_string);
    let more = check.launches.len().saturating_sub(LAUNCHES_SHOWN);
    let more = (more > 0).then(|| format!("{more} more launches"));
    let detail = Some(check.detail.clone()).filter(|detail| !detail.is_empty());
    detail.into_iter().chain(worst).chain(launches).chain(more).collect::<Vec<_>>().join("; ")
}

#[expect(clippy::cast_precision_loss, reason = "shown with four digits")]
fn time(ns: u64) -> String {
    match ns {
        0..10_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

/// The check's rates, in bytes or operations per second.
fn rate(check: &Check) -> String {
    let bytes = check.bytes_per_s.map(|rate| format!("{:.1} GB/s", rate / 1e9));
    let flops = check.flops_per_s.map(|rate| format!("{:.2} TFLOP/s", rate / 1e12));
    [bytes, flops].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Formats an operating point as `1980/3201 MHz 350 W gen5 x16`: SM clock, memory clock, power,
/// PCIe link.
fn clocks(point: OperatingPoint) -> String {
    let number = |number: Option<u32>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    let power = point.power_w.map_or_else(|| "?".to_owned(), |power_w| format!("{power_w:.0}"));
    format!(
        "{}/{} MHz {power} W gen{} x{}",
        number(point.sm_clock_mhz),
        number(point.memory_clock_mhz),
        number(point.pcie_generation),
        number(point.pcie_width)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operating_point_has_short_text() {
        let point = OperatingPoint {
            sm_clock_mhz: Some(1_980),
            memory_clock_mhz: Some(3_201),
            power_w: Some(349.6),
            pcie_generation: Some(5),
            pcie_width: None,
        };
        assert_eq!(clocks(point), "1980/3201 MHz 350 W gen5 x?");
    }

    #[test]
    fn failed_check_shows_its_worst_element_and_first_launches() {
        let launch = serde_json::json!(
            {"kernel": "k", "grid": [2, 1, 1], "block": [256, 1, 1], "shared_bytes": 64}
        );
        let check: Check = serde_json::from_value(serde_json::json!({
            "stage": "operations", "what": "w", "passed": false, "detail": "wrong",
            "worst": {"output": 0, "index": 7, "expected": 1.5, "found": "NaN"},
            "launches": vec![launch; 5],
        }))
        .unwrap();
        let text = detail(&check);
        assert!(
            text.starts_with("wrong; output 0, element 7: NaN instead of 1.5; k grid [2, 1, 1]"),
            "{text}"
        );
        assert!(
            text.contains("block [256, 1, 1] shared 64 B") && text.ends_with("2 more launches"),
            "{text}"
        );
    }
}
