//! `weir triggers`.

mod create;

use crate::commands::CommandContext;
use crate::commands::collection::{Collection, NameArgs};
use crate::error;
use crate::output::{age, table, time};
use crate::settings::ClientArgs;
use anyhow::Result;
use clap::Subcommand;
use create::CreateArgs;
use jiff::SignedDuration;
use serde_json::json;
use weir_types::api::{Invocation, Trigger, TriggerSource, TriggerTick};
use weir_types::{ErrorCode, Name};

/// Call functions and models on a schedule, for messages of a stream, or for events
///
/// The requests run as asynchronous invocations, which `weir invocations` lists.
///
/// Examples:
///   weir triggers create report --cron '0 6 * * mon-fri' --timezone Europe/Berlin --function report
///   weir triggers create ping --every 30s --function hello --method GET
///   weir triggers create orders --nats nats://nats:4222 --stream ORDERS --function order
///   weir triggers create thumbnails --events 's3:ObjectCreated:*' --subject-suffix .png --function thumbnail
///   weir triggers                               # list all triggers
///   weir triggers run report                    # send the request now
///   weir triggers pause report
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct TriggersArgs {
    #[command(subcommand)]
    action: Option<TriggerAction>,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum TriggerAction {
    /// List all triggers (the default action)
    #[command(visible_alias = "ls")]
    List,
    /// Create or replace a trigger; a paused trigger stays paused
    Create(Box<CreateArgs>),
    /// Show a trigger's settings, its latest tick and its next ones
    Show(NameArgs),
    /// Send a trigger's request now
    Run(NameArgs),
    /// Pause a trigger: it sends no requests until it is resumed
    Pause(NameArgs),
    /// Resume a paused trigger
    Resume(NameArgs),
    /// Delete a trigger
    #[command(visible_alias = "rm")]
    Delete(NameArgs),
}

pub(crate) fn run(args: TriggersArgs, context: &CommandContext) -> Result<()> {
    let triggers = Collection::open("triggers", &args.client, context)?;
    let output = triggers.output;
    match args.action.unwrap_or(TriggerAction::List) {
        TriggerAction::List => triggers.list(list),
        TriggerAction::Create(args) => output.result(&create(&args, &triggers)?, details),
        TriggerAction::Show(NameArgs { name }) => output.result(&triggers.get(&name)?, details),
        TriggerAction::Run(NameArgs { name }) => {
            let started: Invocation = post(&triggers, &name, "run")?;
            output.result(&started, |started| {
                format!("started {0}; `weir invocations show {0} --wait` waits for its end", started.id)
            })
        }
        TriggerAction::Pause(NameArgs { name }) => {
            output.result(&post::<Trigger>(&triggers, &name, "pause")?, |_| format!("paused {name}"))
        }
        TriggerAction::Resume(NameArgs { name }) => {
            let resumed: Trigger = post(&triggers, &name, "resume")?;
            output.result(&resumed, |resumed| match resumed.next_at_ms.first() {
                Some(at_ms) => format!("resumed {name}; the next tick is {}", time(*at_ms)),
                None => format!("resumed {name}"),
            })
        }
        TriggerAction::Delete(NameArgs { name }) => {
            triggers.client.delete(&triggers.path(&name), &format!("delete {name}"))?;
            output.result(&json!({ "removed": name }), |_| format!("removed {name}"))
        }
    }
}

/// Stores a trigger. A paused trigger of the same name stays paused.
fn create(args: &CreateArgs, triggers: &Collection) -> Result<Trigger> {
    let CreateArgs { name, .. } = args;
    let mut spec = args.spec()?;
    let before = match triggers.get::<Trigger>(name) {
        Ok(before) => Some(before),
        Err(error) if error::code(&error) == Some(ErrorCode::TriggerNotFound) => None,
        Err(error) => return Err(error),
    };
    let was_paused = before.as_ref().is_some_and(|before| !before.spec.enabled);
    spec.enabled &= !was_paused;
    let stored = triggers.client.put_json(&triggers.path(name), &format!("store {name}"), &spec)?;
    if was_paused {
        triggers.output.note(format_args!(
            "replaced {name}, which stays paused; `weir triggers resume {name}` resumes it"
        ));
    } else if before.is_some() {
        triggers.output.note(format_args!("replaced {name}"));
    }
    Ok(stored)
}

fn post<T: serde::de::DeserializeOwned>(triggers: &Collection, name: &Name, action: &str) -> Result<T> {
    let path = format!("{}/{action}", triggers.path(name));
    triggers.client.post(&path, &format!("{action} {name}"), &json!({}))
}

fn list(triggers: &[Trigger]) -> String {
    if triggers.is_empty() {
        return "no triggers; `weir triggers create NAME --cron '*/5 * * * *' --function NAME` makes one"
            .into();
    }
    let row = |trigger: &Trigger| {
        [
            trigger.name.to_string(),
            schedule(&trigger.spec.source),
            trigger.spec.target.to_string(),
            next(trigger),
            trigger.last.as_ref().map_or_else(|| "-".to_owned(), |last| last.outcome.to_string()),
            trigger.last.as_ref().map_or_else(|| "-".to_owned(), |last| age(last.at_ms)),
        ]
    };
    table(["NAME", "SOURCE", "TARGET", "NEXT", "LAST", "AT"], triggers.iter().map(row))
}

fn details(trigger: &Trigger) -> String {
    let Trigger { name, spec, created_at_ms, changed_at_ms, next_at_ms, last, ticks, error } = trigger;
    let kind = if spec.target.function.is_some() { "function" } else { "inference" };
    let mut rows = vec![
        ("name", name.to_string()),
        (source_kind(&spec.source), schedule(&spec.source)),
        (kind, spec.target.to_string()),
        ("request", format!("{} {}", spec.request.method, spec.request.path)),
        ("created", time(*created_at_ms)),
        ("changed", time(*changed_at_ms)),
        ("fired", ticks.fired.to_string()),
        ("failed", ticks.failed.to_string()),
    ];
    let is_scheduled = source_kind(&spec.source) == "schedule";
    if is_scheduled {
        rows.extend([
            ("missed", spec.missed.to_string()),
            ("overlap", spec.overlap.to_string()),
            ("overlapped", ticks.overlapped.to_string()),
            ("missed ticks", ticks.missed.to_string()),
        ]);
    }
    if spec.source.events.is_some() {
        rows.push(("address", format!("POST /v1/triggers/{name}/events")));
    }
    rows.extend(last.iter().map(|last| ("last", tick(last, is_scheduled))));
    rows.extend(next_at_ms.iter().map(|at_ms| ("next", time(*at_ms))));
    if !spec.enabled {
        rows.push(("next", "paused".to_owned()));
    }
    rows.extend(error.iter().map(|error| ("error", error.clone())));
    rows.into_iter().map(|(what, value)| format!("{what:<12} {value}\n")).collect()
}

fn tick(tick: &TriggerTick, is_scheduled: bool) -> String {
    let TriggerTick { scheduled_at_ms, at_ms, outcome, invocation, status, error } = tick;
    let when = match scheduled_at_ms {
        Some(scheduled_at_ms) => time(*scheduled_at_ms),
        None if is_scheduled => format!("{} by hand", time(*at_ms)),
        None => time(*at_ms),
    };
    let invocation = invocation.map(|id| format!(", invocation {id}")).unwrap_or_default();
    let status = status.map(|status| format!(" ({status})")).unwrap_or_default();
    let error = error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    format!("{when} {outcome}{invocation}{status}{error}")
}

fn next(trigger: &Trigger) -> String {
    match trigger.next_at_ms.first() {
        Some(at_ms) => time(*at_ms),
        None if trigger.error.is_some() => "error".to_owned(),
        None if trigger.spec.enabled => "-".to_owned(),
        None => "paused".to_owned(),
    }
}

fn source_kind(source: &TriggerSource) -> &'static str {
    match (&source.nats, &source.events) {
        (Some(_), _) => "messages",
        (None, Some(_)) => "events",
        (None, None) => "schedule",
    }
}

fn schedule(source: &TriggerSource) -> String {
    if let Some(nats) = &source.nats {
        return nats.to_string();
    }
    if let Some(events) = &source.events {
        return events.to_string();
    }
    let cron = source.cron.as_ref().map(|cron| match &source.timezone {
        Some(zone) => format!("{cron} ({zone})"),
        None => cron.clone(),
    });
    let every = || {
        let every = source.every_ms.and_then(|every_ms| i64::try_from(every_ms).ok())?;
        Some(format!("every {:#}", SignedDuration::from_millis(every)))
    };
    cron.or_else(every).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triggers_are_listed_with_schedule_and_next_tick() {
        let trigger: Trigger = serde_json::from_value(json!({
            "name": "nightly",
            "spec": {"source": {"cron": "0 3 * * *", "timezone": "Europe/Berlin"}, "target": {"function": "report"}},
            "created_at_ms": 0, "changed_at_ms": 0, "next_at_ms": [7000], "ticks": {},
            "last": {"scheduled_at_ms": 1000, "at_ms": u64::MAX, "outcome": "failed", "error": "no such function"},
        }))
        .unwrap();
        let text = list(std::slice::from_ref(&trigger));
        assert!(
            text.ends_with(
                "nightly   0 3 * * * (Europe/Berlin)   report   1970-01-01T00:00:07.000Z   failed   just now"
            ),
            "{text}"
        );
        assert!(
            details(&trigger).contains("last         1970-01-01T00:00:01.000Z failed: no such function\n")
        );
        let every = TriggerSource { every_ms: Some(90_000), ..TriggerSource::default() };
        assert_eq!(schedule(&every), "every 1m 30s");
        assert!(list(&[]).contains("weir triggers create"));
    }
}
