//! Contenders of one comparison, measured in turn over several rounds, so that changes on the
//! machine affect all of them.

use crate::load::{CONNECTIONS, LoadSpec, Sample};
use crate::server::ServerProcess;
use crate::stats::Spread;
use anyhow::{Context as _, Result};
use serde::Serialize;

/// One program in a comparison.
pub(crate) struct Contender<'a> {
    name: String,
    measure: Box<dyn Fn() -> Result<Vec<Sample>> + 'a>,
}

impl<'a> Contender<'a> {
    /// Creates a contender with its own measurement.
    pub(crate) fn new(name: &str, measure: impl Fn() -> Result<Vec<Sample>> + 'a) -> Self {
        Self { name: name.to_owned(), measure: Box::new(measure) }
    }

    /// Creates a contender for a server that is started for every round and put under `load` at
    /// `path`.
    pub(crate) fn server(
        name: &str,
        load: &'a LoadSpec,
        path: &'a str,
        start: impl Fn() -> Result<ServerProcess> + 'a,
    ) -> Self {
        Self::new(name, move || load.measure(&start()?, path))
    }
}

/// Samples of every contender in every round.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Results {
    contenders: Vec<ContenderRounds>,
}

#[derive(Debug, Serialize)]
struct ContenderRounds {
    name: String,
    /// One list per round.
    rounds: Vec<Vec<Sample>>,
}

/// Measures all `contenders` in every round, in reverse order every other round.
pub(crate) fn compare(contenders: &[Contender<'_>], rounds: u32) -> Result<Results> {
    let mut results: Vec<_> = contenders
        .iter()
        .map(|contender| ContenderRounds { name: contender.name.clone(), rounds: Vec::new() })
        .collect();
    for round in 1..=rounds {
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        if round % 2 == 0 {
            order.reverse();
        }
        for index in order {
            let contender = &contenders[index];
            let samples =
                (contender.measure)().with_context(|| format!("{} could not be measured", contender.name))?;
            eprintln!("round {round}/{rounds}  {:40} {}", contender.name, in_short(&samples));
            results[index].rounds.push(samples);
        }
    }
    Ok(Results { contenders: results })
}

fn in_short(samples: &[Sample]) -> String {
    let short = |s: &Sample| {
        format!(
            "c{}: {:.0}/s {:.1} us cpu ({:.0} % others)",
            s.connections,
            s.requests_per_second,
            s.cpu_us_per_request,
            s.others_share * 100.0
        )
    };
    samples.iter().map(short).collect::<Vec<_>>().join(", ")
}

impl Results {
    /// Names of the contenders in their original order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.contenders.iter().map(|measured| measured.name.as_str())
    }

    /// Spread of `what` over the rounds, for the samples of `name` with this number of connections.
    /// Returns `None` without such samples.
    pub(crate) fn spread(
        &self,
        name: &str,
        connections: u32,
        what: impl Fn(&Sample) -> f64,
    ) -> Option<Spread> {
        Spread::from_samples(self.samples(name, connections).map(what))
    }

    /// Ratio of `what` between two contenders, paired by round.
    pub(crate) fn ratio(
        &self,
        name: &str,
        peer: &str,
        connections: u32,
        what: impl Fn(&Sample) -> f64,
    ) -> Option<Spread> {
        let pairs = self.samples(name, connections).zip(self.samples(peer, connections));
        Spread::from_samples(pairs.map(|(ours, theirs)| what(ours) / what(theirs)))
    }

    /// Like [`Results::ratio`], with the difference.
    pub(crate) fn difference(
        &self,
        name: &str,
        peer: &str,
        connections: u32,
        what: impl Fn(&Sample) -> f64,
    ) -> Option<Spread> {
        let pairs = self.samples(name, connections).zip(self.samples(peer, connections));
        Spread::from_samples(pairs.map(|(ours, theirs)| what(ours) - what(theirs)))
    }

    /// Spread of the share of the machine that other programs took during the measurements.
    pub(crate) fn others(&self) -> Option<Spread> {
        let samples = self.contenders.iter().flat_map(|measured| measured.rounds.iter().flatten());
        Spread::from_samples(samples.map(|sample| sample.others_share))
    }

    fn samples<'a>(&'a self, name: &str, connections: u32) -> impl Iterator<Item = &'a Sample> + use<'a> {
        let measured = self.contenders.iter().find(|measured| measured.name == name);
        let rounds = measured.into_iter().flat_map(|measured| &measured.rounds);
        rounds.filter_map(move |samples| samples.iter().find(|sample| sample.connections == connections))
    }
}

/// The numbers of connections with samples of `name`.
pub(crate) fn connections(results: &Results, name: &str) -> Vec<u32> {
    CONNECTIONS
        .into_iter()
        .filter(|&connections| results.samples(name, connections).next().is_some())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn sample(connections: u32, cpu_us_per_request: f64) -> Sample {
        Sample {
            connections,
            requests: 1,
            requests_per_second: 1.0,
            p50_us: 1.0,
            p99_us: 1.0,
            cpu_us_per_request,
            resident_bytes: 1,
            others_share: 0.0,
        }
    }

    #[test]
    fn rounds_are_interleaved_and_ratios_are_paired_by_round() {
        let (order, slowdown) =
            (RefCell::new(String::new()), RefCell::new(vec![3.0, 3.0, 7.0, 7.0, 1.0, 1.0]));
        let contender = |name: &'static str, cost: f64| {
            let order = &order;
            let slowdown = &slowdown;
            Contender::new(name, move || {
                order.borrow_mut().push_str(name);
                Ok(vec![sample(8, cost * slowdown.borrow_mut().pop().unwrap_or(1.0))])
            })
        };
        let results = compare(&[contender("a", 10.0), contender("b", 20.0)], 3).unwrap();
        assert_eq!(*order.borrow(), "abbaab");
        let cpu = |sample: &Sample| sample.cpu_us_per_request;
        // The machine slowed down between rounds; the ratio stayed the same.
        assert_eq!(results.ratio("a", "b", 8, cpu), Some(Spread { median: 0.5, min: 0.5, max: 0.5 }));
        assert_eq!(results.spread("a", 8, cpu), Some(Spread { median: 30.0, min: 10.0, max: 70.0 }));
        assert_eq!(results.spread("a", 64, cpu), None);
        assert_eq!(connections(&results, "b"), [8]);
    }
}
