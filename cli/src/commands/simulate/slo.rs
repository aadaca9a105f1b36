//! SLOs of simulated requests, and their admission settings.

use anyhow::Result;
use clap::ValueEnum;
use weir_scheduler::sim::{SloLatency, SloRule};
use weir_scheduler::{DeviceKind, PlacementPreference, SloSettings};
use weir_types::Cost;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "SLOs")]
pub(super) struct SloArgs {
    /// Latency objective: a multiple of the run time (20x), or a time (500ms, 30s)
    #[arg(long, value_name = "TIME", value_parser = latency)]
    slo: Option<SloLatency>,
    /// Maximum device cost of a request, including loads
    #[arg(long, value_name = "COST")]
    cost_slo: Option<Cost>,
    /// Fraction of the requests that have an SLO
    #[arg(long, value_name = "PART", default_value_t = 1.0, value_parser = super::part)]
    slo_part: f64,
    /// Reject requests on arrival that would miss their SLO; `both` simulates every policy with and
    /// without
    #[arg(long, value_enum, default_value_t)]
    admission: Admission,
    #[command(flatten)]
    placement: PlacementArgs,
    /// Cost of a second on a kind of device: `simulated`, or plain, small and large with --mixed;
    /// may be repeated [default: 1]
    #[arg(long = "price", value_name = "KIND=COST", value_parser = price)]
    prices: Vec<(DeviceKind, Cost)>,
}

/// Placement by SLOs, and run times that deviate from the expected times.
#[derive(Debug, clap::Args)]
pub(super) struct PlacementArgs {
    /// Choice among the placements that meet an SLO
    #[arg(long, value_enum, default_value_t)]
    choice: ChoiceName,
    /// Number of placements to compare with the cluster's state
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    sample: u16,
    /// Fraction of the time until a request's deadline to reserve for runs that take longer than
    /// expected
    #[arg(long, value_name = "PART", default_value_t = 0.0, value_parser = super::part)]
    margin: f64,
    /// Maximum deviation of run times from the expected times, as a fraction
    #[arg(long, value_name = "PART", default_value_t = 0.0, value_parser = super::part)]
    pub(super) jitter: f64,
}

impl PlacementArgs {
    /// The settings of an admission by SLOs.
    pub(super) fn settings(&self) -> SloSettings {
        SloSettings {
            choice: self.choice.into(),
            sample_len: self.sample.into(),
            margin: self.margin,
            ..SloSettings::default()
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Admission {
    On,
    Off,
    #[default]
    Both,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum ChoiceName {
    /// The placement with the lowest cost
    #[default]
    Cheapest,
    /// The placement with the earliest completion
    Fastest,
    /// A random placement
    Random,
}

impl From<ChoiceName> for PlacementPreference {
    fn from(choice: ChoiceName) -> Self {
        match choice {
            ChoiceName::Cheapest => Self::Cheapest,
            ChoiceName::Fastest => Self::Fastest,
            ChoiceName::Random => Self::Random,
        }
    }
}

impl SloArgs {
    /// Maximum deviation of run times from the expected times, as a fraction.
    pub(super) fn jitter(&self) -> f64 {
        self.placement.jitter
    }

    /// The SLO rule for requests, if an SLO option is set.
    pub(super) fn rule(&self) -> Option<SloRule> {
        let has_any = self.slo.is_some() || self.cost_slo.is_some();
        has_any.then(|| SloRule {
            latency: self.slo.unwrap_or(SloLatency::Ns(u64::MAX)),
            cost_max: self.cost_slo.unwrap_or(Cost::MAX),
            part: self.slo_part,
        })
    }

    /// The SLO settings to simulate.
    pub(super) fn settings(&self) -> Vec<SloSettings> {
        let with = |admission| SloSettings {
            admission,
            prices: self.prices.iter().cloned().collect(),
            ..self.placement.settings()
        };
        match self.admission {
            _ if self.rule().is_none() => vec![with(true)],
            Admission::On => vec![with(true)],
            Admission::Off => vec![with(false)],
            Admission::Both => vec![with(false), with(true)],
        }
    }
}

fn latency(text: &str) -> Result<SloLatency, String> {
    let number = |digits: &str| {
        let number: f64 = digits.parse().map_err(|error| format!("{error}; write 20x, 500ms or 30s"))?;
        if number > 0.0 && number < 1e9 {
            Ok(number)
        } else {
            Err("it must be above 0 and below 1e9".to_owned())
        }
    };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked just now")]
    let ns = |number: f64, unit_ns: f64| SloLatency::Ns((number * unit_ns) as u64);
    if let Some(times) = text.strip_suffix('x') {
        return number(times).map(SloLatency::Times);
    }
    if let Some(ms) = text.strip_suffix("ms") {
        return number(ms).map(|ms| ns(ms, 1e6));
    }
    number(text.strip_suffix('s').unwrap_or(text)).map(|s| ns(s, 1e9))
}

/// A time such as 500ms or 30s, in nanoseconds.
pub(super) fn time_ns(text: &str) -> Result<u64, String> {
    match latency(text)? {
        SloLatency::Ns(time_ns) => Ok(time_ns),
        SloLatency::Times(_) => Err("write 500ms or 30s".into()),
    }
}

fn price(text: &str) -> Result<(DeviceKind, Cost), String> {
    let (kind, cost) = text.split_once('=').ok_or("write KIND=COST")?;
    Ok((kind.into(), cost.parse()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_objective_has_three_formats() {
        assert_eq!(latency("20x"), Ok(SloLatency::Times(20.0)));
        assert_eq!(latency("500ms"), Ok(SloLatency::Ns(500_000_000)));
        assert_eq!(latency("1.5s"), latency("1500ms"));
        assert!(["", "x", "-1s", "0ms", "fast", "NaNx"].iter().all(|text| latency(text).is_err()));
        assert_eq!(price("cpu=0.5"), Ok(("cpu".into(), Cost::from_nanos(500_000_000))));
        assert!(price("cpu").is_err() && price("cpu=-1").is_err());
    }
}
