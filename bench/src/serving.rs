//! Weir compared with model servers, with equal requests and responses.

mod peers;
mod questions;

use crate::args::Args;
use crate::contender::{Contender, Results, compare};
use crate::hello::{cpu, others, ratio, table, throughput};
use crate::load::{CONNECTIONS, LoadSpec, Sample};
use crate::protocol::HEADER;
use crate::report::{Section, TextTable};
use crate::server::ServerProcess;
use crate::weir::{Spans, Weir};
use anyhow::{Context as _, Result};
use peers::{Peer, Peers};
pub(crate) use questions::Questions;
use std::path::Path;

const WEIR: &str = "Weir";

/// With 64 connections, a batch of 32 images may take most of a second.
const SECONDS_MIN: u32 = 3;

/// Lower bound of Weir's throughput relative to model servers.
const THROUGHPUT_BOUND: &str = "3.00x";
/// Upper bound of Weir's CPU time relative to a minimal Python server.
const CPU_BOUND: &str = "1.00x";

pub(crate) fn run(args: &Args) -> Result<Section> {
    let scratch = tempfile::tempdir()?;
    let peers = Peers::new(args, scratch.path())?;
    let mut tables = Vec::new();
    let mut samples = serde_json::Map::new();
    let mut notes = Vec::new();
    for questions in [Questions::digits(), Questions::squeezenet(), Questions::minilm()] {
        let results = beside(args, &peers, &questions, scratch.path())?;
        let model = questions.model;
        tables.extend([
            table(&format!("`{model}`, {}", questions.sizes()), &results),
            against(model, &results),
        ]);
        notes.push(format!("{model}: {}", others(&results)));
        samples.insert(model.to_owned(), serde_json::to_value(&results)?);
    }
    Ok(Section { key: "serving", notes, tables, samples: samples.into() })
}

fn beside(args: &Args, peers: &Peers, questions: &Questions, scratch: &Path) -> Result<Results> {
    let model = args.model(questions.model);
    let expected = questions.expected(peers, &model)?;
    let body = scratch.join("body");
    std::fs::write(&body, &questions.first().body)?;
    let load = LoadSpec::new(scratch, Some(body), args.seconds().max(SECONDS_MIN))?
        .with_header(HEADER, &questions.first().json_bytes.to_string());

    let weir = Weir::new(args, scratch)?;
    let bytes = std::fs::read(&model).with_context(|| format!("cannot read {}", model.display()))?;
    weir.start(Spans::Off)?.put(&format!("/v1/models/{}/versions/1", questions.model), &bytes)?;
    let path = format!("/v2/models/{}/infer", questions.model);

    // Check the results before measuring.
    let right = |server: Result<ServerProcess>, path: &str| -> Result<ServerProcess> {
        let server = server?;
        questions.check(&server.url(path), &expected)?;
        Ok(server)
    };
    let right = &right;
    let contenders = Peer::ALL.map(|peer| {
        let start = {
            let model = &model;
            move || right(peers.start(peer, model), peer.path())
        };
        Contender::server(peer.name(), &load, peer.path(), start)
    });
    let ours = Contender::server(WEIR, &load, &path, || right(Ok(weir.start(Spans::Off)?.server), &path));
    let contenders: Vec<_> = contenders.into_iter().chain([ours]).collect();
    compare(&contenders, args.rounds())
}

fn against(model: &str, results: &Results) -> TextTable {
    let columns = ["Weir over", "", "bound", "1 connection", "8 connections", "64 connections"];
    let title = format!("Weir with `{model}`: medians of the rounds' ratios [least .. most]");
    let mut table = TextTable::new(title, &columns);
    let mut row = |peer: &str, what: &str, bound: &str, value: fn(&Sample) -> f64| {
        let values = CONNECTIONS.map(|connections| ratio(results.ratio(WEIR, peer, connections, value)));
        table.row([peer, what, bound].map(str::to_owned).into_iter().chain(values));
    };
    for peer in Peer::ALL {
        let (cpu_bound, throughput_bound) =
            if peer == Peer::Uvicorn { (CPU_BOUND, "") } else { ("", THROUGHPUT_BOUND) };
        let peer = peer.name();
        row(peer, "CPU per request", cpu_bound, cpu);
        row(peer, "throughput", throughput_bound, throughput);
    }
    table
}
