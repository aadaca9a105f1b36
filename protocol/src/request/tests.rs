use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::convert::Infallible;

/// Inputs as sent by a client, with their bytes.
fn inputs() -> impl Strategy<Value = Vec<(ElementType, Vec<u8>, bool)>> {
    let types = prop::sample::select(ElementType::ALL);
    let input = (types, prop::collection::vec(any::<u8>(), 0..40), any::<bool>());
    prop::collection::vec(input, 0..6)
}

/// Encodes a body with binary inputs, and with strings as JSON.
fn body(inputs: &[(ElementType, Vec<u8>, bool)]) -> (Vec<u8>, usize) {
    let mut described = Vec::new();
    let mut binary = Vec::new();
    for (index, (datatype, data, is_binary)) in inputs.iter().enumerate() {
        let mut input = json!({"name": index.to_string(), "datatype": datatype, "shape": [data.len()]});
        if *is_binary {
            input["parameters"] = json!({"binary_data_size": data.len()});
            binary.extend_from_slice(data);
        } else {
            input["data"] = json!(data);
        }
        described.push(input);
    }
    let json =
        json!({"id": "7", "parameters": {"binary_data_output": true}, "inputs": described}).to_string();
    let json_bytes = json.len();
    ([json.into_bytes(), binary].concat(), json_bytes)
}

/// Exercises a parsed request the way a server does. Must neither panic nor index outside the body.
fn use_up(body: &[u8], json_bytes: Option<usize>) -> Result<(), String> {
    let request = InferenceRequest::parse(body, json_bytes).map_err(|error| error.to_string())?;
    for input in request.inputs {
        let bytes = match input.data {
            InputData::Binary(range) => body[range].to_vec(),
            // The server looks up regions.
            InputData::Region(_) => continue,
            InputData::Json(elements) => {
                let mut bytes = Vec::new();
                let put = |more: &[u8]| -> Result<(), Infallible> {
                    bytes.extend_from_slice(more);
                    Ok(())
                };
                elements.decode(put).map_err(|error| error.to_string())?;
                bytes
            }
        };
        input.shape.check(input.datatype, &bytes).map_err(|error| error.to_string())?;
    }
    Ok(())
}

proptest! {
    #[test]
    fn encoded_request_parses_back(inputs in inputs()) {
        let (body, json_bytes) = body(&inputs);
        let request = InferenceRequest::parse(&body, Some(json_bytes)).unwrap();
        prop_assert_eq!(request.id.as_deref(), Some("7"));
        prop_assert!(request.parameters.binary_data_output);
        prop_assert_eq!(request.inputs.len(), inputs.len());
        for (index, (input, (datatype, data, is_binary))) in request.inputs.iter().zip(&inputs).enumerate() {
            prop_assert_eq!(&input.name, &index.to_string());
            prop_assert_eq!(input.datatype, *datatype);
            prop_assert_eq!(input.shape.element_count(), data.len() as u64);
            match &input.data {
                InputData::Binary(range) => prop_assert_eq!(&body[range.clone()], &data[..]),
                InputData::Json(_) => prop_assert!(!is_binary),
                InputData::Region(region) => prop_assert!(false, "{region:?}"),
            }
        }
    }

    #[test]
    fn truncated_or_mutated_body_never_panics(
        inputs in inputs(), at in any::<prop::sample::Index>(), byte: u8, cut: bool, off in -3_isize..4,
    ) {
        let (mut body, json_bytes) = body(&inputs);
        let at = at.index(body.len());
        if cut { body.truncate(at) } else { body[at] = byte }
        let _ = use_up(&body, Some(json_bytes));
        let _ = use_up(&body, json_bytes.checked_add_signed(off));
        let _ = use_up(&body, None);
        if cut && at < body.len() {
            prop_assert!(use_up(&body, Some(json_bytes)).is_err());
        }
    }

    #[test]
    fn random_bytes_never_panic_the_parser(body: Vec<u8>, json_bytes: Option<u16>) {
        let _ = use_up(&body, json_bytes.map(usize::from));
    }
}

fn refusal(json: &Value, binary: &[u8]) -> String {
    let json = json.to_string();
    let body = [json.as_bytes(), binary].concat();
    InferenceRequest::parse(&body, Some(json.len())).unwrap_err().to_string()
}

fn input(more: &Value) -> Value {
    let mut input = json!({"name": "x", "datatype": "FP32", "shape": [1]});
    input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"inputs": [input]})
}

#[test]
fn each_invalid_request_has_its_own_error() {
    let binary = |bytes: u64| input(&json!({"parameters": {"binary_data_size": bytes}}));
    assert_eq!(
        refusal(&binary(8), &[0; 4]),
        r#"input "x": binary_data_size is 8, and 4 bytes of the body are left"#
    );
    assert!(refusal(&binary(u64::MAX), &[0; 4]).contains("4 bytes of the body are left"));
    assert_eq!(refusal(&binary(4), &[0; 6]), "2 bytes are left over after the binary data of the inputs");
    assert!(refusal(&json!({"inputs": []}), &[0]).starts_with("1 bytes are left over"));
    assert!(refusal(&input(&json!({})), &[]).contains("neither `data` nor"));
    let both = input(&json!({"data": [1], "parameters": {"binary_data_size": 4}}));
    assert!(refusal(&both, &[0; 4]).contains("more than one of `data`"));
    let both = input(&json!({"data": [1], "parameters": {"shared_memory_region": "r"}}));
    assert!(refusal(&both, &[]).contains("leave one"));
    for (parameters, why) in [
        (json!({"shared_memory_region": "r", "shared_memory_offset": 4}), "replaced as a whole"),
        (json!({"shared_memory_region": "r", "classification": 1}), "classification"),
    ] {
        let output = json!({"inputs": [], "outputs": [{"name": "y", "parameters": parameters}]});
        let refused = refusal(&output, &[]);
        assert!(refused.contains("output \"y\"") && refused.contains(why), "{refused}");
    }
    let one = input(&json!({"data": [1]}))["inputs"][0].clone();
    assert_eq!(refusal(&json!({"inputs": [one, one]}), &[]), r#"input "x": it is given twice"#);
    let twice = json!({"inputs": [], "outputs": [{"name": "y"}, {"name": "y"}]});
    assert_eq!(refusal(&twice, &[]), r#"output "y" is wanted twice"#);
    for shape in [json!([-1]), json!([1.5]), json!([4_294_967_296_u64]), json!("x")] {
        assert!(
            refusal(&input(&json!({"shape": shape})), &[]).contains("not an inference request"),
            "{shape}"
        );
    }
    let huge = json!([u32::MAX, u32::MAX, u32::MAX]);
    assert!(
        refusal(&input(&json!({"shape": huge, "data": []})), &[]).contains("more elements than can exist")
    );
    assert!(
        refusal(&input(&json!({"shape": vec![1; 17], "data": []})), &[]).contains("at most 16 dimensions")
    );
    assert!(refusal(&json!({"inputs": vec![one; INPUTS_MAX + 1]}), &[]).contains("more than 1024 items"));
    assert!(refusal(&input(&json!({"datatype": "FP31"})), &[]).contains("unknown variant"));
    assert!(refusal(&json!({}), &[]).contains("missing field `inputs`"));
}

/// Serde reads a struct also from an array of its fields.
#[test]
fn arrays_in_place_of_objects_are_refused() {
    let x = json!({"name": "x", "datatype": "FP32", "shape": [1], "data": [1]});
    for body in [
        json!([]),
        json!([1, 2]),
        json!(["a", {}, [x], []]),
        json!({"parameters": [], "inputs": [x]}),
        json!({"inputs": [["x", "FP32", [1], {}, [1]]]}),
        json!({"inputs": [x], "outputs": [["y"]]}),
    ] {
        let said = refusal(&body, &[]);
        assert!(said.contains("expected an object"), "{body}: {said}");
    }
}

#[test]
fn positions_of_invalid_elements_are_positions_in_the_document() {
    let text = "{\n  \"inputs\": [{\"name\": \"x\", \"datatype\": \"FP32\", \"shape\": [2],\n    \"data\": [1,\n      \"a\"]}]}";
    let position = |text: &str| {
        let request = InferenceRequest::parse(text.as_bytes(), None).unwrap();
        let InputData::Json(elements) = &request.inputs[0].data else { panic!("no JSON data") };
        elements.decode(|_| Ok::<(), String>(())).unwrap_err().to_string()
    };
    assert_eq!(position(text), "\"a\" is not FP32 at line 4 column 9");
    let one_line = text.replace("\n", "");
    let column = one_line.find("\"a\"").unwrap() + 3;
    assert_eq!(position(&one_line), format!("\"a\" is not FP32 at line 1 column {column}"));
}

#[test]
fn json_length_header_must_be_within_the_body() {
    let error = InferenceRequest::parse(b"{}", Some(3)).unwrap_err();
    assert!(matches!(error, RequestError::HeaderPastEnd { json_bytes: 3, body_bytes: 2 }));
    let whole = input(&json!({"parameters": {"binary_data_size": 4}})).to_string();
    let error = InferenceRequest::parse(whole.as_bytes(), None).unwrap_err().to_string();
    assert!(error.contains("Inference-Header-Content-Length"), "{error}");
    let long = vec![b' '; JSON_BYTES_MAX + 1];
    assert!(matches!(InferenceRequest::parse(&long, None), Err(RequestError::JsonTooLarge(_))));
}

#[test]
fn unknown_parameters_are_ignored() {
    let json = json!({
        "parameters": {"priority": 3, "timeout": 250, "sequence_id": 9, "triton_x": {"deep": [1]}},
        "inputs": [],
        "outputs": [{"name": "y", "parameters": {"binary_data": false, "classification": 5}}],
        "more": null,
    });
    let json = json.to_string();
    let request = InferenceRequest::parse(json.as_bytes(), None).unwrap();
    assert_eq!(request.parameters, Parameters { binary_data_output: false, priority: 3, timeout: 250 });
    assert_eq!(
        request.outputs.unwrap(),
        [RequestedOutput { name: "y".into(), binary: Some(false), classes: 5, region: None }]
    );
}

#[test]
fn deep_nesting_in_unknown_fields_is_skipped() {
    let deep = |depth: usize| {
        let json = format!(r#"{{"inputs":[],"more":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
        InferenceRequest::parse(json.as_bytes(), None).map(|_| ()).map_err(|error| error.to_string())
    };
    // The parser skips unknown values without recursion.
    assert_eq!((deep(10), deep(10_000_000)), (Ok(()), Ok(())));
}

#[test]
fn regions_are_parsed_by_name() {
    let place = json!({"shared_memory_region": "r", "shared_memory_offset": 4, "shared_memory_byte_size": 8});
    let kept = json!({"shared_memory_region": "s"});
    let input = |name: &str, parameters: &Value| json!({"name": name, "datatype": "FP32", "shape": [2], "parameters": parameters});
    let text = json!({
        "inputs": [input("x", &place), input("y", &kept)],
        "outputs": [{"name": "z", "parameters": kept}],
    })
    .to_string();
    let request = InferenceRequest::parse(text.as_bytes(), None).unwrap();
    let region = |name: &str, offset, bytes| Region { name: name.to_owned(), offset, bytes };
    assert_eq!(request.inputs[0].data, InputData::Region(region("r", 4, Some(8))));
    assert_eq!(request.inputs[1].data, InputData::Region(region("s", 0, None)));
    assert_eq!(request.outputs.unwrap()[0].region, Some(region("s", 0, None)));
}
