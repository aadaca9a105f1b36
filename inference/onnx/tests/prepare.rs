//! Preparation of untrusted uploads: refusals with their reasons, and the files that remain for
//! loading.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot be set up has failed"
)]

mod support;

use std::collections::HashSet;
use std::path::Path;
use support::{Cpu, onnx, own_model, shared_model};
use weir_inference::{PrepareError, Preparer, UploadRefusal};
use weir_types::{ContentHash, ElementType, ErrorCode, Platform, Port, Precision};

fn port(name: &str, datatype: ElementType, shape: &[Option<u32>]) -> Port {
    Port { name: name.to_owned(), datatype, shape: shape.to_vec() }
}

async fn refusal(cpu: &Cpu, model: &Path) -> UploadRefusal {
    match cpu.prepare(model).await {
        Err(PrepareError::Refused(refusal)) => refusal,
        other => panic!("{}: {other:?}", model.display()),
    }
}

/// A model with one additional weight: protocol buffer decoders merge appended messages.
fn with_large_weight(model: &Path, bytes: usize) -> Vec<u8> {
    fn varint(mut number: usize) -> Vec<u8> {
        let mut encoded = Vec::new();
        while number >= 0x80 {
            encoded.push(number as u8 | 0x80);
            number >>= 7;
        }
        encoded.push(number as u8);
        encoded
    }
    let field = |number: usize, content: &[u8]| {
        [&varint(number << 3 | 2)[..], &varint(content.len()), content].concat()
    };
    let number = |number: usize, value: usize| [varint(number << 3), varint(value)].concat();
    // A tensor's dimensions, element type (UINT8), name and data; an initialiser of the graph; the
    // graph of the model.
    let tensor = [number(1, bytes), number(2, 2), field(8, b"large"), field(9, &vec![1; bytes])].concat();
    [std::fs::read(model).unwrap(), field(7, &field(5, &tensor))].concat()
}

#[tokio::test]
async fn every_good_model_is_prepared() {
    let cpu = Cpu::new();
    for entry in std::fs::read_dir(shared_model("good")).unwrap() {
        let path = entry.unwrap().path();
        let prepared = cpu.prepare(&path).await.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(!prepared.signature.inputs.is_empty() && !prepared.signature.outputs.is_empty());
        assert!(prepared.resident_bytes >= prepared.weight_bytes && prepared.weight_bytes > 0);
    }
}

#[tokio::test]
async fn each_bad_model_is_refused_with_its_own_reason() {
    let cpu = Cpu::new();
    type Expected = (&'static str, fn(&UploadRefusal) -> bool, ErrorCode);
    let expected: &[Expected] = &[
        ("empty", |r| matches!(r, UploadRefusal::Malformed { .. }), ErrorCode::InvalidModel),
        ("wrong_magic", |r| matches!(r, UploadRefusal::Malformed { .. }), ErrorCode::InvalidModel),
        ("truncated", |r| matches!(r, UploadRefusal::Malformed { .. }), ErrorCode::InvalidModel),
        (
            "deep_nesting",
            |r| matches!(r, UploadRefusal::Malformed { why } if why.contains("nested")),
            ErrorCode::InvalidModel,
        ),
        ("cyclic", |r| matches!(r, UploadRefusal::Cyclic { .. }), ErrorCode::InvalidModel),
        ("self_loop", |r| matches!(r, UploadRefusal::Cyclic { .. }), ErrorCode::InvalidModel),
        ("recursive_function", |r| matches!(r, UploadRefusal::Cyclic { .. }), ErrorCode::InvalidModel),
        ("undefined_input", |r| matches!(r, UploadRefusal::Invalid { .. }), ErrorCode::InvalidModel),
        ("type_mismatch", |r| matches!(r, UploadRefusal::Invalid { .. }), ErrorCode::InvalidModel),
        ("negative_dimension", |r| matches!(r, UploadRefusal::Invalid { .. }), ErrorCode::InvalidModel),
        (
            "unsupported_op",
            |r| matches!(r, UploadRefusal::UnsupportedOperator { .. }),
            ErrorCode::InvalidModel,
        ),
        (
            "unknown_domain",
            |r| matches!(r, UploadRefusal::OperatorNotAllowed { operator, .. } if operator == "Launch"),
            ErrorCode::OperatorNotAllowed,
        ),
        (
            "future_opset",
            |r| matches!(r, UploadRefusal::UnsupportedOperator { why } if !why.contains(".h:")),
            ErrorCode::InvalidModel,
        ),
        ("huge_dimension", |r| matches!(r, UploadRefusal::HugeDimension { .. }), ErrorCode::InvalidModel),
        ("huge_initializer", |r| matches!(r, UploadRefusal::HugeDimension { .. }), ErrorCode::InvalidModel),
        ("memory_hog", |r| matches!(r, UploadRefusal::HugeDimension { .. }), ErrorCode::InvalidModel),
        ("external_data", |r| matches!(r, UploadRefusal::ExternalData { .. }), ErrorCode::ExternalData),
        (
            "external_data_escape",
            |r| matches!(r, UploadRefusal::ExternalData { .. }),
            ErrorCode::ExternalData,
        ),
        ("external_attribute", |r| matches!(r, UploadRefusal::ExternalData { .. }), ErrorCode::ExternalData),
        ("external_subgraph", |r| matches!(r, UploadRefusal::ExternalData { .. }), ErrorCode::ExternalData),
    ];
    let mut untried: HashSet<String> = std::fs::read_dir(shared_model("bad"))
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    for (name, is_expected, code) in expected {
        let found = refusal(&cpu, &shared_model(&format!("bad/{name}.onnx"))).await;
        assert!(is_expected(&found), "{name}: {found:?}");
        assert_eq!(PrepareError::from(found).code(), *code, "{name}");
        untried.remove(*name);
    }
    assert!(untried.is_empty(), "no expectation for {untried:?}");
}

/// Exports that ONNX Runtime has optimised contain the operators that its optimiser makes.
#[tokio::test]
async fn operators_that_the_optimiser_makes_are_allowed() {
    let cpu = Cpu::new();
    let digits =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../functions/classify-digits/model/digits.onnx");
    let mut made = HashSet::new();
    for model in
        [digits, own_model("centred.onnx"), own_model("masked_mean.onnx"), shared_model("good/matmul.onnx")]
    {
        let prepared = cpu.prepare(&model).await.unwrap();
        // The form for all processors; others have layouts that no export has.
        let everywhere = prepared.variants.iter().find(|variant| variant.only_on.is_none()).unwrap();
        let skeleton = std::fs::read(cpu.blobs().join(everywhere.skeleton.to_string())).unwrap();
        made.extend(onnx::operators(&skeleton));
    }
    assert!(made.iter().any(|(domain, _)| domain == "com.microsoft"), "nothing was fused: {made:?}");
    for (domain, operator) in made {
        let file = cpu.blobs().join("one.onnx");
        std::fs::write(&file, onnx::on_integers_of(&domain, &operator)).unwrap();
        let refused = cpu.prepare(&file).await.err();
        let is_allowed =
            !matches!(refused, Some(PrepareError::Refused(UploadRefusal::OperatorNotAllowed { .. })));
        assert!(is_allowed, "{domain}.{operator}: {refused:?}");
    }
}

#[tokio::test]
async fn further_operators_are_allowed_by_the_configuration() {
    let code = async |allowed: &[&str]| {
        let cpu = Cpu::with_operators(allowed);
        let file = cpu.blobs().join("one.onnx");
        std::fs::write(&file, onnx::on_integers_of("com.microsoft", "Tokenizer")).unwrap();
        cpu.prepare(&file).await.unwrap_err().code()
    };
    assert_eq!(code(&["com.microsoft.NhwcConv"]).await, ErrorCode::OperatorNotAllowed);
    // ONNX Runtime refuses its inputs.
    assert_eq!(code(&["com.microsoft.Tokenizer"]).await, ErrorCode::InvalidModel);
    assert_eq!(code(&["com.microsoft.*"]).await, ErrorCode::InvalidModel);
}

#[tokio::test]
async fn unsupported_ports_are_named_in_the_refusal() {
    let cpu = Cpu::new();
    assert!(
        matches!(refusal(&cpu, &own_model("sequence.onnx")).await, UploadRefusal::UnsupportedPort { port, .. } if port == "parts")
    );
    assert!(
        matches!(refusal(&cpu, &own_model("no_rank.onnx")).await, UploadRefusal::UnsupportedPort { port, .. } if port == "x")
    );
}

#[tokio::test]
async fn newer_format_is_refused_with_a_remedy() {
    let cpu = Cpu::new();
    let file = cpu.blobs().join("newer.onnx");
    // A later field replaces an earlier one: `ir_version`.
    let newer = [onnx::on_integers("Add"), vec![1 << 3, 99]].concat();
    std::fs::write(&file, newer).unwrap();
    let refused = refusal(&cpu, &file).await;
    assert!(
        matches!(&refused, UploadRefusal::Invalid { why } if why.contains("m.ir_version = ")),
        "{refused}"
    );
}

#[tokio::test]
async fn exceeded_limits_are_distinct_from_invalid_models() {
    // ONNX Runtime takes about 60 MiB of address space, and the file 64: there is no room to read
    // another 64 from it.
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large.onnx");
    std::fs::write(&large, with_large_weight(&shared_model("good/add.onnx"), 64 << 20)).unwrap();
    let short_of_memory = Cpu::with_prepare_limits(150 << 20, 60_000);
    let found = refusal(&short_of_memory, &large).await;
    assert_eq!(found, UploadRefusal::OverMemory { bytes_max: 150 << 20 });
    assert_eq!(PrepareError::from(found).code(), ErrorCode::ModelLimit);

    let short_of_time = Cpu::with_prepare_limits(8 << 30, 1_000);
    let found = refusal(&short_of_time, &own_model("laborious.onnx")).await;
    assert_eq!(found, UploadRefusal::OverTime { cpu_ms_max: 1_000 });
    assert_eq!(PrepareError::from(found).code(), ErrorCode::ModelLimit);
}

#[tokio::test]
async fn files_are_named_by_hash_and_equal_weights_are_stored_once() {
    let cpu = Cpu::new();
    let prepared = cpu.prepare(&shared_model("good/slow.onnx")).await.unwrap();
    assert_eq!(prepared.variants[0].weights.len(), 2);
    let mut left: HashSet<ContentHash> = prepared.blobs().collect();
    for entry in std::fs::read_dir(cpu.blobs()).unwrap() {
        let path = entry.unwrap().path();
        let hash = ContentHash::from_content(&std::fs::read(&path).unwrap());
        assert_eq!(path.file_name().unwrap().to_str().unwrap(), hash.to_string());
        assert!(left.remove(&hash), "{hash} is not listed");
    }
    assert!(left.is_empty(), "{left:?} are listed but not there");

    let wide = cpu.prepare(&own_model("wide.onnx")).await.unwrap();
    assert_eq!(wide.variants[0].weights[0].bytes, 16 << 20);
    // The weights themselves, and one packed copy.
    assert!((16 << 20..36 << 20).contains(&wide.resident_bytes), "{}", wide.resident_bytes);
    let again = cpu.prepare(&own_model("wide.onnx")).await.unwrap();
    assert_eq!(
        again.blobs().collect::<Vec<_>>(),
        wide.blobs().collect::<Vec<_>>(),
        "preparing is deterministic"
    );
}

#[tokio::test]
async fn old_files_and_defaults_do_not_turn_initialisers_into_inputs() {
    let cpu = Cpu::new();
    let old = cpu.prepare(&own_model("old.onnx")).await.unwrap();
    assert_eq!(old.signature.inputs, [port("x", ElementType::Fp32, &[Some(1), Some(3), Some(8), Some(8)])]);
    let default = cpu.prepare(&own_model("default_input.onnx")).await.unwrap();
    assert_eq!(default.signature.inputs, [port("x", ElementType::Fp32, &[None])]);
}

#[tokio::test]
async fn crash_of_child_refuses_the_model() {
    let cpu = Cpu::with_prepare_command("/bin/sh", &["-c", "kill -SEGV $$"]);
    let found = refusal(&cpu, &shared_model("good/add.onnx")).await;
    assert!(matches!(&found, UploadRefusal::Crashed { how } if how.contains("SIGSEGV")), "{found:?}");
}

/// The clock is paused: it jumps to the next deadline whenever all tasks wait.
#[tokio::test(start_paused = true)]
async fn idle_hanging_child_times_out() {
    let cpu = Cpu::with_prepare_command("/bin/sleep", &["600"]);
    let found = refusal(&cpu, &shared_model("good/add.onnx")).await;
    assert_eq!(found, UploadRefusal::OverTime { cpu_ms_max: 60_000 });
}

#[tokio::test]
async fn missing_child_program_is_an_internal_error() {
    let cpu = Cpu::with_prepare_command("/no/such/program", &[]);
    let error = cpu.prepare(&shared_model("good/add.onnx")).await.unwrap_err();
    assert_eq!((matches!(error, PrepareError::Io { .. }), error.code()), (true, ErrorCode::Internal));
}

#[tokio::test]
async fn dropping_the_future_kills_the_child() {
    let folder = tempfile::tempdir().unwrap();
    let pid_file = folder.path().join("pid");
    let script = format!("echo $$ > {0}.new; /bin/mv {0}.new {0}; exec /bin/sleep 600", pid_file.display());
    let cpu = Cpu::with_prepare_command("/bin/sh", &["-c", &script]);
    let model = shared_model("good/add.onnx");
    let started = async {
        loop {
            match std::fs::read_to_string(&pid_file) {
                Ok(pid) => break pid,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    let pid = tokio::select! {
        result = cpu.prepare(&model) => panic!("the child ended: {result:?}"),
        pid = started => pid,
    };
    let process = Path::new("/proc").join(pid.trim()).join("stat");
    // The process no longer exists, or is a zombie.
    while std::fs::read_to_string(&process).is_ok_and(|stat| !stat.contains(") Z ")) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn forms_for_other_platforms_are_added_or_their_absence_is_explained() {
    let cpu = Cpu::new();
    let file = shared_model("good/matmul.onnx");
    let prepared = cpu.prepare(&file).await.unwrap();
    assert!(prepared.variants.iter().all(|form| form.platform == Platform::Cpu));
    let why = format!("{} is not supported", Precision::default());
    assert_eq!(prepared.why_not(Platform::Cuda), Some(why.as_str()));

    let prepared = cpu.backend.prepare(&file, Precision::Fp16, cpu.blobs()).await.unwrap();
    let form = prepared.variants_for(Platform::Cuda).next().unwrap();
    assert_eq!((form.precision, prepared.why_not(Platform::Cuda)), (Precision::Fp16, None));
    assert!(cpu.blobs().join(form.skeleton.to_string()).is_file());
}
