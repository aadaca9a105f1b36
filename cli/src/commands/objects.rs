//! `weir objects`.

use crate::client::{UploadReader, refusal};
use crate::commands::CommandContext;
use crate::commands::collection::{Collection, NameArgs, RemoveArgs};
use crate::output::{age, size, table, time};
use crate::settings::ClientArgs;
use anyhow::{Context as _, Result};
use clap::Subcommand;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use ureq::SendBody;
use ureq::http::Method;
use weir_types::api::Object;
use weir_types::{ElementType, Name};

/// Store named tensors for functions, inferences and kernel graphs
///
/// Every node of a cluster can read an object until it expires (objects.ttl_ms_default, one day).
///
/// Examples:
///   weir objects put weights w.bin --datatype FP32 --shape 128,64
///   weir objects put session-7 state.bin --ttl-ms 600000
///   weir objects                              # list all objects
///   weir objects get weights -o w.bin
///   weir objects rm weights
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct ObjectsArgs {
    #[command(subcommand)]
    action: Option<ObjectAction>,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum ObjectAction {
    /// List all objects (the default action)
    #[command(visible_alias = "ls")]
    List,
    /// Store the bytes of a file, replacing an object of the same name
    Put {
        /// Name of the object
        name: Name,
        /// File with the elements: in order, little-endian, without gaps
        file: PathBuf,
        /// Element type, as BOOL, UINT8, INT64 or FP32 [default: UINT8]
        #[arg(long, value_name = "TYPE", value_parser = datatype)]
        datatype: Option<ElementType>,
        /// Sizes of the dimensions, outermost first [default: one dimension, from the file's
        /// length]
        #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
        shape: Option<Vec<u32>>,
        /// Time to live, in milliseconds [default: objects.ttl_ms_default of the node]
        #[arg(long, value_name = "MS")]
        ttl_ms: Option<u64>,
    },
    /// Print the bytes of an object
    Get {
        /// Name of the object
        name: Name,
        /// Write the bytes to this file instead, and show the object's details
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Show an object's type, shape and expiry
    Show(NameArgs),
    /// Remove an object
    #[command(visible_alias = "delete")]
    Rm(NameArgs),
}

pub(crate) fn run(args: ObjectsArgs, context: &CommandContext) -> Result<()> {
    let objects = Collection::open("objects", &args.client, context)?;
    let client = &objects.client;
    let output = context.output;
    match args.action.unwrap_or(ObjectAction::List) {
        ObjectAction::List => objects.list(list),
        ObjectAction::Put { name, file, datatype, shape, ttl_ms } => {
            let shape = shape.map(|sizes| sizes.iter().map(u32::to_string).collect::<Vec<_>>().join(","));
            let options = [
                datatype.map(|datatype| format!("datatype={datatype}")),
                shape.map(|shape| format!("shape={shape}")),
                ttl_ms.map(|ttl_ms| format!("ttl_ms={ttl_ms}")),
            ];
            let query: Vec<String> = options.into_iter().flatten().collect();
            let path = format!("/v1/objects/{name}?{}", query.join("&"));
            let mut upload = UploadReader::open(&file, output, &format!("sending {name}"), "keeping it")?;
            let object: Object = client.put(&path, &format!("put {name}"), &[], &mut upload)?;
            drop(upload);
            output.result(&object, details)
        }
        ObjectAction::Get { name, output: file } => {
            let what = format!("get {name}");
            let path = format!("/v1/objects/{name}/data");
            let answer = client.send(client.request(Method::GET, &path, SendBody::none())?)?;
            if !answer.status().is_success() {
                return Err(refusal(answer, &what).into());
            }
            let mut data = answer.into_body().into_reader();
            match file {
                None => {
                    let copied = io::copy(&mut data, &mut io::stdout().lock());
                    copied.map(|_| ()).with_context(|| format!("cannot {what}"))
                }
                Some(file) => {
                    write(&mut data, &file)?;
                    let object: Object = client.get(&format!("/v1/objects/{name}"), &what)?;
                    output.result(&object, details)
                }
            }
        }
        ObjectAction::Show(NameArgs { name }) => output.result(&objects.get(&name)?, details),
        ObjectAction::Rm(NameArgs { name }) => objects.remove(&RemoveArgs { name, version: None }),
    }
}

fn write(data: &mut impl io::Read, path: &Path) -> Result<()> {
    let copied = File::create(path).and_then(|mut file| io::copy(data, &mut file));
    copied.map(|_| ()).with_context(|| format!("cannot write {}", path.display()))
}

fn datatype(text: &str) -> Result<ElementType, String> {
    let all = || ElementType::ALL.iter().map(|known| known.as_str()).collect::<Vec<_>>().join(", ");
    let found = ElementType::ALL.iter().find(|known| known.as_str().eq_ignore_ascii_case(text));
    found.copied().ok_or_else(|| format!("there are {}", all()))
}

fn list(objects: &[Object]) -> String {
    if objects.is_empty() {
        return "no objects; `weir objects put NAME FILE` adds one".into();
    }
    let row = |object: &Object| {
        [
            object.name.to_string(),
            format!("{}{}", object.datatype, object.shape),
            size(object.bytes),
            age(object.put_at_ms),
            time(object.expires_at_ms),
        ]
    };
    table(["NAME", "TENSOR", "SIZE", "PUT", "EXPIRES"], objects.iter().map(row))
}

fn details(object: &Object) -> String {
    let Object { name, datatype, shape, bytes, digest, put_at_ms, expires_at_ms } = object;
    let rows = [
        ("name", name.to_string()),
        ("tensor", format!("{datatype}{shape}")),
        ("size", size(*bytes)),
        ("digest", digest.to_string()),
        ("put", time(*put_at_ms)),
        ("expires", time(*expires_at_ms)),
    ];
    rows.map(|(what, value)| format!("{what:<12} {value}\n")).concat()
}
