//! Messages of gRPC's reflection protocol, `grpc.reflection.v1`, and the answers about the services
//! of a node. Version `v1alpha` has the same messages.

use bytes::Bytes;
use prost::Message;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use tonic::Code;

/// The compiled files of `proto/`, written by `cargo xtask bindings`.
static DESCRIPTORS: &[u8] = include_bytes!("descriptors.binpb");
static FILES: LazyLock<Files> = LazyLock::new(|| Files::read(DESCRIPTORS));

/// The service of the older version of the protocol. The file of `v1` describes its messages.
const ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";

/// Request of `ServerReflectionInfo`.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct ServerReflectionRequest {
    /// Host of the server. Ignored.
    #[prost(string, tag = "1")]
    pub host: String,
    /// The question.
    #[prost(oneof = "ReflectionQuestion", tags = "3, 4, 5, 6, 7")]
    pub question: Option<ReflectionQuestion>,
}

/// Question of a [`ServerReflectionRequest`].
#[derive(Clone, PartialEq, Eq, Hash, prost::Oneof)]
pub enum ReflectionQuestion {
    /// The file with this name.
    #[prost(string, tag = "3")]
    FileByFilename(String),
    /// The file that declares a service, method, message or enumeration.
    #[prost(string, tag = "4")]
    FileContainingSymbol(String),
    /// The file that declares an extension.
    #[prost(message, tag = "5")]
    FileContainingExtension(ExtensionRequest),
    /// The numbers of the extensions of a message.
    #[prost(string, tag = "6")]
    AllExtensionNumbersOfType(String),
    /// The names of all services.
    #[prost(string, tag = "7")]
    ListServices(String),
}

/// An extension of a message.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct ExtensionRequest {
    /// Name of the message.
    #[prost(string, tag = "1")]
    pub containing_type: String,
    /// Number of the extension.
    #[prost(int32, tag = "2")]
    pub extension_number: i32,
}

/// Response of `ServerReflectionInfo`.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct ServerReflectionResponse {
    /// Host of the request.
    #[prost(string, tag = "1")]
    pub valid_host: String,
    /// The request.
    #[prost(message, optional, tag = "2")]
    pub original_request: Option<ServerReflectionRequest>,
    /// The answer.
    #[prost(oneof = "ReflectionAnswer", tags = "4, 6, 7")]
    pub answer: Option<ReflectionAnswer>,
}

/// Answer of a [`ServerReflectionResponse`]. No message here has extensions.
#[derive(Clone, PartialEq, Eq, Hash, prost::Oneof)]
pub enum ReflectionAnswer {
    /// The file in question, with its imports.
    #[prost(message, tag = "4")]
    Files(FileDescriptorResponse),
    /// The names of all services.
    #[prost(message, tag = "6")]
    Services(ListServiceResponse),
    /// The error of this request. The stream continues.
    #[prost(message, tag = "7")]
    Error(ErrorResponse),
}

/// Compiled files.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct FileDescriptorResponse {
    /// A `FileDescriptorProto` each.
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub file_descriptor_proto: Vec<Bytes>,
}

/// Services of a server.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct ListServiceResponse {
    /// The services.
    #[prost(message, repeated, tag = "1")]
    pub service: Vec<ServiceResponse>,
}

/// A service of a server.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct ServiceResponse {
    /// Full name of the service.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Error of a request.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct ErrorResponse {
    /// gRPC status.
    #[prost(int32, tag = "1")]
    pub error_code: i32,
    /// Text for people.
    #[prost(string, tag = "2")]
    pub error_message: String,
}

impl ServerReflectionRequest {
    /// Answers the request.
    #[must_use]
    pub fn answer(self) -> ServerReflectionResponse {
        let answer = self
            .question
            .as_ref()
            .map_or_else(|| Err("the request asks nothing".to_owned()), |question| FILES.answer(question));
        let answer = answer.unwrap_or_else(|error_message| {
            let code = if self.question.is_some() { Code::NotFound } else { Code::InvalidArgument };
            ReflectionAnswer::Error(ErrorResponse { error_code: code.into(), error_message })
        });
        ServerReflectionResponse {
            valid_host: self.host.clone(),
            original_request: Some(self),
            answer: Some(answer),
        }
    }
}

/// The compiled files, by their names and by the symbols that they declare. No file imports another.
#[derive(Default)]
struct Files {
    by_name: BTreeMap<String, Bytes>,
    by_symbol: BTreeMap<String, Bytes>,
    services: Vec<String>,
}

impl Files {
    fn read(set: &'static [u8]) -> Self {
        let mut files = Self::default();
        // A test decodes the set.
        let set = DescriptorSet::decode(Bytes::from_static(set)).unwrap_or_default();
        for file in set.files {
            let described = FileDescriptor::decode(file.clone()).unwrap_or_default();
            let FileDescriptor { name, package, messages, enumerations, services } = described;
            for service in services {
                let full_name = format!("{package}.{}", service.name);
                let methods = service.methods.iter().map(|method| format!("{full_name}.{}", method.name));
                files.by_symbol.extend(methods.map(|method| (method, file.clone())));
                files.by_symbol.insert(full_name.clone(), file.clone());
                files.services.push(full_name);
            }
            files.add_types(&package, &messages, &enumerations, &file);
            files.by_name.insert(name, file);
        }
        files.services.push(ALPHA.to_owned());
        if let Some(file) = files.by_symbol.get(&ALPHA.replace("v1alpha", "v1")).cloned() {
            files.by_symbol.insert(ALPHA.to_owned(), file);
        }
        files
    }

    fn add_types(
        &mut self,
        scope: &str,
        messages: &[MessageDescriptor],
        enumerations: &[NamedDescriptor],
        file: &Bytes,
    ) {
        for enumeration in enumerations {
            self.by_symbol.insert(format!("{scope}.{}", enumeration.name), file.clone());
        }
        for message in messages {
            let full_name = format!("{scope}.{}", message.name);
            self.add_types(&full_name, &message.messages, &message.enumerations, file);
            self.by_symbol.insert(full_name, file.clone());
        }
    }

    fn answer(&self, question: &ReflectionQuestion) -> Result<ReflectionAnswer, String> {
        let found = match question {
            ReflectionQuestion::ListServices(_) => {
                let service = self.services.iter().map(|name| ServiceResponse { name: name.clone() });
                return Ok(ReflectionAnswer::Services(ListServiceResponse { service: service.collect() }));
            }
            ReflectionQuestion::FileByFilename(name) => self.by_name.get(name),
            ReflectionQuestion::FileContainingSymbol(name) => {
                self.by_symbol.get(name.trim_start_matches('.'))
            }
            ReflectionQuestion::FileContainingExtension(_)
            | ReflectionQuestion::AllExtensionNumbersOfType(_) => None,
        };
        let file = found.ok_or("the server has no such file, symbol or extension")?;
        Ok(ReflectionAnswer::Files(FileDescriptorResponse { file_descriptor_proto: vec![file.clone()] }))
    }
}

/// The parts of `descriptor.proto` that have names.
#[derive(Clone, PartialEq, prost::Message)]
struct DescriptorSet {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    files: Vec<Bytes>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct FileDescriptor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    package: String,
    #[prost(message, repeated, tag = "4")]
    messages: Vec<MessageDescriptor>,
    #[prost(message, repeated, tag = "5")]
    enumerations: Vec<NamedDescriptor>,
    #[prost(message, repeated, tag = "6")]
    services: Vec<ServiceDescriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MessageDescriptor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "3")]
    messages: Vec<MessageDescriptor>,
    #[prost(message, repeated, tag = "4")]
    enumerations: Vec<NamedDescriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ServiceDescriptor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    methods: Vec<NamedDescriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct NamedDescriptor {
    #[prost(string, tag = "1")]
    name: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest as _, Sha256};

    fn ask(question: ReflectionQuestion) -> ReflectionAnswer {
        let request = ServerReflectionRequest { host: "h".to_owned(), question: Some(question) };
        let response = request.clone().answer();
        assert_eq!((&*response.valid_host, response.original_request), ("h", Some(request)));
        response.answer.unwrap()
    }

    /// The name of the file in an answer, or the gRPC status of the error.
    fn file(question: ReflectionQuestion) -> Result<String, i32> {
        match ask(question) {
            ReflectionAnswer::Files(files) => {
                assert_eq!(files.file_descriptor_proto.len(), 1);
                Ok(FileDescriptor::decode(files.file_descriptor_proto[0].clone()).unwrap().name)
            }
            ReflectionAnswer::Error(error) => Err(error.error_code),
            ReflectionAnswer::Services(_) => panic!("a list of services"),
        }
    }

    #[test]
    fn services_are_listed() {
        let ReflectionAnswer::Services(list) = ask(ReflectionQuestion::ListServices(String::new())) else {
            panic!("no list");
        };
        let names: Vec<_> = list.service.iter().map(|service| service.name.as_str()).collect();
        let all = [
            "inference.GRPCInferenceService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        ];
        assert_eq!(names, all);
        for name in all {
            assert!(file(ReflectionQuestion::FileContainingSymbol(name.to_owned())).is_ok(), "{name}");
        }
    }

    #[test]
    fn files_are_found_by_their_names_and_symbols() {
        let symbol = |name: &str| file(ReflectionQuestion::FileContainingSymbol(name.to_owned()));
        for name in [
            "inference.GRPCInferenceService.ModelInfer",
            "inference.ModelInferRequest",
            "inference.ModelInferRequest.InferInputTensor",
            "inference.DataType",
            ".inference.ModelInferRequest",
        ] {
            assert_eq!(symbol(name).as_deref(), Ok("inference.proto"), "{name}");
        }
        assert_eq!(symbol("grpc.health.v1.HealthCheckResponse.ServingStatus").as_deref(), Ok("health.proto"));
        let by_name = |name: &str| file(ReflectionQuestion::FileByFilename(name.to_owned()));
        assert_eq!(by_name("reflection.proto").as_deref(), Ok("reflection.proto"));
        let not_found = Err(Code::NotFound as i32);
        assert_eq!((symbol("inference.Nothing"), by_name("nothing.proto")), (not_found.clone(), not_found));
    }

    #[test]
    fn empty_requests_and_extensions_have_errors() {
        let extension = ExtensionRequest { containing_type: "inference.Any".into(), extension_number: 1 };
        let code = file(ReflectionQuestion::FileContainingExtension(extension));
        assert_eq!(code, Err(Code::NotFound as i32));
        let Some(ReflectionAnswer::Error(error)) = ServerReflectionRequest::default().answer().answer else {
            panic!("no error");
        };
        assert_eq!(error.error_code, Code::InvalidArgument as i32);
    }

    /// The field that `cargo xtask bindings` adds to the set.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Digests {
        #[prost(bytes = "vec", repeated, tag = "1000")]
        protos: Vec<Vec<u8>>,
    }

    #[test]
    fn descriptors_are_of_the_current_proto_files() {
        let protos = [
            include_str!("../proto/inference.proto"),
            include_str!("../proto/health.proto"),
            include_str!("../proto/reflection.proto"),
        ];
        let current = protos.map(|proto| Sha256::digest(proto).to_vec());
        let digests = Digests::decode(DESCRIPTORS).unwrap().protos;
        assert_eq!(digests, current, "run `cargo xtask bindings`");
        let set = DescriptorSet::decode(DESCRIPTORS).unwrap();
        let services = set.files.into_iter().flat_map(|file| FileDescriptor::decode(file).unwrap().services);
        let methods: usize = services.map(|service| service.methods.len()).sum();
        let declared = protos.iter().flat_map(|proto| proto.lines());
        assert_eq!(methods, declared.filter(|line| line.trim_start().starts_with("rpc ")).count());
    }
}
