//! Models in the node's process compared with models in worker processes.

use crate::args::Args;
use crate::contender::{Contender, Results, compare};
use crate::hello::{cpu, others, ratio, table, throughput};
use crate::load::{CONNECTIONS, LoadSpec, Sample};
use crate::protocol::HEADER;
use crate::report::{Section, TextTable};
use crate::serving::Questions;
use crate::weir::{Spans, Weir};
use anyhow::{Context as _, Result};
use std::path::Path;

const IN_PROCESS: &str = "in-process";
const PROCESS: &str = "process";

pub(crate) fn run(args: &Args) -> Result<Section> {
    let mut tables = Vec::new();
    let mut samples = serde_json::Map::new();
    let mut notes = Vec::new();
    for questions in [Questions::digits(), Questions::squeezenet(), Questions::minilm()] {
        let scratch = tempfile::tempdir()?;
        let results = beside(args, &questions, scratch.path())?;
        let model = questions.model;
        tables.extend([
            table(&format!("`{model}`, {}", questions.sizes()), &results),
            against(model, &results),
        ]);
        notes.push(format!("{model}: {}", others(&results)));
        samples.insert(model.to_owned(), serde_json::to_value(&results)?);
    }
    Ok(Section { key: "isolation", notes, tables, samples: samples.into() })
}

fn beside(args: &Args, questions: &Questions, scratch: &Path) -> Result<Results> {
    let body = scratch.join("body");
    std::fs::write(&body, &questions.first().body)?;
    let load = LoadSpec::new(scratch, Some(body), args.seconds())?
        .with_header(HEADER, &questions.first().json_bytes.to_string());
    let model = args.model(questions.model);
    let bytes = std::fs::read(&model).with_context(|| format!("cannot read {}", model.display()))?;
    let path = format!("/v2/models/{}/infer", questions.model);
    let nodes = [IN_PROCESS, PROCESS].map(|isolation| {
        let weir = Weir::new(args, &scratch.join(isolation))?;
        let weir = weir.with_settings(&[&format!("models.isolation={isolation}")]);
        let node = weir.start(Spans::Off)?;
        node.put(&format!("/v1/models/{}/versions/1", questions.model), &bytes)?;
        node.infer(&path, questions.first())?;
        Ok((isolation, weir))
    });
    let nodes = nodes.into_iter().collect::<Result<Vec<_>>>()?;
    let contender = |(isolation, weir)| {
        let weir: &Weir<'_> = weir;
        Contender::server(isolation, &load, &path, || Ok(weir.start(Spans::Off)?.server))
    };
    let contenders: Vec<_> = nodes.iter().map(|(isolation, weir)| contender((isolation, weir))).collect();
    compare(&contenders, args.rounds())
}

fn against(model: &str, results: &Results) -> TextTable {
    let columns = ["process over in-process", "1 connection", "8 connections", "64 connections"];
    let title = format!("Isolation of `{model}`: medians of the rounds' ratios [least .. most]");
    let mut table = TextTable::new(title, &columns);
    let mut row = |what: &str, value: fn(&Sample) -> f64| {
        let values =
            CONNECTIONS.map(|connections| ratio(results.ratio(PROCESS, IN_PROCESS, connections, value)));
        table.row([what.to_owned()].into_iter().chain(values));
    };
    row("CPU per request", cpu);
    row("throughput", throughput);
    row("p50", |sample| sample.p50_us);
    row("p99", |sample| sample.p99_us);
    table
}
