//! User-visible errors with advice. Every failure is printed here, in one format.

use anstyle::{AnsiColor, Style};
use serde_json::json;
use std::error::Error;
use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;
use weir_types::api::ErrorBody;
use weir_types::{ErrorCode, Name};

/// Exit codes. Documented in `weir --help`; scripts depend on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// A local failure: a file, a build, a check.
    Failed = 1,
    /// Wrong arguments or configuration. The same code as clap's.
    Usage = 2,
    /// No node answers.
    Unreachable = 3,
    /// The node returned an error.
    Refused = 4,
    /// The function returned a status of 400 or more.
    FunctionFailed = 5,
    /// A signal ended the command.
    Interrupted = 130,
}

/// A comparison found differences, which the command has printed. Its exit status is that of
/// [`Exit::Failed`].
#[derive(Debug, thiserror::Error)]
#[error("there are differences")]
pub(crate) struct Differences;

/// Failure with advice. It is carried in an [`anyhow::Error`], which may add context.
#[derive(Debug)]
pub(crate) struct Problem(Box<Inner>);

#[derive(Debug)]
struct Inner {
    message: String,
    exit: Exit,
    hint: Option<String>,
    refusal: Option<(u16, ErrorBody)>,
    cause: Option<anyhow::Error>,
}

impl Problem {
    /// Creates a failure described by `message`.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        let message = message.into();
        Self(Box::new(Inner { message, exit: Exit::Failed, hint: None, refusal: None, cause: None }))
    }

    /// Creates a failure for wrong arguments or configuration.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(message).exit(Exit::Usage)
    }

    /// Creates a failure from the node's error response. `what` completes "cannot ...".
    pub(crate) fn refused(what: &str, status: u16, body: ErrorBody) -> Self {
        let mut problem = Self::new(format!("cannot {what}: {}", body.error)).exit(Exit::Refused);
        // The node's text may already contain advice, as that about a token without grants does.
        let has_advice = body.error.contains("`weir ")
            || (body.code == ErrorCode::NotGranted && body.error.contains("the operator's token"));
        problem.0.hint = hint_for(body.code).filter(|_| !has_advice).map(str::to_owned);
        problem.0.refusal = Some((status, body));
        problem
    }

    /// The node's error code, if the node refused.
    pub(crate) fn code(&self) -> Option<ErrorCode> {
        self.0.refusal.as_ref().map(|(_, body)| body.code)
    }

    /// Whether the same request may succeed later: the node did not answer, or was busy or failed.
    pub(crate) fn is_transient(&self) -> bool {
        let status = self.0.refusal.as_ref().map(|(status, _)| *status);
        self.0.exit == Exit::Unreachable || status.is_some_and(|status| status == 429 || status >= 500)
    }

    /// Replaces NAME in the advice.
    pub(crate) fn about(mut self, name: &Name) -> Self {
        self.0.hint = self.0.hint.map(|hint| hint.replace("NAME", name.as_str()));
        self
    }

    /// Sets the advice for the user.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// The advice for the user.
    pub(crate) fn advice(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// Sets the cause.
    pub(crate) fn because(mut self, cause: impl Into<anyhow::Error>) -> Self {
        self.0.cause = Some(cause.into());
        self
    }

    /// Sets the exit code.
    pub(crate) fn exit(mut self, exit: Exit) -> Self {
        self.0.exit = exit;
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl Error for Problem {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.cause.as_ref().map(|cause| &**cause as &(dyn Error + 'static))
    }
}

/// Prints `error` to standard error, as text or as JSON, and returns the exit code.
pub(crate) fn report(error: &anyhow::Error, json: bool) -> ExitCode {
    if is_broken_pipe(error) {
        // The reader closed standard output, as in `weir functions | head -1`.
        return ExitCode::SUCCESS;
    }
    if error.is::<Differences>() {
        return ExitCode::from(Exit::Failed as u8);
    }
    let view = View::new(error);
    let mut stderr = anstream::stderr();
    // A closed standard error leaves no way to report.
    let _ = if json { writeln!(stderr, "{}", view.json()) } else { stderr.write_all(view.text().as_bytes()) };
    ExitCode::from(view.exit as u8)
}

/// Printable form of an error.
struct View<'a> {
    message: String,
    causes: Vec<String>,
    hint: Option<&'a str>,
    refusal: Option<&'a (u16, ErrorBody)>,
    exit: Exit,
}

impl<'a> View<'a> {
    fn new(error: &'a anyhow::Error) -> Self {
        let problems = || error.chain().filter_map(|cause| cause.downcast_ref::<Problem>());
        let mut causes: Vec<String> = Vec::new();
        let message = error.to_string();
        for cause in error.chain().skip(1).map(ToString::to_string) {
            // Many errors repeat their source in their own text.
            if !causes.last().unwrap_or(&message).contains(&cause) {
                causes.push(cause);
            }
        }
        Self {
            message,
            causes,
            hint: problems().find_map(|problem| problem.0.hint.as_deref()),
            refusal: problems().find_map(|problem| problem.0.refusal.as_ref()),
            exit: problems()
                .map(|problem| problem.0.exit)
                .find(|exit| *exit != Exit::Failed)
                .unwrap_or(Exit::Failed),
        }
    }

    fn text(&self) -> String {
        let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
        let green = Style::new().bold().fg_color(Some(AnsiColor::Green.into()));
        let mut text = format!("{red}error:{red:#} {}\n", self.message);
        for cause in &self.causes {
            text.push_str(&format!("  caused by: {}\n", cause.replace('\n', "\n             ")));
        }
        if let Some((status, body)) = self.refusal {
            text.push_str(&format!("  code: {} (HTTP {status}), request {}\n", body.code, body.request_id));
        }
        if let Some(hint) = self.hint {
            text.push_str(&format!("{green}hint:{green:#} {hint}\n"));
        }
        text
    }

    fn json(&self) -> serde_json::Value {
        let mut json = json!({ "error": self.message, "causes": self.causes });
        if let Some(hint) = self.hint {
            json["hint"] = hint.into();
        }
        if let Some((status, body)) = self.refusal {
            json["status"] = (*status).into();
            json["code"] = body.code.as_str().into();
            json["request_id"] = body.request_id.as_str().into();
            if let Some(slo) = &body.slo {
                json["slo"] = json!(slo);
            }
        }
        json
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<crate::output::StdoutClosed>().is_some())
}

/// Advice for an error code of the node. The node's text explains the error.
fn hint_for(code: ErrorCode) -> Option<&'static str> {
    use ErrorCode as E;
    Some(match code {
        E::FunctionNotFound => {
            "`weir functions` lists the functions; models and workflows are called at /v2/models/NAME/infer"
        }
        E::ModelNotFound => "`weir models` lists the models; `weir models push NAME FILE` adds a model",
        E::WorkflowNotFound => "`weir workflows` lists the workflows",
        E::InvalidWorkflow => {
            "docs/reference/workflows.md has the format; `weir workflows check FILE` checks a file without a node"
        }
        E::VersionNotFound => {
            "`weir functions versions NAME`, `weir workflows versions NAME` and `weir models show NAME` list versions"
        }
        E::Unauthorized => "give a token with --token-from FILE or in WEIR_TOKEN",
        E::Forbidden => {
            "use a token of the node's token file, or have an admin make a key with `weir keys create`"
        }
        E::NotGranted => {
            "grant it in [function] of weir.toml, or with --models, --objects-read, --objects-write or --outbound, and deploy again"
        }
        E::InvalidComponent => {
            "build for wasm32-wasip2 (`weir build` does) and deploy the component it makes"
        }
        E::NoEntryPoint => {
            "export wasi:http/incoming-handler, wasi:http/handler or weir:inference/stage; `weir new` shows how"
        }
        E::LimitOverCap => {
            "lower the limit with --limit or in [function.limits], or raise [node.sandbox.limit_caps] in the node's weir.toml"
        }
        E::VersionConflict => "versions never change: leave --version out to get the next free one",
        E::SignatureChanged => {
            "push under another name, or with --allow-signature-change and then adapt what uses the model"
        }
        E::Conflict => "remove the conflict that the message names, and try again",
        E::OperatorNotAllowed => {
            "export the model with standard operators, or have the node's operator add the operator to models.operators_allowed"
        }
        E::ExternalData => {
            "`weir models push NAME FILE.onnx` sends the files with the weights, too; or save the model as one file with its weights inside"
        }
        E::InvocationNotFound | E::InvocationExpired => "`weir invocations` lists the stored invocations",
        E::NotEnded => "`weir invocations show ID --wait` waits for its end",
        E::IdempotencyMismatch => "use a different --idempotency-key for each call",
        E::RateLimited => {
            "send fewer requests, or have the node's operator raise the quotas in [node.tenants]"
        }
        E::QuotaExceeded => {
            "remove what is no longer needed, or have the node's operator raise the quotas in [node.tenants]"
        }
        E::QueueFull | E::AsyncQueueFull | E::Unavailable | E::NoCapacity => {
            "try again in a moment; `weir status` shows the node's load"
        }
        E::NoDevice => {
            "start a node with devices; `weir status` lists the nodes of the cluster and their devices"
        }
        E::AnswersFull => "read the answers of earlier calls, or close their connections, and try again",
        E::SloUnattainable => {
            "try again in a moment, or deploy with a higher --slo-ms or --cost-slo; `weir status` shows the node's load"
        }
        E::BodyTooLarge => "send less, or raise the limit in the manifest or the node's configuration",
        E::MemoryLimit
        | E::TableLimit
        | E::HandleLimit
        | E::HostCallLimit
        | E::ResponseTooLarge
        | E::CpuTimeLimit
        | E::DeadlineExceeded => {
            "raise the limit in [function.limits] of weir.toml or with --limit, if the function needs more"
        }
        E::GuestTrap | E::StackOverflow | E::NoResponse | E::GuestError => {
            "`weir logs NAME` shows what the function wrote"
        }
        E::Internal => "the node's log has the details under this request's id",
        _ => return None,
    })
}

/// The node's error code, if the node refused.
pub(crate) fn code(error: &anyhow::Error) -> Option<ErrorCode> {
    error.downcast_ref::<Problem>().and_then(Problem::code)
}

/// An error with its causes, in one line.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// Output of [`report`], without colours.
#[cfg(test)]
pub(crate) fn text(error: &anyhow::Error) -> String {
    anstream::adapter::strip_str(&View::new(error).text()).to_string()
}

/// Exit code of [`report`].
pub(crate) fn exit_of(error: &anyhow::Error) -> Exit {
    View::new(error).exit
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn error_code_and_advice_survive_added_context() {
        let body = ErrorBody {
            error: "no function `x`".into(),
            code: ErrorCode::FunctionNotFound,
            request_id: "r7".into(),
            slo: None,
        };
        let error =
            anyhow::Error::from(Problem::refused("show `x`", 404, body)).context("while looking around");
        assert_eq!(
            text(&error),
            "error: while looking around\n  caused by: cannot show `x`: no function `x`\n  \
             code: function-not-found (HTTP 404), request r7\nhint: `weir functions` lists the functions; models and \
             workflows are called at /v2/models/NAME/infer\n"
        );
        let view = View::new(&error);
        assert_eq!(view.exit, Exit::Refused);
        assert_eq!(view.json()["code"], "function-not-found");
        assert_eq!(view.json()["request_id"], "r7");
    }

    #[test]
    fn advice_about_grants_is_for_functions_only() {
        let refused = |error: &str| {
            let code = ErrorCode::NotGranted;
            let body = ErrorBody { error: error.into(), code, request_id: "r".into(), slo: None };
            Problem::refused("ask", 403, body).advice().map(str::to_owned)
        };
        assert_eq!(refused("this is the operator's token, which reads /metrics"), None);
        assert!(refused("model m is not granted").unwrap().contains("--models"));
    }

    #[test]
    fn causes_are_listed_once_after_the_message() {
        let io = std::io::Error::new(std::io::ErrorKind::NotFound, "no such file");
        let error: anyhow::Error = Problem::usage("cannot read a.wasm: no such file").because(io).into();
        assert_eq!(text(&error), "error: cannot read a.wasm: no such file\n");
        assert_eq!(View::new(&error).exit, Exit::Usage);

        let error = Err::<(), _>(std::io::Error::other("disk on fire")).context("cannot save").unwrap_err();
        assert_eq!(text(&error), "error: cannot save\n  caused by: disk on fire\n");
        assert_eq!(View::new(&error).exit, Exit::Failed);
    }
}
