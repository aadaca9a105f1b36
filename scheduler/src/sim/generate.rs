//! Generated workloads, determined by a recipe and a seed.

use super::workload::{MB, ModelCosts, SimRequest, Workload, WorkloadError};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use std::str::FromStr;

/// The LALB paper, Table I: (MB in device memory, load ms, run ms) of 22 models at batch size 32.
pub const TABLE_I: [(u64, u64, u64); 22] = [
    (1269, 2410, 1280),
    (1313, 2520, 1250),
    (1357, 2600, 1250),
    (1435, 2320, 1330),
    (1437, 2810, 1250),
    (1555, 2640, 1290),
    (1601, 2490, 1280),
    (1631, 2560, 1300),
    (1665, 2670, 1400),
    (1701, 2670, 1280),
    (1757, 2950, 1300),
    (1827, 3100, 1310),
    (1919, 2750, 1320),
    (2157, 4420, 1630),
    (2191, 3510, 1330),
    (2903, 3940, 1290),
    (3611, 3160, 1310),
    (3831, 3910, 1320),
    (3887, 3980, 1300),
    (3907, 4040, 1270),
    (3907, 4030, 1260),
    (3947, 4070, 1330),
];

/// The parameters of a generated workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Recipe {
    /// Number of functions, each with its own model. Every 22 models have the costs of [`TABLE_I`]
    /// in a random order.
    pub functions: u32,
    /// Distribution of arrivals over functions.
    pub popularity: Popularity,
    /// Distribution of arrivals over time.
    pub arrivals: Arrivals,
    /// Duration.
    pub minutes: u32,
    /// Average arrivals per minute.
    pub per_minute: u32,
    /// Number of devices.
    pub devices: u32,
    /// Memory of each device.
    pub capacity_mb: u64,
    /// Number of tenants that functions are assigned to in turn.
    pub tenants: u32,
}

/// The share of arrivals of each function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Popularity {
    /// The share of the function of rank k is proportional to k to the power of minus this
    /// exponent.
    Zipf(f64),
    /// All functions have equal shares.
    Uniform,
}

/// The distribution of arrivals over time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// The LALB paper: each function has the same number of arrivals in every minute, at random
    /// times.
    PerMinute,
    /// A Poisson process.
    Poisson,
    /// Each function alternates between idle and busy periods. Busy periods last this many seconds
    /// on average and take a tenth of the time.
    Sporadic(f64),
    /// Half of a minute's arrivals come in this many seconds at its start.
    Burst(f64),
    /// A Poisson process whose rate oscillates between zero and twice the average, with a period of
    /// this many seconds.
    Diurnal(f64),
}

/// Named recipes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Preset {
    /// The public trace's skew: the 15 most popular of 46,413 functions have 56 % of all arrivals.
    Trace,
    /// A flat distribution and little memory, which overwhelm locality under in-order dispatch.
    Overload,
    /// Equal functions, with slightly more memory than in `Overload`.
    Uniform,
}

impl Preset {
    /// All presets.
    pub const ALL: [Self; 3] = [Self::Trace, Self::Overload, Self::Uniform];

    /// The preset's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Overload => "overload",
            Self::Uniform => "uniform",
        }
    }

    /// The recipe: the LALB paper's cluster and rate, with a working set of `functions`.
    #[must_use]
    pub fn recipe(self, functions: u32) -> Recipe {
        let (popularity, capacity_mb) = match self {
            Self::Trace => (Popularity::Zipf(1.2176), 8192),
            Self::Overload => (Popularity::Zipf(0.4), 7680),
            Self::Uniform => (Popularity::Uniform, 7800),
        };
        Recipe {
            functions,
            popularity,
            arrivals: Arrivals::PerMinute,
            minutes: 6,
            per_minute: 325,
            devices: 12,
            capacity_mb,
            tenants: 1,
        }
    }
}

impl FromStr for Preset {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let preset = Self::ALL.into_iter().find(|preset| preset.as_str() == name);
        preset.ok_or_else(|| {
            format!("there is no preset {name:?}; there are: {}", Self::ALL.map(Self::as_str).join(", "))
        })
    }
}

const MINUTE_NS: f64 = 60e9;

impl Recipe {
    /// Generates the workload for a seed.
    ///
    /// # Errors
    /// If the recipe is invalid, for example without functions, or with devices too small for Table
    /// I.
    pub fn make(&self, seed: u64) -> Result<Workload, WorkloadError> {
        if self.functions == 0 {
            return Err(WorkloadError::Missing("at least one function"));
        }
        let mut rng = Pcg64::seed_from_u64(seed);
        let models = table_models(self.functions, &mut rng);
        let tenants = self.tenants.max(1);
        let mut arrivals = self.arrive(&mut rng);
        arrivals.sort_unstable();
        let request = |(arrived_at_ns, model)| SimRequest { arrived_at_ns, model, tenant: model % tenants };
        let requests = arrivals.into_iter().map(request).collect();
        Workload::new(models, requests, self.devices, self.capacity_mb * MB)
    }

    fn arrive(&self, rng: &mut Pcg64) -> Vec<(u64, u32)> {
        let shares = self.shares();
        let pick = |rng: &mut Pcg64| {
            let at = rng.random::<f64>();
            let below = shares.iter().scan(0.0, |sum, share| {
                *sum += share;
                Some(*sum)
            });
            let model = below.take_while(|sum| *sum <= at).count().min(shares.len() - 1);
            u32::try_from(model).unwrap_or(0)
        };
        let end_ns = f64::from(self.minutes) * MINUTE_NS;
        let rate = f64::from(self.per_minute) / MINUTE_NS;
        let counts = counts_of(&shares, self.per_minute);
        match self.arrivals {
            Arrivals::PerMinute => (0..self.minutes)
                .flat_map(|minute| every(&counts).map(move |model| (minute, model)))
                .map(|(minute, model)| {
                    (at(f64::from(minute) * MINUTE_NS + rng.random::<f64>() * MINUTE_NS), model)
                })
                .collect(),
            Arrivals::Burst(seconds) => {
                let burst_ns = (seconds * 1e9).clamp(0.0, MINUTE_NS);
                let minutes =
                    (0..self.minutes).flat_map(|minute| every(&counts).map(move |model| (minute, model)));
                minutes
                    .map(|(minute, model)| {
                        let length_ns = if rng.random::<bool>() { burst_ns } else { MINUTE_NS };
                        (at(f64::from(minute) * MINUTE_NS + rng.random::<f64>() * length_ns), model)
                    })
                    .collect()
            }
            Arrivals::Poisson => {
                let times = poisson(rng, rate, end_ns);
                times.into_iter().map(|time_ns| (at(time_ns), pick(rng))).collect()
            }
            Arrivals::Diurnal(seconds) => {
                // Thins out a process of twice the rate.
                let period_ns = (seconds * 1e9).max(1.0);
                let mut times = poisson(rng, 2.0 * rate, end_ns);
                let chance = |time_ns: f64| 0.5 - 0.5 * (std::f64::consts::TAU * time_ns / period_ns).cos();
                times.retain(|time_ns| rng.random::<f64>() < chance(*time_ns));
                times.into_iter().map(|time_ns| (at(time_ns), pick(rng))).collect()
            }
            Arrivals::Sporadic(seconds) => {
                let busy_ns = (seconds * 1e9).max(1.0);
                let models = (0_u32..).zip(&shares);
                models
                    .flat_map(|(model, share)| sporadic(rng, rate * share, busy_ns, end_ns, model))
                    .collect()
            }
        }
    }

    fn shares(&self) -> Vec<f64> {
        let weights: Vec<f64> = match self.popularity {
            Popularity::Uniform => vec![1.0; self.functions as usize],
            Popularity::Zipf(exponent) => {
                (1..=self.functions).map(|rank| f64::from(rank).powf(-exponent)).collect()
            }
        };
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    }
}

/// Models with the costs of [`TABLE_I`], in a random order, repeated if there are more.
pub(super) fn table_models(count: u32, rng: &mut Pcg64) -> Vec<ModelCosts> {
    let mut models = Vec::new();
    while models.len() < count as usize {
        let mut rows = TABLE_I;
        rows.shuffle(rng);
        models.extend(rows.map(|(mb, load_ms, run_ms)| ModelCosts {
            bytes: mb * MB,
            load_time_ns: load_ms * 1_000_000,
            run_time_ns: run_ms * 1_000_000,
        }));
    }
    models.truncate(count as usize);
    models
}

/// Whole numbers proportional to `shares` that add up to `total`, by the largest remainder method.
pub(super) fn counts_of(shares: &[f64], total: u32) -> Vec<u32> {
    let exact = shares.iter().map(|share| share * f64::from(total));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share is at most 1")]
    let mut counts: Vec<(u32, f64)> = exact.map(|count| (count as u32, count.fract())).collect();
    let missing = total.saturating_sub(counts.iter().map(|(count, _)| count).sum());
    let mut order: Vec<usize> = (0..counts.len()).collect();
    order.sort_by(|a, b| counts[*b].1.total_cmp(&counts[*a].1).then(a.cmp(b)));
    for index in order.into_iter().take(missing as usize) {
        counts[index].0 += 1;
    }
    counts.into_iter().map(|(count, _)| count).collect()
}

/// Each model, repeated by its count.
fn every(counts: &[u32]) -> impl Iterator<Item = u32> {
    (0_u32..).zip(counts).flat_map(|(model, count)| std::iter::repeat_n(model, *count as usize))
}

/// Arrivals of a Poisson process until `end_ns`.
pub(super) fn poisson(rng: &mut Pcg64, per_ns: f64, end_ns: f64) -> Vec<f64> {
    let mut times = Vec::new();
    let mut time_ns = gap(rng, per_ns);
    while time_ns < end_ns {
        times.push(time_ns);
        time_ns += gap(rng, per_ns);
    }
    times
}

/// Arrivals in busy periods of about `busy_ns` at ten times the rate, separated by idle periods
/// nine times as long.
fn sporadic(rng: &mut Pcg64, per_ns: f64, busy_ns: f64, end_ns: f64, model: u32) -> Vec<(u64, u32)> {
    let mut arrivals = Vec::new();
    let mut time_ns = gap(rng, 1.0 / (5.0 * busy_ns));
    while time_ns < end_ns {
        let until_ns = (time_ns + gap(rng, 1.0 / busy_ns)).min(end_ns);
        let times = poisson(rng, 10.0 * per_ns, until_ns - time_ns);
        arrivals.extend(times.into_iter().map(|after_ns| (at(time_ns + after_ns), model)));
        time_ns = until_ns + gap(rng, 1.0 / (9.0 * busy_ns));
    }
    arrivals
}

/// The random time to the next event of a process with rate `per_ns`.
fn gap(rng: &mut Pcg64, per_ns: f64) -> f64 {
    -(1.0 - rng.random::<f64>()).ln() / per_ns
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times are positive; the cast saturates"
)]
pub(super) fn at(time_ns: f64) -> u64 {
    time_ns as u64
}
