//! Latency of a tenant within its quotas, while another tenant attacks the node.

use crate::args::Args;
use crate::arrivals;
use crate::neighbours::{LIMITS, MISDEEDS, Repeat, ending};
use crate::protocol::HEADER;
use crate::report::{Section, TextTable};
use crate::serving::Questions;
use crate::stats::{Spread, quantile};
use crate::weir::{BenchNode, Spans, Weir, agent_with_token};
use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ATTACKER: &str = "attacker-token-0123456789";
const VICTIM: &str = "victim-token-0123456789";
/// Kinds of calls of the victim, in turn.
const KINDS: [&str; 3] = ["`hello`", "`echo-body-js`", "`digits`"];
/// Calls of the victim, which arrive at random times.
const VICTIM_REQUESTS_PER_S: f64 = 300.0;
/// Threads of the victim's client: more than its calls in progress.
const VICTIM_CLIENTS: usize = 16;
/// Threads of the attacker's client, which call again after every response.
const ATTACKER_CLIENTS: usize = 8;
/// Minimum duration of a round, for a p99 of each kind of call from several hundred calls.
const MEASURED_MIN: Duration = Duration::from_secs(6);
/// Quota of the attacker, for the row in which it sends ten times as many requests.
const QUOTA_REQUESTS_PER_S: u32 = 100;

const ALONE: &str = "nothing";
const TEN_TIMES: &str = "sends ten times its quota of requests";
const DEPLOYS: &str = "deploys functions that differ";
const INFERS: &str = "calls a model without pause";

/// p99 latency beside an attack, over that without one.
const BOUND: f64 = 1.5;
/// The same for [`TEN_TIMES`].
const QUOTA_BOUND: f64 = 1.1;

/// Latencies of the victim's calls in one round, in milliseconds, by kind.
#[derive(Debug, Serialize)]
struct Round([Vec<f64>; KINDS.len()]);

/// Requests of the attacker.
#[derive(Clone, Copy)]
enum Attack {
    /// No requests.
    None,
    /// Calls of this path of `misbehave`.
    Path(&'static str),
    /// Calls at ten times the quota.
    TenTimes,
    /// Deploys of components that differ.
    Deploys,
    /// Inferences of a large model.
    Infers,
}

/// Responses to the attacker by status and error code.
type Endings = Arc<Mutex<BTreeMap<String, u64>>>;

pub(crate) fn run(args: &Args) -> Result<Section> {
    let scratch = tempfile::tempdir()?;
    let tokens = scratch.path().join("tokens");
    write_private(&tokens, &format!("{ATTACKER} attacker\n{VICTIM} victim\n"))?;
    let token_file = format!("token_file={}", tokens.display());
    let weir = Weir::new(args, scratch.path())?.with_settings(&[&token_file]);
    let quota = format!("tenants.attacker.requests_per_s={QUOTA_REQUESTS_PER_S}");
    let with_quota = Weir::new(args, scratch.path())?.with_settings(&[&token_file, &quota]);
    deploy(args, &weir)?;

    let measured = Duration::from_secs(u64::from(args.seconds())).max(MEASURED_MIN);
    let attacks = attacks();
    let mut rounds: Vec<Vec<Round>> = attacks.iter().map(|_| Vec::new()).collect();
    let endings: Vec<Endings> = attacks.iter().map(|_| Endings::default()).collect();
    for number in 0..args.rounds() {
        for (index, (name, attack)) in attacks.iter().enumerate() {
            let weir = if matches!(attack, Attack::TenTimes) { &with_quota } else { &weir };
            let round = round(args, weir, *attack, &endings[index], number, measured)
                .with_context(|| format!("the round {number} of {name:?} failed"))?;
            eprintln!("round {}/{}  {name:40} {}", number + 1, args.rounds(), in_short(&round));
            rounds[index].push(round);
        }
    }
    let names = attacks.map(|(name, _)| name);
    Ok(Section {
        key: "tenants",
        notes: vec![format!(
            "A node with the default settings and a token file of two tenants. The victim's calls arrive at random times (a Poisson process), {VICTIM_REQUESTS_PER_S:.0} per second, in turn to the functions `hello` and `echo-body-js` and to the model `digits`. {ATTACKER_CLIENTS} clients of the other tenant call again after every response; its function has 200 ms of processor time and 500 ms in all. p99 is that of all rounds, and the ratio the median of the rounds' ratios. Every call of the victim was answered with 200: anything else fails the run."
        )],
        tables: vec![table(&names, &rounds, &endings)],
        samples: serde_json::to_value(BTreeMap::from_iter(names.into_iter().zip(&rounds)))?,
    })
}

fn attacks() -> [(&'static str, Attack); MISDEEDS.len() + 4] {
    let others = [
        (ALONE, Attack::None),
        (TEN_TIMES, Attack::TenTimes),
        (DEPLOYS, Attack::Deploys),
        (INFERS, Attack::Infers),
    ];
    std::array::from_fn(|index| match others.get(index) {
        Some(other) => *other,
        None => {
            let (name, path) = MISDEEDS[index - others.len()];
            (name, Attack::Path(path))
        }
    })
}

fn deploy(args: &Args, weir: &Weir<'_>) -> Result<()> {
    let function = |name: &str| {
        let component = args.functions.join(name).with_extension("wasm");
        std::fs::read(&component).with_context(|| format!("cannot read {}", component.display()))
    };
    let model = |name: &str| {
        let path = args.model(name);
        std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let node = weir.start(Spans::Default)?.with_token(VICTIM)?;
    for name in ["hello", "echo-body-js"] {
        node.put(&format!("/v1/functions/{name}"), &function(name)?)?;
    }
    node.put("/v1/models/digits/versions/1", &model("digits")?)?;
    let node = node.with_token(ATTACKER)?;
    node.put(&format!("/v1/functions/misbehave?{LIMITS}"), &function("misbehave")?)?;
    node.put("/v1/models/heavy/versions/1", &model(Questions::squeezenet().model)?)?;
    Ok(())
}

fn round(
    args: &Args,
    weir: &Weir<'_>,
    attack: Attack,
    endings: &Endings,
    seed: u32,
    measured: Duration,
) -> Result<Round> {
    let node = weir.start(Spans::Default)?.with_token(VICTIM)?;
    let [digit, ..] = Questions::digits().requests;
    let call = |number: usize| match number % KINDS.len() {
        0 => node.get("/fn/hello/").map(drop),
        1 => node.post("/fn/echo-body-js/", b"sixteen bytes...").map(drop),
        _ => node.infer("/v2/models/digits/infer", &digit).map(drop),
    };
    // The functions and models of both tenants are warm.
    arrivals::latencies_ms(&[Duration::ZERO; 2 * VICTIM_CLIENTS], VICTIM_CLIENTS, call)?;
    let attacking = begin(args, &node, attack, endings)?;
    let arrivals = arrivals::poisson(u64::from(seed), VICTIM_REQUESTS_PER_S, measured);
    let latencies = arrivals::latencies_ms(&arrivals, VICTIM_CLIENTS, call)?;
    drop(attacking);
    let of_kind = |kind| latencies.iter().skip(kind).step_by(KINDS.len()).copied().collect();
    Ok(Round(std::array::from_fn(of_kind)))
}

/// Starts the attack, which ends when the result is dropped.
fn begin(args: &Args, node: &BenchNode, attack: Attack, endings: &Endings) -> Result<Vec<Repeat>> {
    let Some(send) = request(args, node, attack)? else { return Ok(Vec::new()) };
    let client = |_| {
        let send = send.clone();
        let endings = endings.clone();
        Repeat::spawn(move || {
            let ending = ending(send());
            *endings.lock().entry(ending).or_default() += 1;
        })
    };
    (0..ATTACKER_CLIENTS).map(client).collect()
}

type Answer = Result<ureq::http::Response<ureq::Body>, ureq::Error>;

/// The attacker's request.
fn request(
    args: &Args,
    node: &BenchNode,
    attack: Attack,
) -> Result<Option<Arc<dyn Fn() -> Answer + Send + Sync>>> {
    let agent = agent_with_token(ATTACKER)?;
    let url = |path: &str| node.server.url(path);
    Ok(Some(match attack {
        Attack::None => return Ok(None),
        Attack::Path(path) => {
            let url = url(&format!("/fn/misbehave{path}"));
            Arc::new(move || agent.get(&url).call())
        }
        Attack::TenTimes => {
            let url = url("/fn/misbehave/behave");
            let every = Duration::from_secs(ATTACKER_CLIENTS as u64) / (10 * QUOTA_REQUESTS_PER_S);
            Arc::new(move || {
                let began = Instant::now();
                let answer = agent.get(&url).call();
                std::thread::sleep(every.saturating_sub(began.elapsed()));
                answer
            })
        }
        Attack::Deploys => {
            let url = url("/v1/functions/deployed");
            let component = args.functions.join("hello.wasm");
            let component =
                std::fs::read(&component).with_context(|| format!("cannot read {}", component.display()))?;
            let deployed = AtomicU64::new(0);
            Arc::new(move || {
                let number = deployed.fetch_add(1, Ordering::Relaxed);
                agent.put(&url).send(&with_number(&component, number))
            })
        }
        Attack::Infers => {
            let url = url("/v2/models/heavy/infer");
            let [request, ..] = Questions::squeezenet().requests;
            Arc::new(move || {
                agent.post(&url).header(HEADER, request.json_bytes.to_string()).send(&request.body)
            })
        }
    }))
}

/// Adds a custom section with `number`, so that each component has its own digest.
fn with_number(component: &[u8], number: u64) -> Vec<u8> {
    // Kind, length, and a name of one byte, whose length comes first.
    let head = [0, 10, 1, b'n'];
    [component, &head, &number.to_le_bytes()].concat()
}

/// Writes a file that only this user can read, as the node requires of tokens.
fn write_private(path: &Path, text: &str) -> Result<()> {
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    Ok(file.write_all(text.as_bytes())?)
}

fn in_short(round: &Round) -> String {
    let p99 = |(kind, latencies_ms): (&&str, &Vec<f64>)| {
        format!("{kind} {:.2} ms", p99_ms([&latencies_ms[..]]).unwrap_or(f64::NAN))
    };
    format!("p99: {}", KINDS.iter().zip(&round.0).map(p99).collect::<Vec<_>>().join(", "))
}

fn p99_ms<'a>(latencies: impl IntoIterator<Item = &'a [f64]>) -> Option<f64> {
    let mut all = latencies.into_iter().collect::<Vec<_>>().concat();
    all.sort_by(f64::total_cmp);
    quantile(&all, 0.99)
}

fn table(names: &[&str], rounds: &[Vec<Round>], endings: &[Endings]) -> TextTable {
    let kinds = KINDS.map(|kind| [format!("{kind} p99 ms"), "over alone".to_owned()]);
    let columns: Vec<&str> = ["the other tenant", "how its requests ended"]
        .into_iter()
        .chain(kinds.iter().flatten().map(String::as_str))
        .chain(["bound"])
        .collect();
    let mut table = TextTable::new("A tenant within its quotas beside one that attacks", &columns);
    for (index, name) in names.iter().enumerate() {
        let (bound, endings) = match *name {
            ALONE => (String::new(), String::new()),
            TEN_TIMES => (format!("{QUOTA_BOUND:.2}x"), in_words(&endings[index].lock())),
            _ => (format!("{BOUND:.2}x"), in_words(&endings[index].lock())),
        };
        let mut row = vec![(*name).to_owned(), endings];
        for kind in 0..KINDS.len() {
            let of = |round: &Round| p99_ms([&round.0[kind][..]]);
            let p99 = p99_ms(rounds[index].iter().map(|round| &round.0[kind][..]));
            let ratios = rounds[index]
                .iter()
                .zip(&rounds[0])
                .filter_map(|(beside, alone)| Some(of(beside)? / of(alone)?));
            row.push(p99.map_or_else(String::new, |p99_ms| format!("{p99_ms:.2}")));
            row.push(Spread::from_samples(ratios).map_or_else(String::new, |ratio| {
                format!("{:.2}x [{:.2} .. {:.2}]", ratio.median, ratio.min, ratio.max)
            }));
        }
        row.push(bound);
        table.row(row);
    }
    table
}

fn in_words(endings: &BTreeMap<String, u64>) -> String {
    endings.iter().map(|(ending, count)| format!("{ending} ({count})")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_components_differ_in_a_custom_section() {
        let component = [0, b'a', b's', b'm', 0xd, 0, 1, 0];
        let numbered = with_number(&component, 7);
        assert_eq!(numbered[..8], component);
        // The section contains a name and the number.
        assert_eq!(numbered[8..10], [0, 10]);
        assert_eq!(numbered[10..].len(), 10);
        assert_ne!(numbered, with_number(&component, 8));
    }

    #[test]
    fn ratios_are_those_of_rounds() {
        let round = |latency_ms: f64| Round([vec![latency_ms; 9], vec![1.0; 9], vec![1.0; 9]]);
        let rounds = [vec![round(1.0), round(2.0)], vec![round(2.0), round(6.0)]];
        let table = table(&[ALONE, DEPLOYS], &rounds, &[Endings::default(), Endings::default()]);
        let json = serde_json::to_value(&table).unwrap();
        assert_eq!(json["rows"][1][3], "2.50x [2.00 .. 3.00]");
        assert_eq!(json["rows"][1][5], "1.00x [1.00 .. 1.00]");
        assert_eq!(json["rows"][1][8], "1.50x");
    }
}
